"""Notes: a new kernel, a moved machine, why a commit is slower. The history and the regressions show them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service import audit, catalog, store
from service.access import CallerOf
from service.control_tables import Annotation
from service.decisions import NotedRun, NotedScenario, Words
from service.history_tables import PointRow
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import CODE
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, MOST_ITEMS, PROBLEMS, Cursor, Id, Limit, ServiceOf
from service.shapes import Moment, Shape
from service.tables import Trial

router = APIRouter(tags=["annotations"], responses=PROBLEMS)


class NewAnnotation(Shape):
    """`at`: the moment that it is about (now, if left out)."""

    text: Words
    at: Moment | None = None
    commit: Annotated[str | None, Field(pattern=CODE, max_length=100)] = None
    scenario: NotedScenario = None
    run: NotedRun = None


class AnnotationShape(Shape):
    id: str
    at: datetime
    text: str
    by: str
    commit: str | None
    scenario: str | None
    run: str | None


class AnnotationList(Shape):
    items: list[AnnotationShape]
    next: str | None


@router.get("/annotations")
def list_annotations(
    service: ServiceOf,
    scenario: Annotated[str | None, Query(max_length=200, description="Of this scenario, and of none")] = None,
    limit: Limit = MOST_ITEMS,
    cursor: Cursor = None,
) -> AnnotationList:
    """Newest moment first."""
    with service.database.read() as session:
        found, following = about(session, scenario, limit=limit, cursor=cursor)
        return AnnotationList(items=[_shape(row) for row in found], next=following)


@router.post("/annotations", status_code=201, response_model=AnnotationShape, openapi_extra=IDEMPOTENT)
def annotate(service: ServiceOf, caller: CallerOf, request: Request, body: NewAnnotation) -> Response:
    """Say what is known of a commit, a scenario or a run: histories and pages show it."""
    with service.database.write() as session:

        def effect() -> Answer:
            if body.run is not None and store.find_run(session, body.run) is None:
                raise Problem(422, "invalid-request", f"run: there is no run {body.run!r}")
            if body.scenario is not None and not _is_known(session, body.scenario):
                detail = f"scenario: there is no scenario {body.scenario!r}, and no trial of one that is called so"
                raise Problem(422, "invalid-request", detail)
            row = Annotation(
                id=store.new_id("note"),
                at=body.at or store.now(),
                text=body.text,
                by=caller.name,
                commit=body.commit,
                scenario=body.scenario,
                run_id=body.run,
            )
            session.add(row)
            audit.record(session, caller, "annotation.create", row.id, detail={"text": body.text})
            return Answer(status=201, body=_shape(row), location="/api/v1/annotations")

        return once(session, request, body, effect)


@router.delete("/annotations/{annotation_id}", status_code=204)
def remove_annotation(service: ServiceOf, caller: CallerOf, annotation_id: Id) -> None:
    """What it said stays in the audit log."""
    with service.database.write() as session:
        if (row := session.get(Annotation, annotation_id)) is None:
            raise not_found("annotation", annotation_id)
        session.delete(row)
        audit.record(session, caller, "annotation.delete", row.id, detail={"text": row.text})


def about(
    session: Session, scenario: str | None, *, limit: int, cursor: str | None = None
) -> tuple[list[Annotation], str | None]:
    """A page of those of this scenario, and those of no scenario: newest first."""
    query = select(Annotation)
    if scenario is not None:
        query = query.where(or_(Annotation.scenario == scenario, Annotation.scenario.is_(None)))
    order = (Annotation.at, Annotation.id)
    return page(session, query, order, limit=limit, cursor=cursor, newest_first=True)


def _is_known(session: Session, scenario: str) -> bool:
    """It ships with PHOENIX, or was submitted or measured here."""
    tables = (Trial, PointRow)
    ran = any(session.scalar(select(table.scenario).where(table.scenario == scenario).limit(1)) for table in tables)
    return ran or scenario in catalog.scenarios()


def _shape(row: Annotation) -> AnnotationShape:
    return AnnotationShape(
        id=row.id, at=row.at, text=row.text, by=row.by, commit=row.commit, scenario=row.scenario, run=row.run_id
    )
