"""The REST API as the pages need it, with the data of a believable run; it remembers what was posted to it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.browser import fake_history, fake_service

Json = dict[str, Any]

PHASES = ("detect", "quiesce", "replace", "reconstruct", "restore", "recompute")
KILL_S = (0.0021, 0.0064, 0.1182, 0.0217, 0.0389, 0.2613)
STOP_S = (1.6124, 0.0071, 0.1095, 0.0243, 0.0402, 0.2544)
ALL_PASS = {"fired": "PASS", "recovered": "PASS", "twin": "PASS", "agreement": "PASS", "no_leak": "PASS"}
KINDS: list[Json] = [
    {
        "kind": "process_kill",
        "title": "Kill process",
        "description": "SIGKILL: the process ends at once, without a chance to say so.",
        "lasting": False,
        "fidelity": "real",
        "scope": "process",
        "quiet": False,
        "supported": True,
        "unsupported_reason": None,
        "params_schema": {"type": "object", "properties": {}, "additionalProperties": False},
        "targets": ["rank", "random_rank", "spare"],
        "triggers": ["now", "at_step", "after_s", "phase"],
    },
    {
        "kind": "process_stop",
        "title": "Freeze process",
        "description": "SIGSTOP: the process stays, but does nothing more (a hang).",
        "lasting": True,
        "fidelity": "real",
        "scope": "process",
        "quiet": False,
        "supported": True,
        "unsupported_reason": None,
        "params_schema": {
            "type": "object",
            "properties": {
                "ttl_s": {
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 3600,
                    "default": 60,
                    "title": "Seconds until it is resumed",
                }
            },
        },
        "targets": ["rank", "random_rank"],
        "triggers": ["now", "at_step", "after_s", "phase"],
    },
]
WORKLOADS: list[Json] = [{"name": "gpt", "phases": ["forward", "backward", "gradient_sync", "optimizer"]}]


def problem(status: int, title: str, detail: str, **more: object) -> JSONResponse:
    body = {"type": "urn:phoenix:problem:test", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, media_type="application/problem+json")


def iso(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()


def run_json(run_id: str, **changes: object) -> Json:
    run: Json = {
        "id": run_id,
        "scenario": "demo",
        "workload": "gpt",
        "runtime": "phoenix",
        "cluster": {"nodes": 4, "ranks_per_node": 1, "spares": 1},
        "seed": 20261129,
        "steps": 200,
        "state": "RUNNING",
        "verdict": None,
        "part": "run",
        "step": 129,
        "error": None,
        "commit": "9f2c41d7a0b35e86c1d4f7720a9be5c3d8e6f014",
        "dirty": False,
        "created_at": iso(95),
        "started_at": iso(92),
        "finished_at": None,
        "trials": [f"t-{run_id}"],
        "recoveries": 2,
        "reason": None,
        "requested_by": "ada",
        "suite": None,
        "schedule": None,
        "revision": None,
        "service": "svc-1",
        "progress": {"done": 0, "total": 1},
        "seeded": False,
        "archived": False,
    }
    return {**run, **changes}


def recovery_json(fault: str, kind: str, rank: int, worker: str, lengths: tuple[float, ...], **more: object) -> Json:
    recovery: Json = {
        "fault": {"id": fault, "kind": kind, "trigger": {"at_step": 40}},
        "target": {"rank": rank, "worker": worker},
        "blamed": {"rank": rank, "worker": worker, "cause": "exited" if kind == "process_kill" else "no heartbeat"},
        "recovery_s": sum(lengths),
        "downtime_s": sum(lengths[:-1]),
        "phases": dict(zip(PHASES, lengths, strict=True)),
        "lost_steps": 1,
        "generation": 2,
        "resume_step": 40,
        "replacement": None,
        "checks": dict(ALL_PASS),
    }
    return {**recovery, **more}


def with_bars(recovery: Json, started_s: float) -> Json:
    """The timeline form: phases in a row for the coordinator, and what each rank did."""
    bars: list[Json] = []

    def add(row: str, label: str, start: float, end: float) -> None:
        bars.append({"row": row, "label": label, "start_s": started_s + start, "end_s": started_s + end})

    at, ends = 0.0, {}
    for name in PHASES:
        add("coordinator", name, at, at + recovery["phases"][name])
        at += recovery["phases"][name]
        ends[name] = at
    target = recovery["target"]["rank"]
    for rank in range(4):
        row, skew = f"rank {rank}", 0.0012 * rank
        if rank == target:
            add(row, "replace", ends["detect"] + 0.001, ends["replace"])
        else:
            add(row, "quiesce", ends["detect"], ends["quiesce"] - skew)
        add(row, "reconstruct", ends["replace"] if rank == target else ends["quiesce"], ends["reconstruct"] - skew)
        restored = ends["restore"] if rank == target else ends["reconstruct"] + 0.004
        add(row, "restore", ends["reconstruct"] - skew, restored)
        add(row, "recompute", restored, ends["recompute"] - skew)
    instants = [
        {"row": f"rank {target}", "label": "fault_injected", "at_s": started_s},
        {"row": "coordinator", "label": "failure_detected", "at_s": started_s + ends["detect"]},
        {"row": "coordinator", "label": "generation_resumed", "at_s": started_s + ends["restore"]},
    ]
    return {**recovery, "started_s": started_s, "ended_s": started_s + at, "bars": bars, "instants": instants}


def step_json(step: int) -> Json:
    """A loss that falls as such losses do, and a clock that stands still during the two recoveries."""
    stalls = (0.45 if step >= 40 else 0.0) + (2.05 if step >= 90 else 0.0)
    wiggle = 0.05 * math.sin(step * 1.7) + 0.03 * math.sin(step * 0.61)
    loss = 2.35 + 3.1 * math.exp(-step / 28) + wiggle
    generation = 1 + (step >= 40) + (step >= 90)
    at = 2.0 + 0.26 * step + 0.01 * math.sin(step) + stalls
    return {
        "step": step,
        "loss": loss,
        "duration_s": 0.26 + 0.01 * math.sin(step),
        "at_s": at,
        "generation": generation,
    }


class FakeApi:
    """State that a test may change; `posted` keeps (path, headers, body) of every POST."""

    def __init__(self) -> None:
        self.runs = [
            run_json("r3"),
            run_json("r2", state="FINISHED", verdict="PASS", part="done", step=199, created_at=iso(4000),
                     started_at=iso(3990), finished_at=iso(3850)),
            run_json("r1", state="FINISHED", verdict="FAIL", part="done", step=199, scenario="kill-in-backward",
                     created_at=iso(90000), started_at=iso(89990), finished_at=iso(89850), dirty=True),
            run_json("r0", state="ABANDONED", verdict="UNKNOWN", part=None, step=17, scenario="freeze-twice",
                     created_at=iso(200000), started_at=iso(199990), finished_at=iso(199000),
                     error="The trial process ended without a result (killed?)."),
        ]  # fmt: skip
        self.steps = [step_json(step) for step in range(130)]
        self.faults: list[Json] = [
            self.fault("f1", "process_kill", 2, 40, 12.41, "w2", 41007, "the demo's first fault"),
            self.fault("f2", "process_stop", 1, 90, 25.87, "w1", 41003, ""),
        ]
        kill = recovery_json("f1", "process_kill", 2, "w2", KILL_S)
        stop = recovery_json("f2", "process_stop", 1, "w1", STOP_S, generation=3, resume_step=90, lost_steps=0)
        self.recoveries = [with_bars(kill, 12.41), with_bars(stop, 25.87)]
        for fault, recovery in zip(self.faults, (kill, stop), strict=True):
            fault["recovery"] = recovery
        self.workers: list[Json] = [
            {"worker": "w0", "node": "n0", "pid": 41001, "rank": 0, "state": "active", "since_s": 1.2},
            {"worker": "w5", "node": "n2", "pid": 41205, "rank": 1, "state": "active", "since_s": 27.5},
            {"worker": "w4", "node": "n4", "pid": 41011, "rank": 2, "state": "active", "since_s": 12.5},
            {"worker": "w3", "node": "n3", "pid": 41009, "rank": 3, "state": "active", "since_s": 1.2},
            {"worker": "w6", "node": "n1", "pid": 41377, "rank": None, "state": "spare", "since_s": 31.8},
            {"worker": "w2", "node": "n2", "pid": 41007, "rank": None, "state": "exited", "since_s": 12.4},
            {"worker": "w1", "node": "n1", "pid": 41003, "rank": None, "state": "failed", "since_s": 27.4},
        ]
        self.scenarios = [{"name": "demo"}, {"name": "kill-in-backward"}]
        self.kinds = [dict(kind) for kind in KINDS]
        self.lists = fake_service.lists()
        self.session: Json = dict(fake_service.EVERYBODY)
        self.peers: Json | None = fake_service.peers()
        self.beside: Json = fake_service.beside()
        self.queue: Json = {"queued": 0, "running": 1, "halted": None}
        self.series = fake_history.series()
        self.machine_changed = True
        self.breaks: list[Json] | None = None
        self.remarks: list[Json] | None = None
        self.forbidden: set[str] = set()
        self.broken: dict[str, JSONResponse] = {}
        self.posted: list[tuple[str, dict[str, str], Json]] = []
        self.refusal: JSONResponse | None = None
        self.streams: set[asyncio.Queue[Json | None]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that serves the streams; None until one is open."""

    @staticmethod
    def fault(id: str, kind: str, rank: int, step: int, at: float, worker: str, pid: int, reason: str) -> Json:
        return {
            "id": id, "run": "r3", "trial": "t-r3", "kind": kind, "target": {"rank": rank},
            "trigger": {"at_step": step}, "params": {},
            "reason": reason or None, "state": "INJECTED", "detail": None, "requested_at": iso(90), "injected_at_s": at,
            "injected": {"worker": worker, "rank": rank, "pid": pid, "fidelity": "real"}, "recovery": None,
            "ttl_s": None, "expires_at_s": None, "revert_requested": False, "reverted_at_s": None,
            "requested_by": "ada",
        }  # fmt: skip

    def find(self, run_id: str) -> Json | None:
        return next((run for run in self.runs if run["id"] == run_id), None)

    def trial(self, run: Json) -> Json:
        ended = run["state"] != "RUNNING"
        names = ALL_PASS if run["verdict"] == "PASS" else {**ALL_PASS, "twin": "FAIL"}
        details = {"twin": "800 losses and the final digest equal" if run["verdict"] == "PASS" else
                   "step 41 of rank 2: 4.183029174804688 here, 4.183029651641846 in the twin"}  # fmt: skip
        checks = {name: {"verdict": verdict, "detail": details.get(name, "")} for name, verdict in names.items()}
        plain = [{k: v for k, v in r.items() if k not in ("bars", "instants")} for r in self.recoveries]
        return {
            "id": f"t-{run['id']}", "run": run["id"], "number": 1, "scenario": run["scenario"],
            "runtime": run["runtime"], "seed": run["seed"], "steps": run["steps"], "commit": run["commit"],
            "dirty": run["dirty"], "service": "svc-1", "state": run["state"], "verdict": run["verdict"],
            "checks": checks if ended else {}, "recoveries": plain, "error": run["error"],
            "directory": f"/var/lib/phoenix/trials/t-{run['id']}", "started_at": run["started_at"],
            "finished_at": run["finished_at"],
        }  # fmt: skip

    def push(self, event: Json | None) -> None:
        """Send an event to every open stream, from any thread; None closes them."""
        if self.loop is not None:
            for stream in list(self.streams):
                self.loop.call_soon_threadsafe(stream.put_nowait, event)

    # --- the routes ---

    async def list_runs(self, request: Request) -> Response:
        if request.query_params.get("host") == "bench-2":
            return JSONResponse({"items": [], "next": None})
        wanted = {name: request.query_params.get(name) for name in ("state", "verdict", "scenario", "suite")}
        found = [run for run in self.runs if all(value in (None, run[name]) for name, value in wanted.items())]
        since = request.query_params.get("since")
        found = [run for run in found if since is None or run["created_at"] >= since]
        return JSONResponse({"items": found, "next": None})

    async def one_run(self, request: Request) -> Response:
        run = self.find(request.path_params["id"])
        if run is None:
            return problem(404, "Not Found", f"there is no run {request.path_params['id']!r}")
        part = request.path_params.get("part")
        if part is None:
            return JSONResponse(run)
        if part == "workers":
            return JSONResponse({"items": self.workers, "generation": 3})
        if part == "faults":
            return JSONResponse({"items": self.faults})
        if part == "trials":
            return JSONResponse({"items": [self.trial(run)]})
        return self.page_of_steps(request) if part == "steps" else self.stream()

    def page_of_steps(self, request: Request) -> Response:
        after, limit = int(request.query_params.get("after", -1)), int(request.query_params.get("limit", 1000))
        items = [step for step in self.steps if step["step"] > after]
        more = items[limit - 1]["step"] if len(items) > limit else None
        return JSONResponse({"items": items[:limit], "next": more})

    def stream(self) -> Response:
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        self.streams.add(queue)
        self.loop = asyncio.get_running_loop()

        async def lines() -> AsyncIterator[str]:
            try:
                yield ": hello\n\n"
                while (event := await queue.get()) is not None:
                    yield f"id: {event['offset']}\ndata: {json.dumps(event)}\n\n"
            finally:
                self.streams.discard(queue)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def one_trial(self, request: Request) -> Response:
        run = self.find(request.path_params["id"].removeprefix("t-"))
        if run is None:
            return problem(404, "Not Found", f"there is no trial {request.path_params['id']!r}")
        if request.path_params.get("part") == "timeline":
            return JSONResponse({"trial": f"t-{run['id']}", "run": run["id"], "recoveries": self.recoveries})
        if request.path_params.get("part") == "baseline":
            return JSONResponse(self.beside)
        return JSONResponse(self.trial(run))

    async def listed(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "session":
            return JSONResponse(self.session)
        if self.session["role"] is None:
            return problem(401, "Unauthorized", "sign in with a token")
        if name in self.forbidden:
            return problem(403, "Forbidden", "this needs the role admin")
        if name in self.broken:
            return self.broken[name]
        if name == "queue":
            return JSONResponse(self.queue)
        if name == "peers" and self.peers is not None:
            return JSONResponse(self.peers)
        if name == "peers/plot":
            return Response('<svg xmlns="http://www.w3.org/2000/svg" style="color:red"/>', media_type="image/svg+xml")
        items = {"scenarios": self.scenarios, "fault-kinds": self.kinds, "workloads": WORKLOADS, **self.lists}.get(name)
        if items is None:
            return problem(404, "Not Found", f"nothing is listed at {name}")
        if request.query_params.get("active"):
            items = [item for item in items if item["active"]]
        if name == "triage":
            return JSONResponse({"items": items, "next": None, "days": 90, "decided": 4, "false_alarms": 1})
        whole = name in ("fault-kinds", "suites", "workloads", "scenarios")
        return JSONResponse({"items": items} if whole else {"items": items, "next": None})

    async def history(self, request: Request) -> Response:
        query = request.query_params
        if self.session["role"] is None:
            return problem(401, "Unauthorized", "sign in with a token")
        if request.url.path.endswith("series"):
            return JSONResponse(self.series)
        if query["scenario"] not in {item["scenario"] for item in self.series["items"]}:
            return problem(404, "Not Found", f"there is no history of {query['scenario']!r}")
        found = fake_history.history(query["scenario"], query["metric"], int(query.get("limit", 200)))
        if query.get("branch") not in (None, *fake_history.BRANCHES):
            return problem(404, "Not Found", f"there is no branch {query['branch']!r}; there are: main")
        if query.get("branch") == "feature/faster" and query["scenario"] == "kill-one":
            return problem(404, "Not Found", "there is no finished trial of scenario 'kill-one' on this branch")
        if query.get("branch") == "feature/faster":
            return JSONResponse(fake_history.newest(found, fake_history.BRANCHES["feature/faster"]))
        if query.get("fingerprint") == fake_history.FINGERPRINTS[1]:
            return JSONResponse(fake_history.newest(found, 8))
        if query.get("fingerprint") not in (None, *fake_history.FINGERPRINTS):
            said = f"there is no finished trial of scenario {query['scenario']!r} on machine {query['fingerprint']!r}"
            return problem(404, "Not Found", said)
        breaks = self.breaks if self.breaks is not None else found["breaks"] if self.machine_changed else []
        remarks = found["annotations"] if self.remarks is None else self.remarks
        return JSONResponse({**found, "breaks": breaks, "annotations": remarks})

    async def comparisons(self, request: Request) -> Response:
        base, head = request.query_params["base"], request.query_params["head"]
        if "nothing" in (base, head):
            return problem(404, "Not Found", "no trial of 'nothing' is known; there are: main")
        return JSONResponse(fake_history.comparison(base, head))

    async def post(self, request: Request) -> Response:
        body = await request.json()
        self.posted.append((request.url.path, dict(request.headers), body))
        if self.refusal is not None:
            return self.refusal
        if request.url.path.endswith("/faults") and body["dry_run"]:
            would = {"text": "would kill w4 (rank 2, pid 41011)", "worker": "w4", "rank": 2, "pid": 41011}
            return JSONResponse({"dry_run": True, "kind": body["kind"], "would": would})
        if request.url.path.endswith("/faults"):
            return JSONResponse({"id": "f3", "state": "REQUESTED", **body}, 202)
        if request.url.path.endswith("/halts") and body.get("dry_run"):
            hit = {"run": "r3", "fault": "f2", "kind": "process_stop", "worker": "w1"}
            waits = {"run": "r3", "fault": "f3", "kind": "process_kill"}
            return JSONResponse({"dry_run": True, "would": {"runs": ["r3"], "reverts": [hit], "withdraws": [waits]}})
        if request.url.path.endswith("/tokens"):
            return JSONResponse({"id": "tok-9", "token": "phx_shown_once", **body}, 201)
        return JSONResponse(run_json("r3"), 202)

    def app(self) -> Starlette:
        runs = "/api/v1/runs"
        return Starlette(
            routes=[
                Route(runs, self.list_runs, methods=["GET"]),
                Route(runs, self.post, methods=["POST"]),
                Route(runs + "/{id}", self.one_run, methods=["GET"]),
                Route(runs + "/{id}/{part}", self.one_run, methods=["GET"]),
                Route(runs + "/{id}/{part}", self.post, methods=["POST"]),
                Route("/api/v1/trials/{id}", self.one_trial),
                Route("/api/v1/trials/{id}/{part}", self.one_trial),
                Route("/api/v1/comparisons", self.comparisons),
                Route("/api/v1/history", self.history),
                Route("/api/v1/history/series", self.history),
                Route("/api/v1/{name:path}", self.listed, methods=["GET"]),
                Route("/api/v1/{name:path}", self.post, methods=["POST"]),
            ]
        )
