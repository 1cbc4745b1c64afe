"""When faults are due: at the first such moment, once, and never late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults import PlannedFault, Rank
from chaos.schedule import Due, Schedule
from chaos.underway import Underway
from phoenix_core.events import Event
from phoenix_core.timeline import Phase

S = 1_000_000_000


def fault(trigger: dict[str, Any], target: dict[str, Any] | None = None, id: str = "f") -> PlannedFault:
    return PlannedFault.from_json(
        {"id": id, "kind": "process_kill", "target": target or {"rank": 1}, "trigger": trigger}
    )


def phase(name: str, step: int, rank: int = 1, at: int = 0) -> Event:
    return Event(kind="phase_entered", at=at, rank=rank, step=step, data={"phase": name})


def committed(step: int, rank: int = 1, at: int = 0) -> Event:
    return Event(kind="step_committed", at=at, rank=rank, step=step)


def formed() -> Event:
    return Event(kind="world_formed", at=0, generation=0, data={"ranks": ["w0", "w1"], "spares": []})


def schedule(*faults: PlannedFault, seed: int = 1) -> Schedule:
    return Schedule(faults, seed=seed, world_size=4)


def ids(due: list[Due]) -> list[str]:
    return [one.fault.id for one in due]


def test_now_waits_for_a_world() -> None:
    plan = schedule(fault({"now": True}))
    assert plan.tick(5) == []
    assert ids(plan.observe(formed())) == ["f"]


def test_a_live_now_is_due_at_once_where_a_world_is() -> None:
    plan = schedule()
    plan.observe(formed())
    assert ids(plan.add(fault({"now": True}), now=5)) == ["f"]


def test_a_step_begins_when_its_rank_enters_it() -> None:
    plan = schedule(fault({"at_step": 3}))
    assert plan.observe(phase("forward", 3, rank=0)) == []
    assert plan.observe(phase("forward", 2)) == []
    assert ids(plan.observe(phase("forward", 3))) == ["f"]


def test_a_runtime_without_phases_tells_by_its_commits() -> None:
    plan = schedule(fault({"at_step": 3}))
    assert plan.observe(committed(1)) == []
    assert ids(plan.observe(committed(2))) == ["f"]


def test_for_a_spare_any_rank_counts() -> None:
    assert ids(schedule(fault({"at_step": 3}, {"spare": True})).observe(phase("forward", 3, rank=0))) == ["f"]


def test_a_rollback_does_not_fire_again() -> None:
    plan = schedule(fault({"at_step": 3}), fault({"phase": "backward", "step": 3}, id="g"))
    assert ids(plan.observe(phase("forward", 3)) + plan.observe(phase("backward", 3))) == ["f", "g"]
    assert plan.observe(phase("forward", 3)) + plan.observe(phase("backward", 3)) == []


def test_a_phase_by_occurrence() -> None:
    plan = schedule(fault({"phase": "backward", "occurrence": 3}))
    assert [len(plan.observe(phase(name, step))) for step in range(3) for name in ("forward", "backward")] == [
        0, 0, 0, 0, 0, 1,
    ]  # fmt: skip


def test_a_phase_of_one_step_counts_that_step_only() -> None:
    plan = schedule(fault({"phase": "backward", "step": 2}))
    assert plan.observe(phase("backward", 1)) == []
    assert ids(plan.observe(phase("backward", 2))) == ["f"]


def test_seconds_count_from_the_first_step() -> None:
    plan = schedule(fault({"after_s": 2.0}))
    assert plan.tick(99 * S) == []
    plan.observe(phase("forward", 0, at=10 * S))
    assert plan.next_time == 12 * S
    assert plan.tick(12 * S - 1) == []
    assert ids(plan.tick(12 * S)) == ["f"]
    assert plan.next_time is None


def test_seconds_of_a_live_request_count_from_the_request() -> None:
    plan = schedule()
    assert plan.add(fault({"after_s": 2.0}), now=50 * S) == []
    assert plan.next_time == 52 * S
    assert ids(plan.tick(52 * S)) == ["f"]


@pytest.mark.parametrize("trigger", [{"at_step": 5}, {"phase": "forward", "step": 4}])
def test_what_has_gone_by_is_late_and_says_so(trigger: dict[str, Any]) -> None:
    plan = schedule()
    plan.observe(phase("forward", 5))
    (due,) = plan.add(fault(trigger), now=1)
    assert "before the request came" in due.late
    assert plan.pending == ()


def test_a_live_phase_does_not_count_what_was_read_late() -> None:
    plan = schedule()
    plan.add(fault({"phase": "backward"}), now=100)
    assert plan.observe(phase("backward", 1, at=99)) == []
    assert ids(plan.observe(phase("backward", 2, at=101))) == ["f"]


def test_nothing_waits_for_events_when_nothing_is_planned() -> None:
    assert not schedule().needs_events
    plan = schedule(fault({"after_s": 1}))
    waited = [plan.needs_events]  # the first step starts its clock
    plan.observe(phase("forward", 0))
    waited.append(plan.needs_events)
    assert waited == [True, False]
    assert schedule(fault({"at_step": 1})).needs_events


@given(seed=st.integers(0, 2**32), name=st.text("abc", min_size=1, max_size=3), others=st.integers(0, 3))
def test_a_random_rank_depends_on_seed_and_id_alone(seed: int, name: str, others: int) -> None:
    def drawn(plan: Schedule) -> Any:
        return next(one.target for one in plan.pending if one.id == name)

    mine = fault({"at_step": 1}, {"random_rank": True}, id=name)
    noise = [fault({"at_step": 1}, {"random_rank": True}, id=f"noise{index}") for index in range(others)]
    first, second = drawn(schedule(mine, seed=seed)), drawn(schedule(*noise, mine, seed=seed))
    assert isinstance(first, Rank) and first == second
    assert 0 <= first.rank < 4


def test_random_ranks_differ_between_seeds() -> None:
    plans = [schedule(fault({"at_step": 1}, {"random_rank": True}), seed=seed).pending for seed in range(40)]
    assert {plan[0].target for plan in plans} == {Rank(rank=rank) for rank in range(4)}


def world(generation: int, joining: list[int]) -> Event:
    ranks = [f"w{rank}" for rank in range(4)]
    return Event(kind="world_formed", at=0, generation=generation, data={"ranks": ranks, "joining": joining})


def told(kind: str, rank: int, generation: int = 1, at: int = 0) -> Event:
    return Event(kind=kind, at=at, rank=rank, generation=generation, worker=f"w{rank}")


def recovery(generation: int = 1) -> list[Event]:
    """Rank 1 is lost and replaced: all that is told of it, in order."""
    return [
        Event(kind="fault_injected", at=0, rank=1),
        told("failure_detected", 1, generation),
        world(generation, [1]),
        *(told("worker_quiesced", rank, generation) for rank in (0, 2, 3)),
        told("model_built", 1, generation),
        *(told("communicator_ready", rank, generation) for rank in range(4)),
        Event(kind="generation_resumed", at=0, generation=generation, step=3),
    ]


@pytest.mark.parametrize(
    ("entered", "seen"),
    [("detect", 1), ("quiesce", 2), ("replace", 3), ("reconstruct", 6), ("restore", 11), ("recompute", 12)],
)
def test_a_recovery_phase_is_entered_when_its_work_begins(entered: str, seen: int) -> None:
    plan = schedule(fault({"recovery_phase": entered}, {"rank": 3}))
    fired = [len(plan.observe(event)) for event in recovery()]
    assert fired.index(1) == seen - 1 and sum(fired) == 1


def test_a_recovery_phase_by_occurrence_is_that_of_a_later_recovery() -> None:
    plan = schedule(fault({"recovery_phase": "restore", "occurrence": 2}))
    assert [ids(plan.observe(event)) for event in recovery(1)] == [[]] * 12
    assert [ids(due) for event in recovery(2) if (due := plan.observe(event))] == [["f"]]


@given(order=st.permutations(recovery()[1:]))
def test_the_order_in_which_files_are_read_loses_no_phase(order: list[Event]) -> None:
    watch = Underway()
    seen = [phase for event in order for phase in watch.observe(event)]
    assert sorted(seen) == sorted(list(Phase)[1:]) and watch.going_on == {Phase.RECOMPUTE}
    for rank in range(4):
        watch.observe(replace(committed(3, rank=rank), generation=1))
    assert watch.going_on == frozenset()


def test_phases_go_on_side_by_side_until_their_work_is_done() -> None:
    watch, seen = Underway(), []
    for event in recovery():
        watch.observe(event)
        seen.append("+".join(sorted(watch.going_on)))
    assert seen == [
        "detect", "quiesce", "quiesce+replace", "quiesce+replace", "quiesce+replace", "reconstruct+replace",
        "reconstruct", "reconstruct", "reconstruct", "reconstruct", "restore", "recompute",
    ]  # fmt: skip


def test_nobody_is_waited_for_to_notice_what_loses_nobody_or_is_over() -> None:
    def injected(kind: str) -> Event:
        return Event(kind="fault_injected", at=0, rank=1, data={"fault": kind, "kind": kind})

    watch = Underway()
    assert watch.observe(injected("cpu_throttle")) == [] and not watch.going_on
    assert watch.observe(injected("process_stop")) == ["detect"] == sorted(watch.going_on)
    watch.observe(Event(kind="fault_reverted", at=1, rank=1, data={"fault": "process_stop"}))
    assert not watch.going_on


def test_an_offset_fires_later_and_then_without_events() -> None:
    plan = schedule(fault({"phase": "backward", "step": 2, "offset_s": 0.5}))
    assert plan.observe(phase("backward", 2, at=10 * S)) == []
    assert (plan.next_time, plan.needs_events, len(plan.pending)) == (10 * S + S // 2, False, 1)
    assert plan.tick(10 * S) == []
    assert ids(plan.tick(11 * S)) == ["f"]
    assert plan.pending == () and plan.next_time is None


def test_what_waits_for_its_offset_can_be_withdrawn() -> None:
    plan = schedule(fault({"phase": "backward", "offset_s": 9}))
    plan.observe(phase("backward", 2))
    assert [one.id for one in plan.withdraw()] == ["f"]
    assert plan.tick(10**12) == []


def again(name: str, step: int, generation: int) -> Event:
    return replace(phase(name, step), generation=generation)


@pytest.mark.parametrize("trigger", [{"at_step": 3, "repeat": 3}, {"phase": "forward", "step": 3, "repeat": 3}])
def test_a_repeat_fires_again_after_each_rollback_under_an_id_of_its_own(trigger: dict[str, Any]) -> None:
    plan = schedule(fault(trigger))
    fired = [ids(plan.observe(again("forward", step, life))) for life, step in [(0, 3), (0, 3), (0, 4), (1, 3)]]
    assert fired == [["f"], [], [], ["f.2"]]
    assert plan.observe(again("forward", 4, 2)) == []  # step 3 was not lost this time
    assert ids(plan.observe(again("forward", 3, 3))) == ["f.3"]
    assert plan.observe(again("forward", 3, 4)) == []
    assert plan.pending == ()


def test_a_repeat_that_had_no_occasion_is_no_miss() -> None:
    plan = schedule(fault({"at_step": 3, "repeat": 3}))
    plan.observe(again("forward", 3, 0))
    assert plan.withdraw() == ()


def test_a_repeated_phase_without_a_step_is_every_nth() -> None:
    plan = schedule(fault({"phase": "optimizer", "occurrence": 2, "repeat": 2}))
    assert [ids(plan.observe(phase("optimizer", step))) for step in range(6)] == [[], ["f"], [], ["f.2"], [], []]


triggers = st.one_of(
    st.just({"now": True}),
    st.builds(lambda n: {"at_step": n}, st.integers(0, 5)),
    st.builds(lambda s: {"after_s": s}, st.floats(0, 5)),
    st.builds(lambda p, n: {"phase": p, "occurrence": n}, st.sampled_from(["forward", "backward"]), st.integers(1, 4)),
    st.builds(lambda n: {"phase": "forward", "step": n, "offset_s": 0.5}, st.integers(0, 5)),
    st.builds(lambda n: {"recovery_phase": "detect", "occurrence": n}, st.integers(1, 2)),
)
happenings = st.one_of(
    st.just(formed()),
    st.just(recovery()[0]),
    st.builds(phase, st.sampled_from(["forward", "backward"]), st.integers(0, 6), st.integers(0, 3)),
    st.builds(committed, st.integers(0, 6), st.integers(0, 3)),
    st.integers(0, 10 * S),
)


@given(planned=st.lists(triggers, max_size=4), events=st.lists(happenings, max_size=30))
def test_each_fault_fires_at_most_once_whatever_happens(planned: list[dict[str, Any]], events: list[Any]) -> None:
    plan = schedule(*(fault(trigger, id=str(index)) for index, trigger in enumerate(planned)))
    fired: list[str] = []
    for event in events:
        fired += ids(plan.tick(event) if isinstance(event, int) else plan.observe(event))
    left = [one.id for one in plan.withdraw()]
    assert sorted(fired + left) == [str(index) for index in range(len(planned))]
    assert plan.tick(10**12) == []
