"""Requests made from the service's own OpenAPI document, right and wrong: no 5xx, no answer beside the schema.

A few for each operation in `make test`, many in `make soak`. A failure prints the request as a line of curl.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.app import create_app
from service.client import Client
from service.context import Service
from service.settings import Settings
from tests.service.helpers import TINY
from tests.support import wait_until

CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance, status_code_conformance]
# How long a machine with other work may take for an answer: what is slow is no violation.
PATIENCE_S = 120
# An event stream of a run that goes on goes on as well.
ENDLESS = "/api/v1/runs/{run_id}/stream"
# Signing in is limited on purpose, a token that is made locks out whoever has none, and nobody follows trials here.
APART = ("/api/v1/session", "/api/v1/tokens", "/readyz")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A service that answers, and ids of things that it has, by the name of the path parameter."""

    url: str
    schema: Any
    known: Mapping[str, str]


@pytest.fixture
def target(settings: Settings) -> Iterator[Target]:
    """With a run that runs and one that waits, so that there is something to find."""
    app = create_app(settings, follow=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, "the server")
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Target(url=url, schema=app.openapi(), known=_something(url, app.state.service))
        finally:
            server.should_exit = True
            thread.join()


def _something(url: str, service: Service) -> dict[str, str]:
    with Client(url) as client:
        runs = [client.submit(scenario=TINY) for _ in range(2)]
        service.executor.tick()
        cron = {"name": "known", "kind": "cron", "cron": "@daily", "run": {"scenario": TINY}}
        return {
            "run_id": runs[0]["id"],
            "trial_id": runs[0]["trials"][0],
            "schedule_id": client.create_schedule(cron)["id"],
            "webhook_id": client.create_webhook("http://127.0.0.1:9/")["id"],
            "name": "demo",
        }


def test_a_few_requests_of_each_kind(target: Target) -> None:
    fuzz(target, examples=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_requests_of_each_kind(target: Target) -> None:
    fuzz(target, examples=100)


def fuzz(target: Target, *, examples: int) -> None:
    schema = schemathesis.openapi.from_dict(target.schema)
    start = int(os.environ.get("PHOENIX_FUZZ_SEED", "20261130"))
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path.startswith(APART):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(start)
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                # Of two ids one is known, so that what lies behind a 404 is seen as well.
                if case.operation.path != ENDLESS and len(repr(case.body)) % 2 == 0:
                    case.path_parameters = {
                        name: target.known.get(name, value) for name, value in (case.path_parameters or {}).items()
                    }
                answer = case.call(base_url=target.url, timeout=PATIENCE_S)
                case.validate_response(answer, checks=CHECKS)

            try:
                one()
            except Unsatisfiable:
                continue  # It takes nothing that could be wrong.
            except Exception as error:
                error.add_note(f"seed {start}, {operation.method.upper()} {operation.path}, {mode}")
                raise
