"""One metric of one scenario over time, and what there is to choose from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from chaos.compare.history import Annotation, codes, history, machines, series
from chaos.compare.samples import METRICS, TOTAL
from service.comparison_shapes import HistoryShape, SeriesShape
from service.known import Known
from service.problems import Problem, not_found
from service.routes.common import PROBLEMS, ServiceOf
from service.routes.notes import about

router = APIRouter(tags=["history"], responses=PROBLEMS)

Name = Annotated[str, Query(max_length=64)]
MOST_REMARKS = 200


def _known(service: ServiceOf) -> Known:
    """Kept with the service, because it remembers what it has read."""
    return service.known


KnownOf = Annotated[Known, Depends(_known)]


@router.get("/history/series")
def list_series(known: KnownOf) -> SeriesShape:
    """Scenarios with their faults and metrics, codes (newest first) and machines of which there are trials."""
    samples = known.samples()
    return SeriesShape.model_validate(
        {
            "items": series(samples),
            "codes": codes(samples, known.subjects(samples)),
            "machines": machines(samples),
            "seeded": any(sample.seeded for sample in samples),
        }
    )


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
    samples = [s for s in known.samples() if s.scenario == scenario and fingerprint in (None, s.fingerprint)]
    if not samples:
        raise not_found("finished trial of scenario", scenario)
    if fault and not any(fault in sample.times for sample in samples):
        raise not_found("fault of this scenario", fault)
    found = history(samples, scenario, fault=fault, metric=metric, newest=limit)
    with service.database.read() as session:
        remarks = [Annotation(at=row.at.isoformat(), text=row.text) for row in about(session, scenario, MOST_REMARKS)]
    return HistoryShape.model_validate(found.to_json(remarks, subjects=known.subjects(samples)))
