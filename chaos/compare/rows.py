"""Two groups of trials held against each other: which ones may be, and what each metric of theirs says. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from chaos.compare.ranks import median_interval
from chaos.compare.rule import Judgement, Outcome, Rule, judge, judge_sessions, judge_success
from chaos.compare.samples import GATING, SUCCESS, TrialSample, differences, metrics_of

TRIAL: Final = "trial"
SESSION: Final = "session"
BASELINE: Final = "baseline"
"""In place of a revision: of each scenario the code that was chosen to be its baseline."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One code with its trials. `baseline`: trials of its ancestors, for want of sessions of its own; oldest first."""

    name: str
    samples: tuple[TrialSample, ...]
    baseline: tuple[TrialSample, ...] = ()

    def of(self, scenario: str) -> list[TrialSample]:
        return [sample for sample in self.samples if sample.scenario == scenario]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One side of a row. `values` are what was tested: times of trials, or medians of sessions."""

    values: tuple[float, ...] = ()
    succeeded: int = 0
    trials: int = 0
    unjudged: int = 0
    sessions: int = 0

    def to_json(self) -> dict[str, object]:
        interval = median_interval(self.values)
        return {
            "n": len(self.values),
            "median": finite(median(self.values)) if self.values else None,
            "low": finite(interval[0]) if interval else None,
            "high": finite(interval[1]) if interval else None,
            "values": [finite(value) for value in self.values],
            "not_recovered": sum(math.isinf(value) for value in self.values),
            "succeeded": self.succeeded,
            "trials": self.trials,
            "unjudged": self.unjudged,
            "sessions": self.sessions,
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of one fault of one scenario. `confirmed` is None where nobody measured again."""

    scenario: str
    fault: str
    metric: str
    judgement: Judgement
    unit: str = TRIAL
    base: Group = Group()
    head: Group = Group()
    p_adjusted: float | None = None
    confirmed: bool | None = None
    fields: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return self.scenario, self.fault, self.metric

    @property
    def outcome(self) -> Outcome:
        return self.judgement.outcome

    @property
    def gates(self) -> bool:
        return self.metric in GATING

    def to_json(self) -> dict[str, object]:
        said, ratio = self.judgement, self.judgement.ratio
        return {
            "scenario": self.scenario,
            "fault": self.fault,
            "metric": self.metric,
            "gates": self.gates,
            "verdict": said.outcome.value,
            "screened": said.screened,
            "confirmed": self.confirmed,
            "reason": said.reason,
            "fields": list(self.fields),
            "unit": self.unit,
            "base": self.base.to_json(),
            "head": self.head.to_json(),
            "ratio": finite(ratio.value) if ratio else None,
            "low": finite(ratio.low) if ratio else None,
            "high": finite(ratio.high) if ratio else None,
            "p": said.p,
            "p_adjusted": self.p_adjusted,
            "needs": said.needs,
        }


def finite(value: float | None) -> float | None:
    """JSON has no infinity: what never ended is null."""
    return None if value is None or math.isinf(value) else value


def scenario_rows(base: Side, head: Side, scenario: str, rule: Rule, *, trials_as_units: bool) -> list[Row]:
    """Every fault and metric of one scenario, each judged for itself."""
    left, right = base.of(scenario), head.of(scenario)
    older = [sample for sample in base.baseline if sample.scenario == scenario]
    faults = sorted({fault for sample in [*left, *right] for fault in sample.times}) or [""]
    if not left or not right:
        missing = base.name if not left else head.name
        said = Judgement(
            outcome=Outcome.INSUFFICIENT, reason=f"there is no trial of {missing}", needs=rule.least_trials
        )
        return [_plain(scenario, fault, said, left, right) for fault in faults]
    for field in ("version", "fingerprint"):
        left, right, different = _matching(left, right, field)
        if different is not None:
            return [_plain(scenario, fault, different[0], left, right, different[1]) for fault in faults]
    older = [s for s in older if (s.version, s.fingerprint) == (left[0].version, left[0].fingerprint)]
    shared = {sample.session for sample in left} & {sample.session for sample in right}
    unit = TRIAL if shared or trials_as_units else SESSION
    if shared and not trials_as_units:
        # A session that measured one side only would bring its own level with it.
        left, right = ([sample for sample in side if sample.session in shared] for side in (left, right))
    rows = []
    for fault in faults:
        for metric in metrics_of([*left, *right], fault):
            if metric == SUCCESS:
                rows.append(_success_row(scenario, fault, left, right, rule))
            else:
                rows.append(_time_row(scenario, fault, metric, unit, (older, left, right), rule))
    return rows


_Pair = tuple[Judgement, tuple[str, ...]]


def _matching(
    left: Sequence[TrialSample], right: Sequence[TrialSample], field: str
) -> tuple[list[TrialSample], list[TrialSample], _Pair | None]:
    """Of both sides the trials that agree in this field; where none do, why not."""
    counts = [Counter(str(getattr(sample, field)) for sample in side) for side in (left, right)]
    common = [value for value in counts[0] if value and value in counts[1]]
    if not common:
        where = "shape" if field == "version" else "machine"
        differing = differences(getattr(left[-1], where), getattr(right[-1], where))
        what = "the scenario was changed between them" if field == "version" else "they ran on different machines"
        if field == "fingerprint" and not (left[-1].fingerprint and right[-1].fingerprint):
            what = "some trials do not say on which machine they ran"
        said = Judgement(outcome=Outcome.NOT_COMPARABLE, reason=f"{what}: {'; '.join(differing) or 'unknown'}")
        return list(left), list(right), (said, tuple(differing))
    best = max(common, key=lambda value: min(counts[0][value], counts[1][value]))
    kept_left, kept_right = ([one for one in side if getattr(one, field) == best] for side in (left, right))
    return kept_left, kept_right, None


def _plain(
    scenario: str,
    fault: str,
    said: Judgement,
    left: Sequence[TrialSample],
    right: Sequence[TrialSample],
    fields: tuple[str, ...] = (),
) -> Row:
    base, head = _group(left), _group(right)
    return Row(scenario=scenario, fault=fault, metric=SUCCESS, judgement=said, base=base, head=head, fields=fields)


def _success_row(
    scenario: str, fault: str, left: Sequence[TrialSample], right: Sequence[TrialSample], rule: Rule
) -> Row:
    base, head = _group(left), _group(right)
    counts = [(group.succeeded, group.trials - group.unjudged) for group in (base, head)]
    said = judge_success(counts[0], counts[1], rule)
    return Row(scenario=scenario, fault=fault, metric=SUCCESS, judgement=said, base=base, head=head)


def _time_row(
    scenario: str,
    fault: str,
    metric: str,
    unit: str,
    sides: tuple[Sequence[TrialSample], Sequence[TrialSample], Sequence[TrialSample]],
    rule: Rule,
) -> Row:
    older, left, right = sides
    if unit == TRIAL:
        values = [_values(side, fault, metric) for side in (left, right)]
        said = judge(values[0], values[1], rule)
    else:
        base = _session_medians([*older, *left], fault, metric)[-rule.most_sessions :]
        values = [base, _session_medians(right, fault, metric)]
        said = judge_sessions(values[0], values[1], rule)
    groups = [_group(side, tested) for side, tested in zip((left, right), values, strict=True)]
    return Row(scenario=scenario, fault=fault, metric=metric, judgement=said, unit=unit, base=groups[0], head=groups[1])


def _group(samples: Sequence[TrialSample], values: Sequence[float] = ()) -> Group:
    return Group(
        values=tuple(values),
        succeeded=sum(sample.succeeded for sample in samples),
        trials=len(samples),
        unjudged=sum(not sample.judged for sample in samples),
        sessions=len({sample.session for sample in samples}),
    )


def _values(samples: Iterable[TrialSample], fault: str, metric: str) -> list[float]:
    times: list[Mapping[str, float]] = [sample.times.get(fault, {}) for sample in samples]
    return [time[metric] for time in times if metric in time]


def _session_medians(samples: Sequence[TrialSample], fault: str, metric: str) -> list[float]:
    """One value for each session, in the order in which the sessions began."""
    sessions: dict[str, list[TrialSample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.at):
        sessions.setdefault(sample.session, []).append(sample)
    found = [_values(members, fault, metric) for members in sessions.values()]
    return [median(values) for values in found if values]
