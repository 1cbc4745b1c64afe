"""The REST API as an ASGI application. `service.server` puts the pages beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from service import problems
from service.access import COOKIE, for_admins, for_operators, for_readers
from service.context import Service
from service.etags import ETags
from service.guard import LocalOnly, SafeAnswers, SmallBodies, only_json, only_known_parameters, only_text
from service.metrics import Measured, Metrics
from service.routes import (
    audit,
    baselines,
    catalog,
    comparisons,
    docs,
    events,
    faults,
    halts,
    health,
    history,
    notes,
    peers,
    reports,
    reverts,
    runs,
    schedules,
    session,
    tokens,
    triage,
    trials,
    webhooks,
)
from service.settings import Settings

PREFIX = "/api/v1"
# Who may use what: a viewer may read what an operator may change.
ROUTERS: Final = (
    (
        (
            runs,
            trials,
            faults,
            reverts,
            halts,
            schedules,
            events,
            catalog,
            baselines,
            comparisons,
            history,
            reports,
            triage,
            notes,
            peers,
        ),
        (for_operators,),
    ),
    ((audit, tokens, webhooks), (for_admins,)),
    ((session,), ()),
)
COMMON: Final = tuple(Depends(check) for check in (only_text, only_known_parameters, only_json))
DESCRIPTION = (
    "Runs, trials and faults of PHOENIX. Errors are RFC 9457 problem documents; every POST honours Idempotency-Key."
)


def create_app(settings: Settings, *, follow: bool = True) -> FastAPI:
    """`follow`: start and follow trials in a thread; without it nothing happens but what is asked for."""

    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings, metrics)
        app.state.service = service
        if follow:
            service.start()
        try:
            yield
        finally:
            service.close()

    # The default pages of documentation load their scripts from outside.
    app = FastAPI(
        title="PHOENIX", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.add_middleware(SmallBodies)
    app.add_middleware(LocalOnly, names=settings.names)
    app.add_middleware(ETags)
    app.add_middleware(SafeAnswers)
    app.add_middleware(Measured, metrics=metrics)
    problems.install(app)
    app.include_router(health.workers_router, prefix=PREFIX, dependencies=[Depends(for_operators), *COMMON])
    for routers, doors in ROUTERS:
        checks = [*(Depends(door) for door in doors), *COMMON]
        for module in routers:
            app.include_router(module.router, prefix=PREFIX, dependencies=checks)
    app.include_router(health.router)
    app.include_router(health.metrics_router, dependencies=[Depends(for_readers)])
    app.include_router(docs.router, dependencies=[Depends(only_text)])
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, which also says how to show a token."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        schemes = {
            "token": {"type": "http", "scheme": "bearer", "description": "phoenix tokens create NAME"},
            "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "POST /api/v1/session"},
        }
        document.setdefault("components", {})["securitySchemes"] = schemes
        document["security"] = [{"token": []}, {"session": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
