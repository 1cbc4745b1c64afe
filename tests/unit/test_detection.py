"""Who is blamed where ranks meet in several groups and by messages."""

from __future__ import annotations

from dataclasses import replace

from phoenix_core.detection import all_wait, keeps_others_waiting, waits_for
from phoenix_core.pace import NEW_STEPS, REMEMBERED_FOR, Pace
from phoenix_core.protocol import Progress
from phoenix_core.settings import Detection

RANKS = ("w0", "w1", "w2", "w3")
Streams = dict[str, tuple[int, int]]


def at(streams: Streams, phase: str = "forward", boundary: int = 3, doing: str = "allreduce 12") -> Progress:
    return Progress(boundary=boundary, phase=phase, streams=streams, doing=dict.fromkeys(streams, doing))


def blamed(*progresses: Progress, finished: tuple[str, ...] = ()) -> list[str]:
    pace = Pace(Detection(first_step_s=1.0, hang_floor_s=3.0))
    seen = {worker: (progress, 0.0) for worker, progress in zip(RANKS, progresses, strict=True)}
    return keeps_others_waiting(seen, RANKS, 100.0, pace, finished)


def test_the_one_who_has_not_entered_the_groups_collective() -> None:
    waiting = at({"all": (9, 8)})
    assert blamed(waiting, at({"all": (8, 8)}), waiting, waiting) == ["w1"]


def test_who_waits_in_one_group_is_not_blamed_for_being_missed_in_another() -> None:
    """Two rows and two columns; w3 hangs: w2 misses it in its row, w1 in its column, w0 misses both of these."""
    w0 = at({"row0": (5, 5), "column0": (4, 3)})
    w1 = at({"row0": (5, 5), "column1": (4, 3)})
    w2 = at({"row1": (5, 4), "column0": (3, 3)})
    w3 = at({"row1": (4, 4), "column1": (3, 3)})
    assert waits_for(dict(zip(RANKS, (w0, w1, w2, w3), strict=True)), RANKS) == {
        "w0": {"w2"}, "w1": {"w3"}, "w2": {"w3"}, "w3": set(),
    }  # fmt: skip
    assert blamed(w0, w1, w2, w3) == ["w3"]


def test_a_message_that_was_never_sent() -> None:
    """A pipeline of four stages in which w1 hangs: w2 waits for its message, w3 for that of w2, w0 for a gradient."""
    w0 = at({"0>1": (4, 4), "1>0": (1, 0)})
    w1 = at({"0>1": (4, 4), "1>2": (3, 3)})
    w2 = at({"1>2": (4, 3), "2>3": (3, 3)})
    w3 = at({"2>3": (4, 3)})
    assert blamed(w0, w1, w2, w3) == ["w1"]


def test_a_message_that_is_on_its_way_blames_nobody() -> None:
    assert blamed(at({"0>1": (4, 4)}), at({"0>1": (4, 3)}), at({}), at({})) == []


def test_who_waits_for_the_word_of_its_holder_is_not_to_blame_nor_is_a_holder_that_waits_for_it() -> None:
    """Its connection to the holder does not get through, while that of everybody to everybody else does."""
    waiting, owner = at({"all": (9, 8)}), replace(at({"all": (8, 8)}), awaits=1)
    assert blamed(owner, waiting, waiting, waiting) == []
    seen = {worker: (mark, 0.0) for worker, mark in zip(RANKS, (owner, waiting, waiting, waiting), strict=True)}
    assert all_wait(seen, ())
    assert blamed(owner, at({"all": (8, 8)}), waiting, waiting) == ["w1"], "a holder that waits for nobody"


def test_ranks_that_wait_for_each_other_are_no_single_ranks_fault() -> None:
    """Two groups entered in opposite order: a mistake of the script that no replacement heals."""
    assert blamed(at({"a": (1, 0), "b": (0, 0)}), at({"a": (0, 0), "b": (1, 0)}), at({}), at({})) == []


def test_who_left_out_a_collective_waits_in_that_of_the_others_a_step_later() -> None:
    waiting, ahead = at({"all": (9, 8)}), at({"all": (9, 8)}, boundary=4)
    assert blamed(waiting, waiting, ahead, waiting) == ["w2"]
    assert blamed(ahead, ahead, ahead, waiting) == ["w3"], "one that made a collective too many comes later"
    assert blamed(waiting, ahead, ahead, waiting) == ["w1", "w2"], "nobody shared the steps of those ahead"
    assert blamed(waiting, waiting, waiting, waiting) == []


def test_who_left_out_a_collective_waits_in_another_one_of_the_same_step() -> None:
    waiting, alone = at({"all": (9, 8)}), at({"all": (9, 8)}, doing="barrier")
    assert blamed(waiting, waiting, alone, waiting) == ["w2"]
    assert blamed(waiting, replace(waiting, broken=True), alone, waiting) == []
    more = at({"all": (10, 8)})  # the next bucket of the gradients is on its way too
    assert blamed(more, more, alone, more) == ["w2"]


def test_ranks_of_different_groups_may_be_in_different_steps() -> None:
    """Two rows: the second is a step behind, since w3 hangs; w0 and w1 wait for their columns."""
    w0, w1 = at({"row0": (5, 5), "column0": (4, 3)}, boundary=4), at({"row0": (5, 5), "column1": (4, 3)}, boundary=4)
    assert blamed(w0, w1, at({"row1": (4, 3), "column0": (3, 3)}), at({"row1": (3, 3), "column1": (3, 3)})) == ["w3"]


def test_who_sits_in_a_collective_that_all_have_entered_is_blamed_only_where_nothing_else_explains_it() -> None:
    """w1 has not come out of it, w0 and w3 are on to the next one."""
    ahead, inside, hung = at({"all": (9, 8)}), at({"all": (8, 7)}), at({"all": (7, 7)})
    assert blamed(ahead, inside, ahead, ahead) == ["w1"]
    assert blamed(ahead, inside, replace(ahead, broken=True), ahead) == []
    assert blamed(ahead, inside, replace(at({"all": (8, 8)}), broken=True), ahead) == []
    assert blamed(ahead, at({"all": (8, 8)}), at({"all": (8, 8), "2>1": (1, 0), "1>2": (0, 0)}), ahead) == ["w1"]
    assert blamed(ahead, replace(inside, broken=True), hung, ahead) == ["w2"]


def test_those_who_are_through_wait_for_who_is_not() -> None:
    through = at({"all": (9, 9)}, phase="")
    assert blamed(through, at({"all": (9, 9)}), through, through, finished=("w0", "w2", "w3")) == ["w1"]
    assert blamed(through, at({"all": (9, 8)}), at({"all": (8, 8)}), through, finished=("w0", "w3")) == ["w2"]


def test_a_hang_is_told_by_the_jobs_own_steps() -> None:
    pace = Pace(Detection(hang_floor_s=3.0, hang_factor=10.0))
    pace.resume(0, {})
    for boundary in range(30):
        pace.reached(boundary, boundary * 0.1)
    assert pace.hang_limit_s() == 3.0
    for boundary in range(30, 60):
        pace.reached(boundary, 3.0 + (boundary - 30) * 2.0)
    assert pace.step_s == 2.0 and pace.hang_limit_s() == 20.0


def one_slow_step(slowest_s: float) -> Pace:
    """Of a job that has executed three steps of which the second was slow, and then a hundred quick ones."""
    pace = Pace(Detection(hang_floor_s=3.0, first_step_s=300.0))
    pace.resume(0, {})
    for boundary, now in ((0, 0.0), (1, 0.1), *((b, slowest_s + b * 0.1) for b in range(2, 103))):
        pace.reached(boundary, now)
    return pace


def patience_at(pace: Pace, boundary: int, worker: str = "w1") -> float:
    return round(pace.patience_s(worker, at({"all": (8, 8)}, boundary=boundary)), 1)


def lose_and_join(pace: Pace, boundary: int, before: str, after: str) -> None:
    pace.lost(before)
    pace.resume(boundary, {after: 1})


def test_who_has_joined_may_take_as_long_as_the_jobs_slowest_first_step_until_it_has_executed_many() -> None:
    """It compiles what the others compiled in one of the job's first steps, not all of it in its own first one."""
    pace = one_slow_step(59.9)
    pace.resume(102, {"w1": 1})
    assert patience_at(pace, 102, "w0") == 3.0 and patience_at(pace, 102) == 180.0
    compiling, waiting = at({"all": (8, 8)}, boundary=102), at({"all": (9, 8)}, boundary=102)
    seen = {worker: (compiling if worker == "w1" else waiting, 100.0) for worker in RANKS}
    assert keeps_others_waiting(seen, RANKS, 150.0, pace) == []
    assert keeps_others_waiting(seen, RANKS, 300.0, pace) == ["w1"]
    pace.reached(103, 150.0)
    assert patience_at(pace, 103) == 180.0
    pace.resume(103, {"w2": 2})
    assert patience_at(pace, 103) == 180.0, "the recovery of another rank does not make it an old hand"
    assert patience_at(pace, 102 + NEW_STEPS) == 3.0


def test_a_late_slow_step_of_the_job_gives_who_joins_no_more_time() -> None:
    pace = one_slow_step(1.0)
    pace.reached(103, 100.0)
    pace.resume(103, {"w1": 1})
    assert patience_at(pace, 103) == 3.3


def test_after_a_newcomer_that_was_lost_as_hung_the_next_one_has_twice_the_time_in_twice_as_many_steps() -> None:
    pace = one_slow_step(1.0)
    pace.resume(102, {"w1": 1})
    lose_and_join(pace, 110, "w1", "w4")
    assert patience_at(pace, 110, "w4") == 6.6
    lose_and_join(pace, 120, "w4", "w5")
    assert patience_at(pace, 120, "w5") == patience_at(pace, 120 + 4 * NEW_STEPS - 1, "w5") == 13.2
    assert patience_at(pace, 120 + 4 * NEW_STEPS, "w5") == 3.0
    pace.resume(130, {"w6": 2})
    assert patience_at(pace, 130, "w6") == 3.3, "it is another rank's"
    pace.resume(140, {"w7": 1})
    assert patience_at(pace, 140, "w7") == 13.2, "who dies by itself tells nothing of how much time is enough"


def test_however_many_were_lost_a_newcomer_that_hangs_is_found_after_the_time_of_any_first_step() -> None:
    pace = one_slow_step(1.0)
    pace.resume(102, {"w1": 1})
    for number in range(1, 1200):
        lose_and_join(pace, 102, f"w{number}", f"w{number + 1}")
    assert patience_at(pace, 102, "w1200") == 300.0
    slower = one_slow_step(200.0)
    slower.resume(102, {"w1": 1})
    lose_and_join(slower, 102, "w1", "w2")
    assert patience_at(slower, 102, "w2") == 600.3


def test_lost_newcomers_are_forgotten_once_one_has_executed_many_steps_and_the_jobs_first_workers_never_counted() -> (
    None
):
    pace = one_slow_step(1.0)
    lose_and_join(pace, 102, "w1", "w4")
    assert patience_at(pace, 102, "w4") == 3.3
    lose_and_join(pace, 102, "w4", "w5")
    remembered = 2 * REMEMBERED_FOR * NEW_STEPS
    pace.reached(102 + remembered - 1, 1000.0)
    pace.resume(102 + remembered - 1, {"w6": 1})
    pace.reached(102 + 2 * remembered - 2, 1100.0)
    assert patience_at(pace, 102 + 2 * remembered - 2, "w6") == 3.0
    pace.reached(102 + 2 * remembered - 1, 1100.1)
    pace.resume(102 + 2 * remembered - 1, {"w7": 1})
    assert patience_at(pace, 102 + 2 * remembered - 1, "w7") == 3.3


def test_a_coordinator_that_did_not_see_the_jobs_first_step_gives_who_joins_the_time_of_any_first_step() -> None:
    pace = Pace(Detection(hang_floor_s=3.0, first_step_s=300.0))
    for boundary, now in ((50, 0.0), (51, 0.1), (52, 0.2)):
        pace.reached(boundary, now)
    pace.resume(52, {"w1": 1})
    assert patience_at(pace, 52) == 300.0 and patience_at(pace, 52, "w0") == 3.0
