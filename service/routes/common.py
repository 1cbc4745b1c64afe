"""What all routes share: the service of the request, and resources by the id in the path."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import Depends, Path, Query, Request
from sqlalchemy.orm import Session

from service import store
from service.context import Service
from service.problems import MEDIA_TYPE, not_found
from service.tables import Run, Trial

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was wrong and what to do, for people."},
        "instance": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    for status, description in (("4XX", "The request cannot be served."), ("5XX", "The service failed."))
}
IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "A request sent again with the same key gets the first answer and has no second effect.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
    ]
}

IF_UNCHANGED: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": True,
            "description": "The ETag that GET answered, so that no change in between is lost; `*`: whatever is there.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
    ]
}


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)


async def _service(request: Request) -> Service:
    """What only looks something up is asynchronous: a thread for it would cost more than all of the rest."""
    return service_of(request)


ServiceOf = Annotated[Service, Depends(_service)]
Id = Annotated[str, Path(max_length=64)]
OneTrial = Annotated[
    str | None, Query(max_length=64, description="Of this trial (else: the one that runs now, else the last)")
]
MOST_ITEMS = 200
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="At most so many items")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` of the page before")]


def existing_run(session: Session, run: str) -> Run:
    """Raises Problem 404."""
    if (found := store.find_run(session, run)) is None:
        raise not_found("run", run)
    return found


def chosen_trial(session: Session, run: Run, trial: str | None) -> Trial:
    """The one that is named, else the one that runs now, else the last. Raises Problem 404."""
    if trial is None:
        return store.shown_trial(session, run.id)
    found = session.get(Trial, trial)
    if found is None or found.run_id != run.id:
        raise not_found(f"trial of {run.id}", trial)
    return found


def existing_trial(session: Session, trial: str) -> Trial:
    """Raises Problem 404."""
    if (found := session.get(Trial, trial)) is None:
        raise not_found("trial", trial)
    return found
