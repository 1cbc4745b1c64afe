"""What counts as a collective that is over, and what never does."""

from __future__ import annotations

import pytest

from phoenix_core.watermark import Watermark


class Work:
    def __init__(self, over: bool) -> None:
        self.over = over

    def is_completed(self) -> bool:
        return self.over


class Interrupted(BaseException):
    """As the signal's: thrown between the beginning of a collective and its being followed."""


def begun(watermark: Watermark, *, over: bool, what: str = "") -> Work:
    work = Work(over)
    watermark.through("world", lambda: (work, work), what)
    return work


def test_a_stream_is_at_rest_once_all_its_collectives_are_over() -> None:
    watermark = Watermark()
    watermark.know("world")
    assert watermark.at_rest("world") == 0
    begun(watermark, over=True)
    late = begun(watermark, over=False)
    begun(watermark, over=True)
    assert watermark.at_rest("world") is None and watermark.counts() == {"world": (3, 1)}
    assert late in watermark.pending()
    late.over = True
    assert watermark.at_rest("world") == 3 and not watermark.pending()


def test_of_each_stream_it_is_told_which_collective_it_waits_in() -> None:
    watermark = Watermark()
    watermark.know("row")
    begun(watermark, over=True, what="broadcast 4")
    first = begun(watermark, over=False, what="allreduce 12")
    begun(watermark, over=False, what="barrier")
    assert watermark.counts()["world"] == (3, 1) and watermark.doing() == {"world": "allreduce 12"}
    first.over = True
    assert watermark.counts()["world"] == (3, 2) and watermark.doing() == {"world": "barrier"}


def test_one_that_an_interruption_parted_from_its_count_stays_in_flight() -> None:
    watermark = Watermark()

    def interrupted() -> tuple[Work, Work]:
        raise Interrupted

    with pytest.raises(Interrupted):
        watermark.through("world", interrupted)
    begun(watermark, over=True)
    assert watermark.at_rest("world") is None
    watermark.reset()
    assert watermark.at_rest("world") == 0


def test_one_that_was_refused_does_not_count() -> None:
    watermark = Watermark()

    def refused() -> tuple[Work, Work]:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError):
        watermark.through("world", refused)
    assert watermark.at_rest("world") == 0
