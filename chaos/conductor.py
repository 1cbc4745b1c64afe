"""Conducts one launch of a runtime: reads its events, applies what is due, reverts what lasts, ends it in time.

One thread, one loop. While a fault waits for a step or a phase, the loop wakes for every line that is written (so that
the signal follows within a millisecond); else it reads every `QUIET_S` and costs next to nothing.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from chaos.errors import InvalidFault, TargetGone
from chaos.expansion import repeat_ids
from chaos.faults import PlannedFault
from chaos.injectors import INJECTORS, Active, Injector, Pending
from chaos.injectors.process import SEVERAL
from chaos.kinds import Scope, fault_kind
from chaos.launch import Ended, Launch
from chaos.procfs import is_foreign
from chaos.record import PartDirectory
from chaos.requests import (
    CancelRequest,
    FaultRequest,
    HaltRequest,
    RefusedRequest,
    ReleaseRequest,
    Request,
    RequestTail,
    RevertRequest,
)
from chaos.roster import Roster
from chaos.scenario import Scenario
from chaos.schedule import NANOSECONDS, Due, Schedule
from chaos.triggers import AfterSeconds
from chaos.watch import POLL_S, EventWatch
from phoenix_core.events import Event, EventWriter

QUIET_S: Final = 0.05
OF_A_PROCESS: Final = (Scope.PROCESS, Scope.TRAINING)
"""What ends with the process that it was applied to."""
PENDING_NS: Final = 2_000_000
"""How often a fault that waits for its instant inside of its target is asked whether that has come."""

Observer = Callable[[Sequence[Event]], None]


class Stop(Protocol):
    """Somebody wants the trial to end: readable once `reason` is set."""

    @property
    def reason(self) -> str | None: ...

    def fileno(self) -> int: ...


class Outcome(StrEnum):
    """How a launch came to its end."""

    EXITED = "exited"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, kw_only=True)
class PartEnd:
    """`detail` says why, unless the runtime ended by itself."""

    outcome: Outcome
    detail: str
    ended: Ended


class Faults:
    """What is planned, what was applied, what is still active; every change is an event of the injector's file.

    `asked` is every fault that was asked for, in time or not. `over`: nothing can be hit any more, and what is asked
    for from then on is missed; `late` holds the events that say so. So is what waits when it is halted, and
    what is asked for until the release. `keeper`: the process whose descendants alone may be hit.
    """

    def __init__(self, scenario: Scenario, writer: EventWriter, injectors: Mapping[str, Injector] = INJECTORS) -> None:
        self._cluster = scenario.cluster
        self.roster = Roster()
        self.schedule = Schedule(scenario.planned, seed=scenario.seed, world_size=scenario.cluster.world_size)
        self.asked: list[PlannedFault] = list(scenario.planned)
        self.over = False
        self._halts: dict[str, str] = {}
        self.keeper: int | None = None
        self.late: list[Event] = []
        self._writer = writer
        self._injectors = injectors
        self._active: dict[str, Active] = {}
        self._pending: dict[str, tuple[PlannedFault, Pending]] = {}

    def observe(self, events: Sequence[Event]) -> None:
        """Take in new events, then apply what they trigger. Who is who is read first: of all events, not only of those
        before the trigger, because the files are read one after another."""
        for event in events:
            self.roster.observe(event)
        for event in events:
            for due in self.schedule.observe(event):
                self._apply(due)
            if event.kind == "worker_exited":
                self._forget(event.worker)

    def tick(self, now: int) -> None:
        """Apply what the time triggers, record what has happened since, revert what has lasted long enough."""
        for due in self.schedule.tick(now):
            self._apply(due)
        for fault, pending in list(self._pending.values()):
            self._ask(fault, pending)
        for name, active in list(self._active.items()):
            if reason := active.over or ("its time to live is over" if now >= _until(active) else ""):
                self.revert(name, reason)

    @property
    def next_time(self) -> int | None:
        """When `tick` has something to do (monotonic ns)."""
        times = [_until(active) for active in self._active.values()]
        if self.schedule.next_time is not None:
            times.append(self.schedule.next_time)
        if self._pending:
            times.append(time.monotonic_ns() + PENDING_NS)
        return min(times, default=None)

    def request(self, fault: PlannedFault, now: int) -> None:
        """A live request; one whose id is known was made before (a client repeats itself after a crash)."""
        if any(fault.id == other.id for other in self.asked):
            return
        own = {fault.id, *repeat_ids(fault)}
        if any(own & {other.id, *repeat_ids(other)} for other in self.asked):
            self.miss(fault.id, fault.kind, "an earlier fault has its id, or one under which it fires again")
            return
        try:
            self._cluster.check(fault)
        except InvalidFault as error:
            self.miss(fault.id, fault.kind, str(error))  # it never was a fault here: refused, and asked for by nobody
            return
        self.asked.append(fault)
        if self.over:
            self.late.append(self.miss(fault.id, fault.kind, "the run was over when the request came"))
            return
        for due in self.schedule.add(fault, now=now):
            self._apply(due)

    @property
    def halted(self) -> str:
        """Why nothing is injected until a release; empty where something may be."""
        return next((f"halted: {reason}" for reason in self._halts.values()), "")

    def halt(self, reason: str, halt: str = "") -> None:
        """Take everything back, what waits for its trigger too, and inject nothing more until this halt is released.
        It may be said again."""
        self._halts[halt] = reason
        self._take_back(f"halted: {reason}")
        for fault in self.schedule.withdraw():  # else it would fire after the release, when nobody expects it
            self.miss(fault.id, fault.kind, f"halted: {reason}")

    def release(self, halt: str = "") -> None:
        """One halt is over; without an id all are."""
        self._halts = {name: reason for name, reason in self._halts.items() if halt and name != halt}

    def note(self, request: Request) -> None:
        """The audit line of a request, whatever comes of it."""
        self._writer.emit("request_taken", **request.audit)  # type: ignore[arg-type]

    def miss(self, fault: str, kind: str, reason: str) -> Event:
        return self._writer.emit("fault_missed", fault=fault, kind=kind, reason=reason)

    def revert(self, fault: str, reason: str) -> None:
        """Take a lasting fault back; nothing happens where it is not active (any more)."""
        active = self._active.pop(fault, None)
        if active is None:
            return
        reverted, injection = active.revert(), active.injection
        self._writer.emit(
            "fault_reverted",
            worker=injection.worker,
            rank=injection.rank,
            fault=fault,
            kind=injection.kind,
            alive=reverted.alive,
            proof=dict(reverted.proof),
            reason=reason,
        )

    def finish(self, reason: str) -> None:
        """The end: revert everything, and say of each fault that never fired that it did not."""
        self._take_back(reason)
        for fault in self.schedule.withdraw():
            if isinstance(fault.trigger, AfterSeconds) and fault.trigger.if_running:
                self.asked = [one for one in self.asked if one.id != fault.id]
            else:
                self.miss(fault.id, fault.kind, f"{reason} before its trigger came")
        self.over = True

    def _take_back(self, reason: str) -> None:
        """Whatever was applied, and whatever waits for its instant inside of its target."""
        for fault, pending in self._pending.values():
            if (active := pending.withdraw()) is None:
                self.miss(fault.id, fault.kind, f"{reason} before its instant came")
            else:
                self._record(active)
        self._pending.clear()
        for name in list(self._active):
            self.revert(name, reason)

    def _apply(self, due: Due) -> None:
        fault = due.fault
        try:
            if due.late or self.halted:
                raise TargetGone(due.late or self.halted)
            worker = self.roster.resolve(fault.target)
            for one in (worker, *worker.others):
                if self.keeper is not None and is_foreign(one.pid, self.keeper):
                    raise TargetGone(f"the process of {one.worker} (pid {one.pid}) was not started by this trial")
            applied = self._injectors[fault.kind].inject(fault, worker)
        except TargetGone as error:
            self.miss(fault.id, fault.kind, str(error))
            return
        if isinstance(applied, Pending):
            self._pending[fault.id] = (fault, applied)
            self._ask(fault, applied)
        else:
            self._record(applied)

    def _ask(self, fault: PlannedFault, pending: Pending) -> None:
        try:
            active = pending.poll()
        except TargetGone as error:
            self.miss(fault.id, fault.kind, str(error))
        else:
            if active is None:
                return
            self._record(active)
        del self._pending[fault.id]

    def _record(self, active: Active) -> None:
        kind = active.injection.kind
        assert active.ttl_s is not None or not fault_kind(kind).lasting, f"{kind} would last for ever"
        self._writer.emit("fault_injected", **active.injection.event_fields())  # type: ignore[arg-type]
        if active.ttl_s is not None:
            self._active[active.injection.fault] = active

    def _forget(self, worker: str | None) -> None:
        for fault, active in list(self._active.items()):
            injection = active.injection
            alone = SEVERAL not in injection.proof  # of several processes the others may go on
            if injection.worker == worker and alone and fault_kind(injection.kind).scope in OF_A_PROCESS:
                self.revert(fault, "the process has ended")


class Conductor:
    """Runs one part of a trial to its end. In the undisturbed run `faults` are over from the start."""

    def __init__(
        self,
        *,
        launch: Launch,
        directory: PartDirectory,
        requests: RequestTail,
        faults: Faults,
        timeout_s: float,
        stop: Stop | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._launch = launch
        self._watch = EventWatch(directory.events)
        self._requests = requests
        self._faults = faults
        self._faults.keeper = launch.keeper
        self._deadline = time.monotonic_ns() + round(timeout_s * NANOSECONDS)
        self._timeout_s = timeout_s
        self._stop = stop
        self._observer = observer
        self._ending: tuple[Outcome, str] | None = None

    def run(self) -> PartEnd:
        """Until the launch has ended, by itself or because it had to."""
        try:
            self._serve_requests()  # a halt that stands there already comes before the first fault
            while (ended := self._launch.poll()) is None:
                self._faults.roster.launcher = self._launch.launcher
                self._wait()
                self._read()
                self._serve_requests()
                self._check_time(time.monotonic_ns())
            self._read()
            self._serve_requests()
        finally:
            self._watch.close()
            self._faults.finish(self._ending[1] if self._ending else "the run was over")
        outcome, detail = self._ending or (Outcome.EXITED, "")
        return PartEnd(outcome=outcome, detail=detail, ended=ended)

    @property
    def _urgent(self) -> bool:
        return not self._faults.over and self._faults.schedule.needs_events

    def _wait(self) -> None:
        descriptors = [self._launch.fileno()]
        if self._stop is not None and self._ending is None:
            descriptors.append(self._stop.fileno())
        seconds = QUIET_S
        if self._urgent:
            growth = self._watch.fileno()
            seconds = POLL_S if growth is None else QUIET_S
            descriptors += [] if growth is None else [growth]
        if (due := self._faults.next_time) is not None:
            seconds = min(seconds, max(0.0, (due - time.monotonic_ns()) / NANOSECONDS))
        select.select(descriptors, [], [], seconds)

    def _read(self) -> None:
        # Phases are most of what a worker writes; where nobody waits for one and nobody looks, they are not parsed.
        skip = () if self._urgent or self._observer is not None else ("phase_entered",)
        events = self._watch.read(skip=skip)
        if not events:
            return
        if not self._faults.over:
            self._faults.observe(events)
        if self._observer is not None:
            self._observer(events)

    def _serve_requests(self) -> None:
        for request in self._requests.read():
            self._serve(request)

    def _serve(self, request: Request) -> None:
        self._faults.note(request)
        if isinstance(request, HaltRequest):
            self._faults.halt(request.reason, request.halt)
        elif isinstance(request, ReleaseRequest):
            self._faults.release(request.halt)
        elif isinstance(request, CancelRequest):
            self._end(Outcome.CANCELLED, f"cancelled: {request.reason}")
        elif isinstance(request, RefusedRequest):
            self._faults.miss(request.fault, request.kind, request.reason)
        elif isinstance(request, RevertRequest):
            self._faults.revert(request.fault, "asked for")
        else:
            assert isinstance(request, FaultRequest)
            self._faults.request(request.fault, time.monotonic_ns())

    def _check_time(self, now: int) -> None:
        if self._stop is not None and self._stop.reason is not None:
            self._end(Outcome.INTERRUPTED, self._stop.reason)
        if now >= self._deadline:
            self._end(Outcome.TIMED_OUT, f"not finished after {self._timeout_s:g} s (timeout_s)")
        if not self._faults.over:
            self._faults.tick(now)

    def _end(self, outcome: Outcome, detail: str) -> None:
        if self._ending is None:
            self._ending = (outcome, detail)
            self._faults.finish(detail)
            self._launch.end()


def _until(active: Active) -> int:
    assert active.ttl_s is not None
    return active.injection.at + round(active.ttl_s * NANOSECONDS)


class SelfPipe:
    """A `Stop` that a signal handler can set."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.reason: str | None = None

    def fileno(self) -> int:
        return self._readable

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            os.write(self._writable, b"!")

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)
