"""What plain torchrun's workers tell about a round, in the words of a recovery."""

from __future__ import annotations

from typing import Any

from chaos.torchrun import Rounds, Told
from phoenix_core.events import Event
from phoenix_core.timeline import Phase, recoveries

MS = 1_000_000


def of(kind: str, rank: int, round_: int, at: int = 0, /, **data: Any) -> Event:
    step = data.pop("step", None)
    return Event(kind=kind, at=at * MS, worker=f"w{rank}.{round_}", rank=rank, generation=round_, step=step, data=data)


def told(rounds: Rounds, *events: Event) -> list[Told]:
    return [one for event in events for one in rounds.observe(event)]


def started(round_: int, at: int = 0) -> list[Event]:
    return [of("worker_spawned", rank, round_, at + rank, pid=7, start_ticks=1) for rank in (0, 1)]


def test_a_round_is_a_world_once_all_its_workers_have_started() -> None:
    rounds = Rounds(2)
    first, second = started(0)
    assert told(rounds, first) == []
    ((kind, fields),) = told(rounds, second)
    assert (kind, fields["generation"], fields["ranks"]) == ("world_formed", 0, ["w0.0", "w1.0"])


def test_it_goes_on_from_where_all_have_restored() -> None:
    rounds = Rounds(2)
    told(rounds, *started(1))
    resumed = told(rounds, *(of("state_restored", rank, 1, boundary=10) for rank in (0, 1)))
    assert resumed == [("generation_resumed", {"generation": 1, "step": 10})]


def test_the_first_end_is_the_failure_and_the_others_follow_it() -> None:
    rounds = Rounds(2)
    told(rounds, *started(0))
    ((kind, fields),) = rounds.ended("w1.0")
    assert (kind, fields["rank"], fields["generation"], fields["cause"]) == ("failure_detected", 1, 1, "exit")
    ((kind, fields),) = rounds.ended("w0.0")
    assert (kind, fields["rank"], fields["generation"]) == ("worker_quiesced", 0, 1)


def test_who_is_through_has_not_failed() -> None:
    rounds = Rounds(2)
    told(rounds, *started(0), *(of("state_digest", rank, 0, digest="d") for rank in (0, 1)))
    assert [*rounds.ended("w0.0"), *rounds.ended("w1.0")] == []


def test_together_they_make_a_whole_recovery() -> None:
    """A kill in step 5 of a job that begins again with step 2: the timeline of PHOENIX's own, seen from outside."""
    rounds, events = Rounds(2), []

    def happens(*own: Event) -> None:
        for event in own:
            events.append(event)
            events.extend(Event(kind=k, at=event.at, **_split(fields)) for k, fields in rounds.observe(event))

    happens(*started(0), *(of("state_restored", rank, 0, 5, boundary=0) for rank in (0, 1)))
    for step in range(5):
        happens(*(of("phase_entered", rank, 0, 10 + step, step=step, phase="forward") for rank in (0, 1)))
        happens(*(of("step_committed", rank, 0, 11 + step, step=step) for rank in (0, 1)))
    happens(of("phase_entered", 0, 0, 19, step=5, phase="forward"))
    fault = {"fault": "f", "kind": "process_kill", "pid": 7, "fidelity": "real"}
    events.append(of("fault_injected", 1, 0, 20, **fault))
    for worker, at in (("w1.0", 30), ("w0.0", 40)):
        events.extend(Event(kind=k, at=at * MS, **_split(fields)) for k, fields in rounds.ended(worker))
    happens(*started(1, at=100), *(of("communicator_ready", rank, 1, 150) for rank in (0, 1)))
    happens(*(of("model_built", rank, 1, 160) for rank in (0, 1)))
    happens(*(of("state_restored", rank, 1, 200, boundary=2) for rank in (0, 1)))
    for step in range(2, 6):
        happens(*(of("step_committed", rank, 1, 200 + 10 * step, step=step) for rank in (0, 1)))
    (recovery,) = recoveries(events)
    assert (recovery.fault, recovery.resume_step, recovery.lost_steps) == ("f", 2, 4)
    assert recovery.recovery_s == (250 - 20) / 1000, "until step 5, the first that was new"
    assert recovery.phases_s[Phase.DETECT] == 0.010 and recovery.phases_s[Phase.QUIESCE] == 0.010


def _split(fields: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {name: fields[name] for name in ("worker", "rank", "generation", "step") if name in fields}
    return {**named, "data": {name: value for name, value in fields.items() if name not in named}}
