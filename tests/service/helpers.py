"""Hand-written trial directories, and an application without the thread that follows them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import event

from chaos.reading import Event
from chaos.scenario import CHECKS
from phoenix_core.events import EventWriter
from service.app import create_app
from service.context import Service
from service.database import Database
from service.settings import Settings

Json = dict[str, Any]

TINY: Json = {
    "name": "tiny",
    "workload": "gpt-tiny",
    "steps": 10,
    "seed": 7,
    "cluster": {"nodes": 2, "ranks_per_node": 1, "spares": 1},
}
MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The application, a client of it, and its insides; `tick` does what the thread would do."""

    app: FastAPI
    client: httpx.AsyncClient

    @property
    def service(self) -> Service:
        service = self.app.state.service
        assert isinstance(service, Service)
        return service

    def tick(self) -> None:
        self.service.executor.tick()

    async def get(self, path: str, **query: str | int) -> Json:
        answer = await self.client.get(f"/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        document: Json = answer.json()
        return document

    async def post(self, path: str, body: Json, **headers: str) -> httpx.Response:
        return await self.client.post(f"/api/v1{path}", json=body, headers=headers)

    async def submit(self, **changes: Any) -> Json:
        answer = await self.post("/runs", {"scenario": {**TINY, **changes}})
        assert answer.status_code == 202, answer.text
        run: Json = answer.json()
        return run

    async def started(self, **changes: Any) -> tuple[Json, Path]:
        """A running run and its trial directory, in which the test plays the trial."""
        run = await self.submit(**changes)
        self.tick()
        trials = (await self.get(f"/runs/{run['id']}/trials"))["items"]
        return await self.get(f"/runs/{run['id']}"), Path(trials[0]["directory"])

    async def until_ended(self, run: str) -> Json:
        """Follow the run until the process of its trial, which the test has ended, is seen to be gone."""
        deadline = time.monotonic() + 20.0
        while (state := await self.get(f"/runs/{run}"))["state"] in ("QUEUED", "RUNNING"):
            assert time.monotonic() < deadline, f"{run} does not end: {state}"
            self.tick()
            await asyncio.sleep(0.01)
        return state


def problem(answer: httpx.Response, status: int) -> Json:
    """The body of an error, of which every one has the same shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: Json = answer.json()
    assert {"type", "title", "status", "detail", "instance"} <= document.keys()
    assert document["status"] == status and document["detail"]
    return document


@asynccontextmanager
async def harness(settings: Settings) -> AsyncIterator[Harness]:
    app = create_app(settings, follow=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as client,
    ):
        yield Harness(app=app, client=client)


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """What is asked of the database inside of the block, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


class Script:
    """Writes the events of a job of two ranks and one spare, as the runtime and the injector would."""

    def __init__(self, directory: Path, part: str = "run") -> None:
        self.directory = directory
        self._writers: dict[str, EventWriter] = {}
        self._part = part
        self.at = 1_000_000_000_000

    def emit(self, file: str, kind: str, /, *, after_ms: float = 1, **fields: Any) -> Event:
        self.at += int(after_ms * MS)
        if file not in self._writers:
            self._writers[file] = EventWriter(self.directory / self._part / "events" / f"{file}.jsonl")
        return self._writers[file].emit(kind, at=self.at, **fields)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def begin(self) -> None:
        self.emit("injector", "trial_phase", part="run")
        self.emit("coordinator", "job_started", world_size=2, spares=1)
        for number in range(3):
            self.spawn(number)
        self.emit("w2", "spare_parked", worker="w2", node="n2")
        self.emit("coordinator", "world_formed", generation=0, ranks=["w0", "w1"], spares=["w2"], joining=[0, 1])

    def spawn(self, number: int) -> None:
        pid = 4_000_000 + number
        self.emit("agent", "worker_spawned", worker=f"w{number}", node=f"n{number}", pid=pid, start_ticks=1)

    def step(
        self, step: int, *, generation: int = 0, workers: tuple[str, ...] = ("w0", "w1"), loss: float = 2.0
    ) -> None:
        for rank, worker in enumerate(workers):
            at: dict[str, Any] = {"worker": worker, "rank": rank, "generation": generation, "step": step}
            self.emit(worker, "phase_entered", phase="forward", **at)
            self.emit(worker, "step_committed", duration_ns=5 * MS, loss=loss + rank, **at)

    def kill_rank_1(self, fault: str, *, step: int) -> None:
        """The fault falls in `step`; w2 takes the rank and `step` is executed again in generation 1."""
        self.emit("w0", "phase_entered", worker="w0", rank=0, generation=0, step=step, phase="forward")
        self.emit(
            "injector",
            "fault_injected",
            worker="w1",
            rank=1,
            fault=fault,
            kind="process_kill",
            pid=4_000_001,
            fidelity="real",
            trigger={"now": True},
        )
        self.emit("agent", "worker_exited", worker="w1", node="n1", pid=4_000_001, code=-9, after_ms=2)
        self.emit("coordinator", "failure_detected", worker="w1", rank=1, generation=1, cause="exit", after_ms=0)
        self.emit("coordinator", "spare_assigned", worker="w2", rank=1, generation=1)
        self.emit("coordinator", "world_formed", generation=1, ranks=["w0", "w2"], spares=[], joining=[1])
        self.emit("w0", "worker_quiesced", worker="w0", rank=0, generation=1, boundary=step, after_ms=3)
        self.emit("w2", "model_built", worker="w2", rank=1, generation=1, after_ms=20)
        for worker, rank in (("w0", 0), ("w2", 1)):
            self.emit(worker, "communicator_ready", worker=worker, rank=rank, generation=1, groups=1, after_ms=4)
        self.emit("w2", "state_restored", worker="w2", rank=1, generation=1, boundary=step, after_ms=5)
        self.emit("coordinator", "generation_resumed", generation=1, step=step, steps=10)

    def result(self, verdict: str = "PASS", *, error: str | None = None, recoveries: list[Json] | None = None) -> None:
        document = {
            "verdict": verdict,
            "checks": {name: {"verdict": verdict, "detail": "said by the test"} for name in CHECKS},
            "recoveries": recoveries or [],
            "steps_committed": 10,
            "error": error,
            "finished_at": "2026-11-29T00:00:00.000Z",
        }
        (self.directory / "result.json").write_text(json.dumps(document))
