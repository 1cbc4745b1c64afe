"""The REST API as an ASGI application. `service.server` puts the pages beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from service import problems
from service.context import Service
from service.guard import LocalOnly, SmallBodies, only_json, only_known_parameters
from service.routes import catalog, comparisons, events, faults, health, history, runs, trials
from service.settings import Settings

PREFIX = "/api/v1"
DESCRIPTION = (
    "Runs, trials and faults of PHOENIX. Errors are RFC 9457 problem documents; every POST honours Idempotency-Key."
)


def create_app(settings: Settings, *, follow: bool = True) -> FastAPI:
    """`follow`: start and follow trials in a thread; without it nothing happens but what is asked for."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings)
        app.state.service = service
        if follow:
            service.executor.start()
        try:
            yield
        finally:
            service.close()

    # The default pages of documentation load their scripts from outside.
    app = FastAPI(
        title="PHOENIX", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.add_middleware(SmallBodies)
    app.add_middleware(LocalOnly)
    problems.install(app)
    for module in (runs, trials, faults, events, catalog, comparisons, history):
        app.include_router(
            module.router, prefix=PREFIX, dependencies=[Depends(only_known_parameters), Depends(only_json)]
        )
    app.include_router(health.router)
    return app
