"""Timelines: phases tile a recovery exactly, whatever order the events came in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phoenix_core.events import Event
from phoenix_core.timeline import Phase, Recovery, recoveries

MS = 1_000_000
RANKS = ["w0", "w4", "w2", "w3"]  # the world after the spare w4 took rank 1


def event(kind: str, at_ms: float, /, **fields: object) -> Event:
    named = {key: fields.pop(key) for key in ("worker", "generation", "rank", "step") if key in fields}
    return Event(kind=kind, at=int(at_ms * MS), data=fields, **named)  # type: ignore[arg-type]


def a_kill(start: float = 1000.0, generation: int = 1, fault: str | None = "f1", step: int = 7) -> list[Event]:
    """Rank 1 is killed in this step and its spare takes over; the times are in ms after `start`."""
    survivors = [(0, "w0"), (2, "w2"), (3, "w3")]
    events = [
        event("phase_entered", start - 5, worker=w, rank=r, step=step, generation=generation - 1, phase="forward")
        for r, w in [*survivors, (1, "w1")]
    ]
    if fault:
        events.append(event("fault_injected", start, worker="w1", rank=1, fault=fault, kind="process_kill"))
    events.append(
        event(
            "failure_detected",
            start + 10,
            worker="w1",
            rank=1,
            generation=generation,
            cause="process_exit",
            detail="signal 9",
        )
    )
    events.append(event("world_formed", start + 11, generation=generation, ranks=RANKS, spares=[], joining=[1]))
    events += [event("worker_quiesced", start + 15 + r, worker=w, rank=r, generation=generation) for r, w in survivors]
    events.append(event("model_built", start + 100, worker="w4", rank=1, generation=generation))
    for rank, worker in enumerate(RANKS):
        events.append(event("communicator_ready", start + 50 + rank, worker=worker, rank=rank, generation=generation))
        events.append(event("state_restored", start + 200 + rank, worker=worker, rank=rank, generation=generation))
        events.append(
            event("step_committed", start + 500 + rank, worker=worker, rank=rank, generation=generation, step=step)
        )
    events.append(event("generation_resumed", start + 205, generation=generation, step=step))
    return events


def the_only(events: list[Event]) -> Recovery:
    (recovery,) = recoveries(events)
    return recovery


def test_a_recovery_whose_coordinator_ends_is_superseded_by_the_next_ones() -> None:
    broken = [e for e in a_kill() if e.at < 1150 * MS]  # nobody is restored yet
    again = [e for e in a_kill(1300.0, 2, fault=None) if e.kind not in ("failure_detected", "phase_entered")]
    restarted = event("coordinator_restarted", 1302, generation=2, recovering=True, ranks=3, spares=1)
    first, second = recoveries([*broken, restarted, *again])
    assert (first.generation, first.superseded, first.fault) == (1, True, "f1")
    assert (second.generation, second.superseded, second.complete) == (2, False, True)
    assert [failure.worker for failure in second.failures] == ["coordinator"]


def test_a_recovery_whose_plan_could_not_be_kept_is_finished_by_the_next_generation() -> None:
    broken = [e for e in a_kill() if e.at < 1150 * MS]  # nobody is restored yet
    damaged = event("restore_failed", 1290, worker="w4", rank=1, generation=1, reason="damaged")
    again = [e for e in a_kill(1300.0, 2, fault=None) if e.kind not in ("failure_detected", "phase_entered")]
    first, second = recoveries([*broken, damaged, *again])
    assert (first.generation, first.superseded, first.fault) == (1, True, "f1")
    assert (second.generation, second.superseded, second.complete) == (2, False, True)
    assert second.failures == (), "who could not be restored has not failed"


def test_a_coordinator_that_ends_in_training_makes_no_recovery() -> None:
    restarted = event("coordinator_restarted", 700, generation=0, recovering=False, ranks=4, spares=1)
    assert recoveries([restarted, *a_kill()]) == recoveries(a_kill())


def test_a_kill_by_phases() -> None:
    recovery = the_only(a_kill())
    expected = {
        Phase.DETECT: 0.010,
        Phase.QUIESCE: 0.008,  # the last survivor, rank 3
        Phase.REPLACE: 0.082,
        Phase.RECONSTRUCT: 0.0,  # it ended while the model was still being built
        Phase.RESTORE: 0.103,
        Phase.RECOMPUTE: 0.300,
    }
    assert recovery.phases_s == pytest.approx(expected)
    assert recovery.recovery_s == pytest.approx(0.503)
    assert recovery.downtime_s == pytest.approx(0.203)
    assert recovery.lost_steps == 1
    assert recovery.resume_step == 7
    assert recovery.fault == "f1"
    assert recovery.failures[0].rank == 1
    assert recovery.failures[0].cause == "process_exit"
    assert not recovery.superseded


def test_a_job_that_goes_back_further_has_recomputed_when_the_first_new_step_is_committed() -> None:
    """From disk, say: all had committed steps 0 to 6, and begin again with step 4."""
    before = [
        event("step_committed", 100 * step + rank, worker=w, rank=rank, generation=0, step=step)
        for step in range(7)
        for rank, w in enumerate(["w0", "w1", "w2", "w3"])
    ]
    begun = [
        event("phase_entered", 100 * step, worker="w0", rank=0, step=step, generation=0, phase="forward")
        for step in range(7)
    ]
    resumed = event("generation_resumed", 1205, generation=1, step=4)
    again = [
        event("step_committed", 1220 + 10 * step, worker=w, rank=rank, generation=1, step=step)
        for step in (4, 5, 6)
        for rank, w in enumerate(RANKS)
    ]
    rest = [e for e in a_kill() if e.kind != "generation_resumed"]
    recovery = the_only([*before, *begun, *rest, resumed, *again])
    assert recovery.recovery_s == pytest.approx(0.503)  # step 7, not step 4
    assert recovery.lost_steps == 4


@given(st.permutations(a_kill()))
def test_the_order_of_files_does_not_matter(events: list[Event]) -> None:
    assert recoveries(events) == recoveries(a_kill())


@st.composite
def shaken(draw: st.DrawFn) -> list[Event]:
    """The same recovery with every instant after the fault moved at will, some of the events missing."""
    events = []
    for original in a_kill():
        if original.at > 1000 * MS and original.kind not in ("failure_detected", "generation_resumed", "world_formed"):
            if draw(st.integers(0, 9)) == 0:
                continue
            moved = original.at + draw(st.integers(-2000 * MS, 2000 * MS))
            events.append(Event(**{**original.__dict__, "at": max(0, moved)}))
        else:
            events.append(original)
    return events


@given(shaken())
def test_phases_tile_exactly(events: list[Event]) -> None:
    recovery = the_only(events)
    ends = [recovery.started_ns, *(recovery.ends[phase] for phase in Phase if phase in recovery.ends)]
    assert all(earlier <= later for earlier, later in pairwise(ends))
    if recovery.complete:
        lengths = [length for length in recovery.phases_s.values() if length is not None]
        assert len(lengths) == len(Phase)
        assert min(lengths) >= 0
        assert recovery.recovery_s == pytest.approx(sum(lengths), abs=1e-9)
        assert recovery.downtime_s == pytest.approx(sum(lengths[:-1]), abs=1e-9)
    else:
        assert recovery.recovery_s is None
        assert recovery.downtime_s is None


@given(shaken(), st.integers(0, 30))
def test_once_a_phase_is_open_all_after_it_are(events: list[Event], keep: int) -> None:
    """A timeline read while the recovery is still going on has no holes."""
    ordered = sorted(events, key=lambda one: one.at)
    for recovery in recoveries(ordered[:keep]):
        closed = [phase in recovery.ends for phase in Phase]
        assert closed == sorted(closed, reverse=True)


@given(st.integers(0, len(a_kill())))
def test_a_prefix_of_the_events_never_raises(length: int) -> None:
    ordered = sorted(a_kill(), key=lambda one: one.at)
    found = recoveries(ordered[:length])
    assert len(found) == any(one.kind == "failure_detected" for one in ordered[:length])


def test_recompute_waits_for_the_last_rank() -> None:
    events = [one for one in a_kill() if not (one.kind == "step_committed" and one.rank == 2)]
    recovery = the_only(events)
    assert not recovery.complete
    assert recovery.phases_s[Phase.RECOMPUTE] is None
    assert recovery.phases_s[Phase.RESTORE] == pytest.approx(0.103)


def test_a_step_committed_in_an_old_generation_does_not_count() -> None:
    events = [
        Event(**{**one.__dict__, "generation": 0}) if one.kind == "step_committed" and one.rank == 0 else one
        for one in a_kill()
    ]
    assert not the_only(events).complete


def test_without_a_fault_the_clock_starts_at_the_last_sign_of_life() -> None:
    recovery = the_only(a_kill(fault=None))
    assert recovery.fault is None
    assert recovery.started_ns == 995 * MS  # w1 entered forward
    assert recovery.phases_s[Phase.DETECT] == pytest.approx(0.015)


def test_of_two_faults_on_a_worker_the_later_one_explains_its_failure() -> None:
    """The first was a slow step, say, that nobody had to notice."""
    slow = event("fault_injected", 900, worker="w1", rank=1, fault="slow", kind="straggle")
    assert the_only([slow, *a_kill()]).fault == "f1"


def test_a_failed_spare_starts_no_recovery() -> None:
    assert recoveries([event("failure_detected", 5, worker="w9", generation=0, cause="process_exit")]) == []


def test_nothing_happened() -> None:
    assert recoveries([]) == []


def test_two_kills_are_two_recoveries_with_their_own_faults() -> None:
    later = a_kill(3000, 2, "f2", step=8)
    second = [Event(**{**one.__dict__, "worker": "w4" if one.worker == "w1" else one.worker}) for one in later]
    first, last = recoveries([*a_kill(), *second])
    assert [first.fault, last.fault] == ["f1", "f2"]
    assert [first.generation, last.generation] == [1, 2]
    assert first.complete
    assert last.complete


def test_a_second_failure_before_the_first_is_healed_supersedes_it() -> None:
    interrupted = [
        one for one in a_kill() if one.at < 1100 * MS and one.kind not in ("generation_resumed", "state_restored")
    ]
    first, second = recoveries([*interrupted, *a_kill(1100, 2, "f2")])
    assert first.superseded
    assert not first.complete
    assert second.complete
    assert not second.superseded


def test_the_failure_of_another_worker_than_the_target_still_belongs_to_the_fault() -> None:
    """A wrong blame is for the checks to judge; the recovery it started is the fault's all the same."""
    events = [
        Event(**{**one.__dict__, "worker": "w2", "rank": 2}) if one.kind == "failure_detected" else one
        for one in a_kill()
    ]
    recovery = the_only(events)
    assert recovery.fault == "f1"
    assert recovery.failures[0].rank == 2


def test_a_fault_after_the_detection_is_not_its_cause() -> None:
    late = event("fault_injected", 1300, worker="w2", rank=2, fault="late")
    recovery = the_only([*a_kill(fault=None), late])
    assert recovery.fault is None


def test_a_kill_after_the_last_step_has_nothing_to_recompute() -> None:
    """The world resumes at the number of steps and the job ends: restored is recovered."""
    events = []
    for one in a_kill():
        if one.kind == "step_committed":
            continue
        if one.kind == "generation_resumed":
            events.append(Event(**{**one.__dict__, "step": 100}))
        elif one.kind == "phase_entered":
            events.append(Event(**{**one.__dict__, "step": 99}))
        else:
            events.append(one)
    assert not the_only(events).complete  # the job may still be on its way to the end
    events.append(event("job_finished", 1300, outcome="completed"))
    recovery = the_only(events)
    assert recovery.complete
    assert recovery.lost_steps == 0


def test_a_phase_without_any_event_took_no_time_once_the_world_resumed() -> None:
    """Where no spare had to build a model (it had one), replace is zero and not unknown."""
    recovery = the_only([one for one in a_kill() if one.kind != "model_built"])
    assert recovery.complete
    assert recovery.phases_s[Phase.REPLACE] == 0.0
