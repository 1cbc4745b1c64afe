"""One metric of one scenario over time, and what there is to choose from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from chaos.compare.history import Annotation
from chaos.compare.samples import METRICS, TOTAL
from service import history
from service.comparison_shapes import HistoryShape, SeriesShape
from service.known import Known
from service.problems import Problem, not_found
from service.routes.common import PROBLEMS, ServiceOf
from service.routes.notes import about

router = APIRouter(tags=["history"], responses=PROBLEMS)

Name = Annotated[str, Query(max_length=64)]
MOST_REMARKS = 200


async def _known(service: ServiceOf) -> Known:
    """Kept with the service, because it remembers what it has read."""
    return service.known


KnownOf = Annotated[Known, Depends(_known)]


@router.get("/history/series")
def list_series(service: ServiceOf, known: KnownOf) -> SeriesShape:
    """Scenarios with their faults and metrics, codes (the newest ones, newest first) and machines of which there are
    trials."""
    with service.database.read() as session:
        measured = history.codes(session, most=history.MOST_CODES)
        document = {
            "items": history.series(session),
            "machines": history.machines(session),
            "seeded": history.any_seeded(session),
        }
    subjects = known.subjects([code.commit for code, _, _ in measured])
    codes = [
        {
            "name": code.name,
            "short": code.short,
            "subject": subjects.get(code.commit),
            "dirty": bool(code.diff),
            "trials": trials,
            "last_at": at,
        }
        for code, trials, at in measured
    ]
    return SeriesShape.model_validate({**document, "codes": codes})


@router.get("/history")
def show_history(
    service: ServiceOf,
    known: KnownOf,
    scenario: Name,
    metric: Name = TOTAL,
    fault: Name = "",
    fingerprint: Annotated[str | None, Query(max_length=12, description="Trials of this machine only")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Newest points to show")] = 200,
) -> HistoryShape:
    """A point for each code and session, oldest first; levels, where they changed, and each machine's noise."""
    if metric not in METRICS:
        raise Problem(422, "invalid-request", f"there is no metric {metric!r}; there are: {', '.join(METRICS)}")
    with service.database.read() as session:
        faults = history.faults(session, scenario)
        rows, _ = about(session, scenario, limit=MOST_REMARKS)
        remarks = [Annotation(at=row.at.isoformat(), text=row.text) for row in rows]
    if faults is None:
        raise not_found("finished trial of scenario", scenario)
    if fault and fault not in faults:
        raise not_found("fault of this scenario", fault)
    found = known.history(scenario, fault, metric, fingerprint=fingerprint, newest=limit)
    if not found.points:
        raise not_found(f"finished trial of scenario {scenario!r} on machine", fingerprint or "")
    subjects = known.subjects({point.first.code.commit for point in found.points})
    return HistoryShape.model_validate(found.to_json(remarks, subjects=subjects))
