"""Baselines: the code that somebody chose each scenario to be held against, and a trial beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from chaos.compare.rows import finite
from chaos.compare.samples import Code, TrialSample
from service import audit, history, store
from service.callers import Caller
from service.fitting import fit_text
from service.history_tables import BaselineRow, PointRow, SampleRow


@dataclass(frozen=True, kw_only=True)
class Beside:
    """`code`: the trial's own, None until it is in the history. `medians` of the baseline, in seconds by fault and
    metric; where there are none, `why_not`.
    """

    code: Code | None = None
    baseline: BaselineRow | None = None
    trials: int = 0
    medians: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    why_not: str | None = None


def choose(session: Session, caller: Caller, scenario: str, code: Code, reason: str) -> BaselineRow:
    """From now on it is the one; the audit log keeps the one before."""
    row = session.get(BaselineRow, scenario)
    detail = {"code": code.name, "before": None if row is None else row.code.name}
    if row is None:
        row = BaselineRow(scenario=scenario)
        session.add(row)
    row.commit, row.diff = code.commit, code.diff
    row.at, row.by, row.reason = store.now(), caller.name, reason
    audit.record(session, caller, "baseline.choose", scenario, reason=reason, detail=detail)
    return row


def remove(session: Session, caller: Caller, row: BaselineRow, reason: str) -> None:
    session.delete(row)
    audit.record(session, caller, "baseline.remove", row.scenario, reason=reason, detail={"code": row.code.name})


def samples(session: Session, scenario: str | None = None) -> tuple[TrialSample, ...]:
    """The trials of the baseline of this scenario, or of each that has one."""
    query = select(BaselineRow) if scenario is None else select(BaselineRow).where(BaselineRow.scenario == scenario)
    points = [point for row in session.scalars(query) for point in history.points_of(session, [row.code], row.scenario)]
    return history.samples(session, points)


def beside(session: Session, trial: str, scenario: str) -> Beside:
    """A trial's times mean something beside those of the same scenario on the same machine only."""
    baseline = session.get(BaselineRow, fit_text(scenario, 200))
    query = select(PointRow).join(SampleRow, SampleRow.point_id == PointRow.id).where(SampleRow.trial == trial)
    own = session.scalars(query.limit(1)).one_or_none()
    code = None if own is None else Code(commit=own.commit, diff=own.diff)
    if own is None or baseline is None:
        return Beside(code=code, baseline=baseline)
    points = history.points_of(session, [baseline.code], baseline.scenario)
    same = [point for point in points if (point.version, point.fingerprint) == (own.version, own.fingerprint)]
    if not same:
        return Beside(code=code, baseline=baseline, why_not=_why_not(points, own))
    found = history.samples(session, same)
    return Beside(code=code, baseline=baseline, trials=len(found), medians=_medians(found))


def _why_not(points: Sequence[PointRow], own: PointRow) -> str:
    if not points:
        return "no trial of it is known any more"
    if not any(point.fingerprint == own.fingerprint for point in points):
        return "it was measured on another machine"
    return "the scenario was changed since"


def _medians(found: Sequence[TrialSample]) -> dict[str, dict[str, float | None]]:
    values: dict[str, dict[str, list[float]]] = {}
    for sample in found:
        for fault, times in sample.times.items():
            for metric, seconds in times.items():
                values.setdefault(fault, {}).setdefault(metric, []).append(seconds)
    return {
        fault: {metric: finite(median(seconds)) for metric, seconds in metrics.items()}
        for fault, metrics in values.items()
    }
