"""A slow rank is told of, by name and once; ranks that take turns in being the last are not."""

from __future__ import annotations

from collections.abc import Callable

from phoenix_core.pace import Pace
from phoenix_core.protocol import Progress, Record
from phoenix_core.settings import Detection
from phoenix_core.straggler import Stragglers

RANKS = ("w0", "w1", "w2")
STEP_S, TICK_S = 0.5, 0.05


def told(
    last: Callable[[int], str | None], steps: int, step_s: float = STEP_S, *, broken: bool = False
) -> list[Record]:
    """Records of `steps` steps; in step i all others wait for `last(i)` during its second half.

    `broken`: that one has met a broken connection.
    """
    pace = Pace(Detection())
    for boundary in range(3):
        pace.reached(boundary, boundary * step_s)
    stragglers = Stragglers(pace, 0.1)
    found = []
    ticks = round(step_s / TICK_S)
    for tick in range(steps * ticks):
        index, part = divmod(tick, ticks)
        slow = last(index) if part >= ticks / 2 else None
        waiting = {"all": (index + 1, index)} if slow is not None else {"all": (index, index)}
        late = Progress(streams={"all": (index, index)}, broken=broken)
        seen = {worker: (late if worker == slow else Progress(streams=waiting), 0.0) for worker in RANKS}
        found += stragglers.look(seen, RANKS, tick * TICK_S)
    return found


def test_the_rank_that_all_others_wait_for_is_told_of_once() -> None:
    (record,) = told(lambda _: "w1", 100)
    assert record.kind == "straggler_suspected"
    assert record.fields["worker"] == "w1" and record.fields["rank"] == 1
    share = float(str(record.fields["waiting_s"])) / float(str(record.fields["of_s"]))
    assert 0.4 < share < 0.6


def test_one_that_waits_to_hear_who_has_failed_is_not_slow() -> None:
    assert told(lambda _: "w1", 100, broken=True) == []


def test_ranks_that_are_late_in_turns_are_not() -> None:
    assert told(lambda step: RANKS[step % 3], 100) == []


def test_one_that_is_slow_again_after_it_kept_up_is_told_of_again() -> None:
    assert len(told(lambda step: "w1" if step // 50 % 2 == 0 else None, 150)) == 2


def test_of_steps_shorter_than_the_watermarks_age_nothing_is_said() -> None:
    assert told(lambda _: "w1", 300, step_s=0.2) == []
