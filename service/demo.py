"""`phoenix demo`: the whole product once, through its public REST API.

Starts the service, submits a training run, kills one rank and freezes another while it trains,
waits for the comparison with the undisturbed run, and reports. Whatever happens, nothing that it
started is left running, unless `--keep` asks for the service.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from chaos.errors import InvalidScenario
from chaos.files import check_files
from chaos.verdict import Verdict, worst
from service import catalog
from service.background import BackgroundService, StartError
from service.client import Client, ClientError
from service.demo_view import Scene, View, fault_line, healed, view_for
from service.files import trouble_with
from service.report import document, recovery_table, verdict_text
from service.settings import DEFAULT_PORT, LOOPBACK

Json = dict[str, Any]

SCENARIO = "demo"
PASS, USAGE, INTERRUPTED = 0, 2, 130
EXIT_OF = {Verdict.PASS: PASS, Verdict.FAIL: 1, Verdict.UNKNOWN: 3}
LOOK_S = 0.5
# Let a few steps pass first, so that the loss curve shows where the fault fell.
STEPS_BEFORE_FAULT = 5
CANCEL_S = 60.0
ENDED = ("FINISHED", "CANCELLED", "ABANDONED")
# For lines that are copied: no colours in their middle, no break that the terminal did not make.
_AS_IS: Mapping[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


@dataclass(frozen=True, kw_only=True)
class Options:
    """As on the command line. `scenario` replaces the one that ships with PHOENIX (for tests)."""

    keep: bool
    as_json: bool
    data: Path | None
    port: int
    directory: Path
    scenario: Mapping[str, object] | None = None

    @property
    def serve_command(self) -> str:
        """What serves the run once the demo's own service has ended; on a port that is known now, so never 0."""
        port = f" --port {self.port}" if self.port not in (0, DEFAULT_PORT) else ""
        return f"phoenix serve --dir {shlex.quote(str(self.directory))}{port}"

    @property
    def later_url(self) -> str:
        """Where `serve_command` serves."""
        return f"http://{LOOPBACK}:{self.port or DEFAULT_PORT}"


@dataclass(frozen=True, kw_only=True)
class PlannedHit:
    kind: str
    rank: int
    reason: str


HITS = (
    PlannedHit(kind="process_kill", rank=1, reason="demo: a process dies (SIGKILL)"),
    PlannedHit(kind="process_stop", rank=2, reason="demo: a process hangs (SIGSTOP)"),
)


class _Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


def run_demo(options: Options) -> int:
    """The exit code: 0 only if every check of every recovery passed."""
    if trouble := _trouble(options):
        return _usage(trouble)
    files = [options.data.absolute()] if options.data else []
    with _interruptible():
        service: BackgroundService | None = None
        stay = False
        try:
            service = BackgroundService(options.directory, options.port, keep=options.keep, files=files)
            url = service.wait_ready()
            code = _with_service(options, url, service.secret)
            stay = options.keep
            if stay and not options.as_json:
                print(f"The service stays at {url}; end it with: kill {service.pid}")
        except StartError as error:
            return _usage(str(error))
        except _Interrupted:
            print("phoenix: interrupted; everything that the demo started has been ended", file=sys.stderr)
            return INTERRUPTED
        finally:
            if service is not None:
                service.leave() if stay else service.stop()
        return code


def _trouble(options: Options) -> str:
    """Why this demo cannot be run, found out before anything is started; empty if nothing speaks against it."""
    if options.data is not None:
        try:
            check_files(catalog.scenario_named(SCENARIO).job, {"data": str(options.data)})
        except InvalidScenario as error:
            return f"--data: {error.reason}"
    return trouble_with(options.directory)


def _with_service(options: Options, url: str, secret: str) -> int:
    view = view_for(as_json=options.as_json)
    run: Json = {}
    with Client(url, token=secret) as client:
        try:
            run = _submit(client, options)
            view.say(f"PHOENIX demo: run {run['id']} at {url}/runs/{run['id']}")
            _Conductor(client, run["id"], view).conduct()
            run, recoveries = _result(client, run["id"])
        except ClientError as error:
            view.close()
            print(f"phoenix: {error}", file=sys.stderr)
            return EXIT_OF[Verdict.UNKNOWN]
        except _Interrupted:
            view.close()
            if run:
                _cancel(client, run["id"])
            raise
        finally:
            view.close()
    return _report(options, f"{url if options.keep else options.later_url}/runs/{run['id']}", run, recoveries)


def _submit(client: Client, options: Options) -> Json:
    """A scenario without faults of its own: they come over REST."""
    scenario = {**(options.scenario or client.get(f"/scenarios/{SCENARIO}")), "faults": []}
    if options.data is not None:
        chosen = scenario.get("options")
        scenario["options"] = {**(chosen if isinstance(chosen, dict) else {}), "data": str(options.data.absolute())}
    return client.post("/runs", {"scenario": scenario})


class _Conductor:
    """Drives one run over REST and shows it. Asks little: the training has the same two cores."""

    def __init__(self, client: Client, run: str, view: View) -> None:
        self._client = client
        self._run = run
        self._view = view
        self._looks = 0
        self._offset = 0
        self._last = Scene(run={}, workers=[], faults=[], loss=None, twin_step=None)

    def conduct(self) -> None:
        """One fault after another, each once the job is well again; then wait for the end."""
        since = 0
        for hit in HITS:
            if self._until(_ready_for_fault(since)).run["state"] in ENDED:
                return
            try:
                fault = self._hit(hit)
            except ClientError as error:
                if error.status != 409:
                    raise
                # The run ended, or lost its spare, between the look and the request. Fewer recoveries: no PASS.
                self._view.say(f"  {hit.kind} refused: {error}")
                continue
            self._view.say(f"  {hit.kind} requested for rank {hit.rank}")
            scene = self._until(_healed(fault["id"]))
            found = _fault(scene, fault["id"])
            self._view.say(f"  {fault_line(found)}" if healed(found) else f"  {hit.kind}: not healed")
            since = (scene.run["step"] or 0) + 1
        self._until(lambda scene: False)

    def _hit(self, hit: PlannedHit) -> Json:
        request = {
            "kind": hit.kind,
            "target": {"rank": hit.rank},
            "trigger": {"now": True},
            "params": {},
            "reason": hit.reason,
        }
        return self._client.post(f"/runs/{self._run}/faults", request)

    def _until(self, reached: Callable[[Scene], bool]) -> Scene:
        """Look and show until `reached`, or until the run has ended. The run's own time limit bounds it."""
        while True:
            scene = self._last = self._look()
            self._view.show(scene)
            if scene.run["state"] in ENDED or reached(scene):
                return scene
            time.sleep(LOOK_S)

    def _look(self) -> Scene:
        """Workers change seldom and a loss belongs to a step: both are asked for only now and then."""
        run = self._client.get(f"/runs/{self._run}")
        workers, loss = self._last.workers, self._last.loss
        if self._looks % 2 == 0 and run["part"] in (None, "run"):
            workers = self._client.get(f"/runs/{self._run}/workers")["items"]
        if run["step"] is not None and run["step"] != self._last.run.get("step"):
            steps = self._client.get(f"/runs/{self._run}/steps", after=run["step"] - 1, limit=1)["items"]
            loss = steps[0]["loss"] if steps else loss
        self._looks += 1
        faults = self._client.get(f"/runs/{self._run}/faults")["items"]
        twin = self._twin_step() if run["part"] == "twin" else self._last.twin_step
        return Scene(run=run, workers=workers, faults=faults, loss=loss, twin_step=twin)

    def _twin_step(self) -> int | None:
        """How far the undisturbed run is; a run's own step is that of the disturbed one."""
        page = self._client.get(f"/runs/{self._run}/events", after=self._offset, limit=5000, kind="step_committed")
        self._offset = page["next"]
        steps = [event["step"] for event in page["items"] if event["part"] == "twin"]
        return max([*steps, *([] if self._last.twin_step is None else [self._last.twin_step])], default=None)


def _ready_for_fault(since: int) -> Callable[[Scene], bool]:
    def ready(scene: Scene) -> bool:
        parked = any(worker["state"] == "spare" for worker in scene.workers)
        return parked and (scene.run["step"] or 0) >= since + STEPS_BEFORE_FAULT

    return ready


def _healed(fault: str) -> Callable[[Scene], bool]:
    def done(scene: Scene) -> bool:
        found = _fault(scene, fault)
        return healed(found) or found["state"] == "MISSED"

    return done


def _fault(scene: Scene, fault: str) -> Json:
    return next(item for item in scene.faults if item["id"] == fault)


def _result(client: Client, run: str) -> tuple[Json, list[Json]]:
    trials = client.get(f"/runs/{run}/trials")["items"]
    return client.get(f"/runs/{run}"), trials[-1]["recoveries"] if trials else []


def _report(options: Options, url: str, run: Json, recoveries: list[Json]) -> int:
    verdict = judge(run, recoveries)
    if options.as_json:
        print(json.dumps(document(verdict, url, recoveries)))
        return EXIT_OF[verdict]
    console = Console()
    if recoveries:
        console.print(recovery_table(recoveries))
    if run["error"]:
        console.print(f"{run['state']}: {run['error']}", style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(verdict_text(verdict), f" {run['steps']} steps, the last committed by all: {run['step']}")
    if not options.keep:
        console.print(f"the service has ended; this serves the run again: {options.serve_command}", **_AS_IS)
    console.print(f"dashboard: {url}", **_AS_IS)
    return EXIT_OF[verdict]


def judge(run: Json, recoveries: list[Json]) -> Verdict:
    """PASS only if the run and each check of each recovery passed, and every hit led to one."""
    verdicts = [Verdict(run["verdict"] or "UNKNOWN")]
    verdicts += [Verdict(verdict) for recovery in recoveries for verdict in recovery["checks"].values()]
    if len(recoveries) < len(HITS):
        verdicts.append(Verdict.UNKNOWN)
    return worst(verdicts)


def _cancel(client: Client, run: str) -> None:
    """Ask the run to end and wait for it: its processes are not children of this one."""
    try:
        client.post(f"/runs/{run}/cancel", {"reason": "the demo was interrupted"})
        deadline = time.monotonic() + CANCEL_S
        while client.get(f"/runs/{run}")["state"] not in ENDED and time.monotonic() < deadline:
            time.sleep(0.1)
    except ClientError:
        return  # It had ended already, or the service is gone.


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM become one exception; a second one does not break the cleaning up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise _Interrupted

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _usage(message: str) -> int:
    print(f"phoenix: {message}", file=sys.stderr)
    return USAGE
