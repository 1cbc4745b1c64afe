"""For whoever watches the service: does it live, and can it work."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from service.problems import Problem
from service.routes.common import PROBLEMS, ServiceOf
from service.shapes import Health

router = APIRouter(tags=["health"], responses=PROBLEMS)


@router.get("/healthz")
def healthz() -> Health:
    return Health(status="ok")


@router.get("/readyz")
def readyz(service: ServiceOf) -> Health:
    """503 while the database does not answer or nobody follows the trials."""
    try:
        with service.database.read() as session:
            session.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        raise Problem(503, "database-down", f"the database does not answer: {type(error).__name__}") from error
    if not service.executor.following:
        raise Problem(503, "not-following", "the thread that follows the trials is not running")
    return Health(status="ok")
