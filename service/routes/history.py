"""One metric of one scenario over time, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.orm import Session

from chaos.compare.history import Annotation
from chaos.compare.samples import METRICS, TOTAL
from service import history
from service.branches import UnknownBranch
from service.comparison_shapes import HistoryShape, SeriesShape
from service.context import Service
from service.known import Known
from service.problems import Problem, not_found
from service.routes.common import PROBLEMS, ServiceOf
from service.routes.notes import about

router = APIRouter(tags=["history"], responses=PROBLEMS)

Name = Annotated[str, Query(max_length=64)]
Fingerprint = Annotated[str | None, Query(max_length=12, description="Trials of this machine only")]
Branch = Annotated[str | None, Query(max_length=200, description="Commits of this branch only")]
MOST_REMARKS = 200
JSON: Final = "application/json"


async def _known(service: ServiceOf) -> Known:
    """Kept with the service, because it remembers what it has read."""
    return service.known


@contextmanager
def no_such_branch() -> Iterator[None]:
    """Raises Problem 404 in place of UnknownBranch."""
    try:
        yield
    except UnknownBranch as error:
        raise Problem(404, "not-found", str(error)) from None


KnownOf = Annotated[Known, Depends(_known)]


@router.get("/history/series", response_model=SeriesShape)
def list_series(service: ServiceOf, known: KnownOf) -> Response:
    """Scenarios with their faults and metrics, codes (the newest ones, newest first) and machines of which there are
    trials."""
    with service.database.read() as session:
        key = (history.state(session), known.branches.heads())
        answer = known.answers.value(key, lambda: _series(session, known))
    return Response(answer, media_type=JSON)


def _series(session: Session, known: Known) -> bytes:
    measured = history.codes(session, most=history.MOST_CODES)
    commits = history.commits(session)
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
    whole = {**document, "codes": codes, "branches": known.branches.holding(commits)}
    return SeriesShape.model_validate(whole).model_dump_json().encode()


@router.get("/history", response_model=HistoryShape)
def show_history(
    service: ServiceOf,
    known: KnownOf,
    scenario: Name,
    metric: Name = TOTAL,
    fault: Name = "",
    fingerprint: Fingerprint = None,
    branch: Branch = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Newest points to show")] = 200,
) -> Response:
    """A point for each code and session, in the order in which the codes were first measured (machine by machine, the
    one that measured last at the end); levels, where they changed, and each machine's noise. Without `fault`: the first
    of those that the scenario had last."""
    answer = history_json(service, known, Asked(scenario, metric, fault, fingerprint, branch, limit))
    return Response(answer, media_type=JSON)


class Asked(NamedTuple):
    scenario: str
    metric: str
    fault: str
    fingerprint: str | None
    branch: str | None
    limit: int


def history_json(service: Service, known: Known, asked: Asked) -> bytes:
    """A `HistoryShape`. Raises Problem where there is nothing of what is asked for."""
    if asked.metric not in METRICS:
        raise Problem(422, "invalid-request", f"there is no metric {asked.metric!r}; there are: {', '.join(METRICS)}")
    with service.database.read() as session:
        rows, _ = about(session, asked.scenario, limit=MOST_REMARKS)
        remarks = tuple(Annotation(at=row.at.isoformat(), text=row.text, by=row.by, commit=row.commit) for row in rows)
        key = (asked, history.state(session, asked.scenario), remarks, known.branches.heads())
        return known.answers.value(key, lambda: _history(session, known, asked, remarks))


def _history(session: Session, known: Known, asked: Asked, remarks: tuple[Annotation, ...]) -> bytes:
    scenario, metric, fault, fingerprint, branch, limit = asked
    faults = history.faults(session, scenario)
    if faults is None:
        raise not_found("finished trial of scenario", scenario)
    if fault and fault not in faults:
        raise not_found("fault of this scenario", fault)
    fault = fault or next(iter(faults), "")
    with no_such_branch():
        found = known.history(scenario, fault, metric, fingerprint=fingerprint, branch=branch, newest=limit)
    if not found.points:
        where = [f"{kind} {name!r}" for kind, name in (("machine", fingerprint), ("branch", branch)) if name]
        raise Problem(404, "not-found", f"there is no finished trial of scenario {scenario!r} on {', '.join(where)}")
    subjects = known.subjects({point.first.code.commit for point in found.points})
    return HistoryShape.model_validate(found.to_json(remarks, subjects=subjects)).model_dump_json().encode()
