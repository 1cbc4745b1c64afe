"""Two sides of trials compared by scenario: the one function whose numbers command, REST and page show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos.compare.ranks import holm
from chaos.compare.rows import BASELINE, Row, Side, scenario_rows
from chaos.compare.rule import RULE, Judgement, Outcome, Rule, confirmed, percent
from chaos.compare.samples import SUCCESS, TrialSample, differences

WORST_FIRST: Final = (
    Outcome.RELIABILITY,
    Outcome.REGRESSION,
    Outcome.NOT_COMPARABLE,
    Outcome.INSUFFICIENT,
    Outcome.INCONCLUSIVE,
    Outcome.IMPROVEMENT,
    Outcome.STABLE,
)
_NOTHING: Final = Judgement(outcome=Outcome.INSUFFICIENT, reason="there was no fresh trial of it")
EXIT_OK, EXIT_REGRESSION, EXIT_UNKNOWN = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    base: Side
    head: Side
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """How each scenario was given to the command; by its name where this is not told."""

    @property
    def verdict(self) -> Outcome:
        """The worst of what gates; a phase gates where fresh trials confirmed it."""
        found = {row.outcome for row in self.rows if row.gates or row.confirmed}
        return next((outcome for outcome in WORST_FIRST if outcome in found), Outcome.INSUFFICIENT)

    def exit_code(self, *, fail_inconclusive: bool = False) -> int:
        if self.verdict in (Outcome.RELIABILITY, Outcome.REGRESSION):
            return EXIT_REGRESSION
        unknown = {Outcome.NOT_COMPARABLE, Outcome.INSUFFICIENT}
        if fail_inconclusive:
            unknown.add(Outcome.INCONCLUSIVE)
        return EXIT_UNKNOWN if self.verdict in unknown else EXIT_OK

    @property
    def screened(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.judgement.screened)

    def to_json(self) -> dict[str, object]:
        return {
            "base": side_json(self.base),
            "head": side_json(self.head),
            "verdict": self.verdict.value,
            "exit_code": self.exit_code(),
            "counts": dict(Counter(row.outcome.value for row in self.rows)),
            "notes": list(self.notes),
            "rows": [{**row.to_json(), "reproduce": self._reproduce(row)} for row in self.rows],
            "command": f"phoenix compare {self.base.name} {self.head.name}",
        }

    def _reproduce(self, row: Row) -> str:
        sides = " ".join(_revision(side, row.scenario) for side in (self.base, self.head))
        return f"phoenix compare --ab {sides} {self.options.get(row.scenario, f'--scenario {row.scenario}')}"


def _revision(side: Side, scenario: str) -> str:
    """The baseline of several scenarios is measured again by the code that it is of this one."""
    codes = {sample.code for sample in side.of(scenario)}
    return codes.pop().name if side.name == BASELINE and len(codes) == 1 else side.name


def compare(base: Side, head: Side, *, rule: Rule = RULE, trials_as_units: bool = False) -> Comparison:
    """Every scenario that either side has trials of, judged by the rule; the worst first.

    Trials are the unit where both sides were measured in the same sessions, else medians of sessions. A total that
    the screen flags is a regression only if Holm's correction over all totals leaves it significant; the phases of one
    fault share one alpha.
    """
    scenarios = sorted({sample.scenario for side in (base, head) for sample in side.samples})
    rows = [row for name in scenarios for row in scenario_rows(base, head, name, rule, trials_as_units=trials_as_units)]
    totals = _corrected([row for row in rows if row.gates and row.metric != SUCCESS], rule)
    known = {row.key: row for row in totals}
    for fault in {(row.scenario, row.fault) for row in rows}:
        phases = _corrected([r for r in rows if not r.gates and (r.scenario, r.fault) == fault], rule, phases=True)
        known |= {row.key: row for row in phases}
    judged = [known.get(row.key, row) for row in rows]
    return Comparison(base=base, head=head, rows=tuple(_ordered(judged)), notes=tuple(notes(base, head)))


def confirm(screen: Comparison, fresh: Comparison, rule: Rule = RULE) -> Comparison:
    """What the screen flagged, judged by trials made for it alone: Holm over the flagged, and nothing else.

    Numbers of a flagged row are those of its fresh trials, since the first ones were chosen for being high.
    """
    measured = {row.key: row for row in fresh.rows}
    # A metric of which no fresh trial has a time (none could be judged) confirms nothing.
    again = [measured.get(row.key, replace(row, judgement=_NOTHING)) for row in screen.screened]
    adjusted = holm([_p(row) for row in again])
    rows = {row.key: row for row in screen.rows}
    for row, p in zip(again, adjusted, strict=True):
        passed = confirmed(row.judgement, p, rule)
        said = _after_confirming(row.judgement, rule, passed=passed, p=p)
        rows[row.key] = replace(row, judgement=said, p_adjusted=p, confirmed=passed)
    broken = [row for row in fresh.rows if row.outcome is Outcome.RELIABILITY]
    rows |= {row.key: row for row in broken}
    return replace(screen, rows=tuple(_ordered(rows.values())))


def notes(base: Side, head: Side) -> list[str]:
    """What a reader should know before he believes a number."""
    found = []
    for role, side in (("base", base), ("head", head)):
        diffs = sorted({sample.code.diff for sample in side.samples if sample.code.diff})
        if diffs:
            found.append(f"{role} was measured with uncommitted changes (diff {', '.join(diffs)})")
        measured = sorted({sample.code for sample in side.samples})
        if len(measured) > 1:  # of a directory: whatever was put there
            found.append(f"{role} is made of trials of {len(measured)} codes: {', '.join(c.short for c in measured)}")
        if side.baseline:
            commits = len({sample.code for sample in side.baseline})
            found.append(f"{role} has few sessions of its own: those of {commits} earlier commits stand in for it")
        unjudged = sum(not sample.judged for sample in side.samples)
        if unjudged:
            found.append(
                f"{unjudged} of {len(side.samples)} trials of {role} could not be judged, and count for nothing"
            )
    if base.samples and head.samples:
        codes = [{sample.code for sample in side.samples} for side in (base, head)]
        if codes[0] == codes[1]:
            found.append("both sides are the same code: an A/A comparison, whose differences are noise")
        versions = [_newest(side).versions for side in (base, head)]
        if all(versions):  # a trial that left no result names none
            found += [f"versions differ: {field}" for field in differences(*versions)]
    return found


def side_json(side: Side) -> dict[str, object]:
    newest = _newest(side) if side.samples else None
    times = sorted(sample.at for sample in side.samples)
    return {
        "name": side.name,
        "commit": newest.code.commit if newest else None,
        "short": newest.code.short if newest else side.name,
        "dirty": bool(newest and newest.code.diff),
        "trials": len(side.samples),
        "sessions": len({sample.session for sample in side.samples}),
        "first_at": times[0] if times else None,
        "last_at": times[-1] if times else None,
    }


def _newest(side: Side) -> TrialSample:
    return max(side.samples, key=lambda sample: sample.at)


def _corrected(rows: Sequence[Row], rule: Rule, *, phases: bool = False) -> list[Row]:
    """Holm over these rows. A total that stays significant is a regression, one that does not is told as flagged.

    A phase that does not stay significant is not flagged at all: it is one of several looks at the same recovery.
    """
    tested = [row for row in rows if row.judgement.p is not None]
    adjusted = dict(zip((row.key for row in tested), holm([_p(row) for row in tested]), strict=True))
    done = []
    for row in rows:
        said, p = row.judgement, adjusted.get(row.key)
        if said.screened and p is not None:
            if confirmed(said, p, rule):
                assert said.ratio is not None
                reason = f"{percent(said.ratio.value)} slower (p = {p:.2g} for all that was compared)"
                said = replace(said, outcome=Outcome.REGRESSION, reason=reason)
            elif phases:
                said = replace(said, screened=False, reason="slower, but not by more than one of several phases may be")
        elif said.outcome is Outcome.IMPROVEMENT and p is not None and p >= rule.alpha:
            said = replace(said, outcome=Outcome.INCONCLUSIVE, reason=f"{said.reason}: that may be chance")
        done.append(replace(row, judgement=said, p_adjusted=p))
    return done


def _after_confirming(said: Judgement, rule: Rule, *, passed: bool, p: float) -> Judgement:
    if said.ratio is None:
        reason = f"could not be confirmed: {said.reason}"
    else:
        measured = f"{percent(said.ratio.value)} {'slower' if said.ratio.value >= 1 else 'faster'} in fresh trials"
        why = f"p = {p:.2g}" if p >= rule.alpha else f"a change counts from {rule.delta:.0%} on"
        reason = f"confirmed: {measured}" if passed else f"not confirmed: {measured} ({why})"
    return replace(said, outcome=Outcome.REGRESSION if passed else Outcome.INCONCLUSIVE, reason=reason, screened=True)


def _p(row: Row) -> float:
    return 1.0 if row.judgement.p is None else row.judgement.p


def _ordered(rows: Iterable[Row]) -> list[Row]:
    """Scenarios with the worst first; within a fault success, the total, then the phases as they follow each other."""
    listed = list(rows)
    rank = {outcome: place for place, outcome in enumerate(WORST_FIRST)}
    worst: dict[tuple[str, str], int] = {}
    for row in listed:
        of = (row.scenario, row.fault)
        if row.gates or row.outcome is Outcome.REGRESSION:
            worst[of] = min(worst.get(of, len(rank)), rank[row.outcome])
    order = {row.key: place for place, row in enumerate(listed)}
    return sorted(listed, key=lambda r: (worst[(r.scenario, r.fault)], r.scenario, r.fault, order[r.key]))
