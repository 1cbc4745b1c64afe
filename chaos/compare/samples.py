"""What a trial counts for in a comparison: times by fault and metric, and what must be equal to compare them. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from chaos.expansion import expand
from chaos.record import Result, Spec
from chaos.recoveries import RecoveryRecord
from chaos.scenario import Scenario
from chaos.verdict import Verdict

PHASES: Final = ("detect", "quiesce", "replace", "reconstruct", "restore", "recompute")
SUCCESS: Final = "success"
TOTAL: Final = "recovery"
REPLACEMENT: Final = "replacement"
METRICS: Final = (SUCCESS, TOTAL, REPLACEMENT, "downtime", *PHASES)
# What gates; the other metrics explain it.
GATING: Final = (SUCCESS, TOTAL, REPLACEMENT)

CAMPAIGN: Final = "campaign"
SHORT_DIGITS: Final = 9
# Fields of a scenario that say nothing about how long a recovery takes.
_FREE: Final = ("description", "seed", "checks", "version")
_MISSING: Final = "(nothing)"


@dataclass(frozen=True, kw_only=True, order=True)
class Code:
    """A commit, or a commit with the changes that a working tree had added to it."""

    commit: str
    diff: str = ""

    @property
    def name(self) -> str:
        return f"{self.commit}-{self.diff}" if self.diff else self.commit

    @property
    def short(self) -> str:
        return f"{self.commit[:SHORT_DIGITS]}{'-' + self.diff[:4] if self.diff else ''}"


@dataclass(frozen=True, kw_only=True)
class TrialSample:
    """One trial. `times[fault][metric]` are seconds, `inf` for what never came to an end.

    `judged` is False for a trial of which nothing can be said: then it has no times, and is only counted.
    """

    trial: str
    scenario: str
    version: str
    shape: Mapping[str, object]
    code: Code
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    session: str
    seed: int
    at: str
    judged: bool
    succeeded: bool
    times: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seeded: bool = False

    @property
    def fingerprint(self) -> str:
        return digest_of(self.machine) if self.machine else ""

    @property
    def faults(self) -> list[str]:
        """Those of its scenario as it was then, in their order: also of a trial that was not judged."""
        return list(self.times) or faults_in(self.shape)


def sample_of(spec: Spec, result: Result) -> TrialSample:
    """A trial that is UNKNOWN, or that somebody disturbed with faults of his own, is not judged."""
    provenance, scenario = spec.provenance, spec.scenario
    planned = _planned(scenario)
    hit = {_fault_of(record) for record in result.recoveries} - {None}
    judged = result.verdict is not Verdict.UNKNOWN and hit <= {single for ids in planned.values() for single in ids}
    shape = shape_of(scenario)
    return TrialSample(
        trial=spec.trial,
        scenario=scenario.name,
        version=digest_of(shape),
        shape=shape,
        code=Code(commit=provenance.commit or "unknown", diff=provenance.diff or ""),
        machine=provenance.machine,
        versions=provenance.versions,
        session=session_of(provenance.boot, spec.created_at),
        seed=scenario.seed,
        at=spec.created_at,
        judged=judged,
        succeeded=judged and result.verdict is Verdict.PASS,
        times={name: _times(_records(result.recoveries, ids)) for name, ids in planned.items()} if judged else {},
        seeded=spec.seeded,
    )


def shape_of(scenario: Scenario) -> dict[str, object]:
    """What two trials must have in common to measure the same thing."""
    return {name: value for name, value in scenario.to_json().items() if name not in _FREE}


def faults_in(shape: Mapping[str, Any]) -> list[str]:
    """What `times` of a judged trial of this shape are kept under."""
    planned = [str(fault["id"]) for fault in shape.get("faults") or ()]
    return [*planned, CAMPAIGN] if shape.get("campaign") else planned


def digest_of(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]


def session_of(boot: str, at: str) -> str:
    """Trials of one boot and one night share a level; a night goes from noon to noon (UTC)."""
    night = (datetime.fromisoformat(at) - timedelta(hours=12)).date()
    return f"{boot[:8] or 'unknown'}-{night.isoformat()}"


def differences(base: Mapping[str, object], head: Mapping[str, object]) -> list[str]:
    """Field by field what differs between two documents: `cores: 2 -> 4`, `faults.kill.trigger.at_step: 3 -> 5`,
    `faults.stop: added`.
    """
    return list(_differences("", base, head))


def metrics_of(samples: Iterable[TrialSample], fault: str) -> list[str]:
    """The metrics of which any of these trials has a time, in their order; success always."""
    seen = {metric for sample in samples for metric in sample.times.get(fault, {})}
    return [metric for metric in METRICS if metric == SUCCESS or metric in seen]


def _planned(scenario: Scenario) -> dict[str, frozenset[str]]:
    """Each fault of the scenario with the single faults that it stands for; all that a campaign draws are one."""
    planned = {fault.id: frozenset(single.id for single in expand(fault, scenario.seed)) for fault in scenario.faults}
    if scenario.campaign is not None:
        planned[CAMPAIGN] = frozenset(fault.id for fault in scenario.drawn)
    return planned


def _records(records: Sequence[RecoveryRecord], ids: Collection[str]) -> list[RecoveryRecord]:
    return [record for record in records if _fault_of(record) in ids and not _needs_no_recovery(record)]


def _needs_no_recovery(record: RecoveryRecord) -> bool:
    """A slow network, say: nothing was to be recovered from, and that is what the check says."""
    over = record.recovery_s is None and record.replacement is None
    return over and record.checks.get("recovered") is Verdict.PASS


def _fault_of(record: RecoveryRecord) -> str | None:
    name = (record.fault or {}).get("id")
    return None if name is None else str(name)


def _times(records: Sequence[RecoveryRecord]) -> dict[str, float]:
    """Of one fault; the mean, where it was injected several times: a trial is one number, however many those were."""
    if not records:
        return {}
    if all(record.target.get("rank") is None and record.recovery_s is None for record in records):
        new = [record.replacement.get("after_s") if record.replacement else None for record in records]
        return {REPLACEMENT: _mean(new)}
    times = {
        TOTAL: _mean([record.recovery_s for record in records]),
        "downtime": _mean([record.downtime_s for record in records]),
    }
    for phase in PHASES:
        times[phase] = _mean([record.phases.get(phase) for record in records])
        if math.isinf(times[phase]):
            break  # of the phases after the one that never ended nothing is known
    return times


def _mean(values: Iterable[object]) -> float:
    return fmean(float(value) if isinstance(value, int | float) else math.inf for value in values)


def _differences(path: str, before: object, after: object) -> Iterator[str]:
    old, new = _parts(before), _parts(after)
    if old is not None and new is not None:
        inside = [
            said
            for name in dict.fromkeys((*old, *new))
            for said in _differences(f"{path}.{name}".lstrip("."), old.get(name, _MISSING), new.get(name, _MISSING))
        ]
        yield from inside or ([] if before == after else [f"{path}: in another order"])
    elif new is not None and before in (None, _MISSING):
        yield f"{path}: added"
    elif old is not None and after in (None, _MISSING):
        yield f"{path}: removed"
    elif before != after:
        yield f"{path}: {_brief(before)} -> {_brief(after)}"


def _parts(value: object) -> Mapping[str, object] | None:
    """Of a document, and of a list of documents that have an id; None for what is one value."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(item, Mapping) and "id" in item for item in value):
        return {str(item["id"]): item for item in value}
    return None


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
