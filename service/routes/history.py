"""One metric of one scenario over time, and what there is to choose from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from chaos.compare.history import codes, history, machines, series
from chaos.compare.samples import METRICS, TOTAL
from service.comparison_shapes import HistoryShape, SeriesShape
from service.context import Service
from service.known import Known, known_in
from service.problems import Problem, not_found
from service.routes.common import PROBLEMS, ServiceOf

router = APIRouter(tags=["history"], responses=PROBLEMS)

Name = Annotated[str, Query(max_length=64)]


def _known(request: Request, service: ServiceOf) -> Known:
    """Kept with the application, because it remembers what it has read."""
    state = request.app.state
    if getattr(state, "known_of", None) is not service:
        state.known, state.known_of = _known_of(service), service
    found: Known = state.known
    return found


def _known_of(service: Service) -> Known:
    return known_in(service.settings.directory)


KnownOf = Annotated[Known, Depends(_known)]


@router.get("/history/series")
def list_series(known: KnownOf) -> SeriesShape:
    """Scenarios with their faults and metrics, codes (newest first) and machines of which there are trials."""
    samples = known.samples()
    return SeriesShape.model_validate(
        {"items": series(samples), "codes": codes(samples, known.subjects(samples)), "machines": machines(samples)}
    )


@router.get("/history")
def show_history(
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
    return HistoryShape.model_validate(found.to_json(subjects=known.subjects(samples)))
