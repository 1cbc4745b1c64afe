"""Recoveries as phases that tile them exactly, computed from events and from nothing else.

Phase k ends at `max(end of phase k-1, its own instant)`: the parts of a recovery overlap in time
(the spare builds its model while survivors quiesce), and the clamp charges each moment to the
earliest phase that was still open, so the phases always add up to the recovery time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Final

from phoenix_core.events import Event


class Phase(StrEnum):
    DETECT = "detect"
    QUIESCE = "quiesce"
    REPLACE = "replace"
    RECONSTRUCT = "reconstruct"
    RESTORE = "restore"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What the detector said: who, and why it thinks so."""

    worker: str
    rank: int | None
    cause: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One recovery: from the fault (or the first sign of it) to the first new step everywhere.

    `ends[phase]` is the monotonic ns at which the phase ended; a phase that never ended is missing,
    and so are all after it. `lost_steps` counts steps that survivors execute a second time.
    """

    generation: int
    started_ns: int
    fault: str | None
    failures: tuple[Failure, ...]
    ends: Mapping[Phase, int]
    resume_step: int | None
    lost_steps: int
    superseded: bool

    @property
    def complete(self) -> bool:
        return len(self.ends) == len(Phase)

    @property
    def phases_s(self) -> dict[Phase, float | None]:
        """Seconds per phase; None for one that never ended."""
        lengths: dict[Phase, float | None] = {}
        start = self.started_ns
        for phase in Phase:
            end = self.ends.get(phase)
            lengths[phase] = None if end is None else (end - start) / 1e9
            start = start if end is None else end
        return lengths

    @property
    def recovery_s(self) -> float | None:
        return (self.ends[Phase.RECOMPUTE] - self.started_ns) / 1e9 if self.complete else None

    @property
    def downtime_s(self) -> float | None:
        """Recovery time less the recomputation of the step."""
        return (self.ends[Phase.RESTORE] - self.started_ns) / 1e9 if self.complete else None


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """Every recovery that the events tell of, in order of generation.

    A failure of a worker that holds no rank (a parked spare) starts no recovery; nor does the end of a coordinator,
    unless it led one: that is superseded, and another one begins with the coordinator that takes over. So is a recovery
    whose plan could not be kept, since what it promised was damaged: the next generation finishes its work.
    """
    told = _Told(events)
    failures = sorted((_of_the_next(event) for event in told.of(*_BEGIN) if _begins_a_recovery(event)), key=_at)
    faults = _faults_of(told, failures)
    generations = sorted({event.generation for event in failures if event.generation is not None})
    recovered = []
    for generation, following in zip(generations, [*generations[1:], None], strict=False):
        own = [index for index, event in enumerate(failures) if event.generation == generation]
        fault = next((faults[index] for index in own if index in faults), None)
        recovered.append(_recovery(told, generation, [failures[index] for index in own], fault, following))
    return recovered


class _Told:
    """Events by what is asked of them, in order of time: a long job has many events and many recoveries, and the time
    for each must not grow with the job."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._by_kind: dict[str, list[Event]] = {}
        self._instants: dict[str | None, list[int]] = {}
        self._commits: dict[tuple[int, int], list[Event]] = {}
        self._boundaries: dict[int, tuple[list[int], list[int]]] = {}
        self._begun: dict[tuple[int, str | None], tuple[list[int], list[int]]] = {}
        for event in sorted(events, key=_at):
            self._by_kind.setdefault(event.kind, []).append(event)
            self._instants.setdefault(event.worker, []).append(event.at)
            if event.step is None or event.generation is None:
                continue
            if event.kind == "step_committed":
                self._commits.setdefault((event.generation, event.step), []).append(event)
                if event.rank is not None:
                    _climb(self._boundaries.setdefault(event.rank, ([], [])), event.at, event.step + 1)
            elif event.kind == "phase_entered" and event.data.get("phase") == "forward":
                _climb(self._begun.setdefault((event.generation, event.worker), ([], [])), event.at, event.step)

    def of(self, *kinds: str) -> Iterator[Event]:
        """One kind after the other."""
        return chain.from_iterable(self._by_kind.get(kind, ()) for kind in kinds)

    def commits(self, generation: int, step: int) -> list[Event]:
        """The `step_committed` of that step."""
        return self._commits.get((generation, step), [])

    def last_sign(self, worker: str | None, before: int) -> int | None:
        """When this worker last said anything before that instant."""
        instants = self._instants.get(worker, [])
        found = bisect_left(instants, before)
        return instants[found - 1] if found else None

    def committed_by_all(self, before: int, size: int) -> int:
        """How many steps every one of `size` ranks had committed by then."""
        highest = [_height(heights, before) for heights in self._boundaries.values()]
        return min((height or 0 for height in highest), default=0) if len(highest) == size else 0

    def begun(self, before: int, generation: int, without: Collection[str | None]) -> int:
        """The greatest step that a worker had begun by then in an earlier generation; -1 for none."""
        heights = (
            _height(heights, before)
            for (earlier, worker), heights in self._begun.items()
            if earlier < generation and worker not in without
        )
        return max((height for height in heights if height is not None), default=-1)


def _climb(heights: tuple[list[int], list[int]], at: int, height: int) -> None:
    """Add an instant to (instants, greatest value so far)."""
    instants, greatest = heights
    instants.append(at)
    greatest.append(max(height, greatest[-1]) if greatest else height)


def _height(heights: tuple[list[int], list[int]], before: int) -> int | None:
    """The greatest value that came before that instant."""
    found = bisect_left(heights[0], before)
    return heights[1][found - 1] if found else None


def _at(event: Event) -> int:
    return event.at


_BEGIN: Final = ("coordinator_restarted", "failure_detected", "restore_failed")


def _begins_a_recovery(event: Event) -> bool:
    if event.kind == "coordinator_restarted":
        return bool(event.data.get("recovering"))
    return event.rank is not None


def _of_the_next(event: Event) -> Event:
    """What could not be restored is told of the generation that it ends; all others of the one that begins."""
    if event.kind != "restore_failed" or event.generation is None:
        return event
    return replace(event, generation=event.generation + 1)


def _faults_of(told: _Told, failures: Sequence[Event]) -> dict[int, Event]:
    """Fault per index of `failures`: the latest that hit the same worker, else the first that explains nothing yet and
    had not been taken back by then."""
    faults = list(told.of("fault_injected"))
    back = [event for event in told.of("fault_reverted") if event.data.get("alive") is True]
    over = {event.data.get("fault"): event.at for event in back}
    matched: dict[int, Event] = {}
    for same_worker in (True, False):
        for index, failure in enumerate(failures):
            free = [fault for fault in faults if not any(fault is other for other in matched.values())]
            before = [fault for fault in free if fault.at <= failure.at]
            last = [fault for fault in before if over.get(fault.data.get("fault"), failure.at) >= failure.at]
            fits = [fault for fault in before if fault.worker == failure.worker] if same_worker else last
            if fits and index not in matched:
                matched[index] = fits[-1] if same_worker else fits[0]
    return matched


def _recovery(
    told: _Told, generation: int, detected: Sequence[Event], fault: Event | None, following: int | None
) -> Recovery:
    resumed = _first(told, "generation_resumed", generation)
    instants: dict[Phase, int | None] = {
        Phase.DETECT: detected[0].at,
        Phase.QUIESCE: _last(told, "worker_quiesced", generation),
        Phase.REPLACE: _last(told, "model_built", generation),
        Phase.RECONSTRUCT: _last(told, "communicator_ready", generation),
        Phase.RESTORE: _last(told, "state_restored", generation),
    }
    started = fault.at if fault else _sign_of_life(told, detected[0])
    instants[Phase.RECOMPUTE] = _recomputed(told, generation, resumed, started)
    return Recovery(
        generation=generation,
        started_ns=started,
        fault=str(fault.data["fault"]) if fault else None,
        failures=tuple(_failure(event) for event in detected if event.kind != "restore_failed"),  # nobody's
        ends=_tile(started, instants, closed=resumed is not None),
        resume_step=resumed.step if resumed else None,
        lost_steps=_lost_steps(told, generation, detected, resumed),
        superseded=resumed is None and following is not None,
    )


def _tile(started: int, instants: Mapping[Phase, int | None], *, closed: bool) -> dict[Phase, int]:
    """Ends that never run backwards. Where every rank resumed, a phase without an event took no time."""
    ends: dict[Phase, int] = {}
    previous = started
    for phase in Phase:
        instant = instants[phase]
        if instant is None and (phase is Phase.RECOMPUTE or not closed):
            break
        previous = max(previous, instant if instant is not None else previous)
        ends[phase] = previous
    return ends


def _failure(event: Event) -> Failure:
    if event.kind == "coordinator_restarted":
        return Failure(worker="coordinator", rank=None, cause="exit")
    cause, detail = str(event.data.get("cause", "")), str(event.data.get("detail", ""))
    return Failure(worker=event.worker or "", rank=event.rank, cause=cause, detail=detail)


def _sign_of_life(told: _Told, detected: Event) -> int:
    """In production nobody injects: the clock starts at the last thing the failed worker reported."""
    sign = told.last_sign(detected.worker, detected.at)
    return detected.at if sign is None else sign


def _first(told: _Told, kind: str, generation: int) -> Event | None:
    return next((event for event in told.of(kind) if event.generation == generation), None)


def _last(told: _Told, kind: str, generation: int) -> int | None:
    return max((event.at for event in told.of(kind) if event.generation == generation), default=None)


def _recomputed(told: _Told, generation: int, resumed: Event | None, started: int) -> int | None:
    """When the last rank committed the first step that is new: that not all of them had committed before the fault."""
    world = _first(told, "world_formed", generation)
    if resumed is None or resumed.step is None or world is None:
        return None
    ranks = world.data.get("ranks")
    assert isinstance(ranks, list)
    committed = told.commits(generation, max(resumed.step, told.committed_by_all(started, len(ranks))))
    if {event.rank for event in committed} != set(range(len(ranks))):
        # Nothing is left to compute where the step that was restored was the job's last.
        ended = any(event.data.get("outcome") == "completed" for event in told.of("job_finished"))
        return resumed.at if ended and not committed else None
    return max(event.at for event in committed)


def _lost_steps(told: _Told, generation: int, detected: Sequence[Event], resumed: Event | None) -> int:
    """Steps that a survivor had begun before it quiesced and begins again in the new generation."""
    if resumed is None or resumed.step is None:
        return 0
    failed = {event.worker for event in detected if event.kind != "restore_failed"}
    return max(0, told.begun(resumed.at, generation, failed) + 1 - resumed.step)
