"""What changes after a step's gradients are ready: taken over from a twin where both were equal, and only there."""

from __future__ import annotations

import pytest
import torch

from phoenix_core import late
from phoenix_core.kept import Payload
from phoenix_core.snapshot import Protected
from tests.unit.test_snapshot import Counter


class Rank:
    """An average of the weights, whose count is a buffer, and a counter; numbers of its own."""

    def __init__(self, seed: int, count: int = 3) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.counter = Counter()
        self.counter.value = count
        self.protected = Protected()
        self.protected.add({"model": self.model, "average": self.average, "counter": self.counter})
        self.seed = seed

    def small(self) -> bytes:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.protected.capture_small({"loss": float(self.seed)})

    def change(self) -> None:
        self.average.update_parameters(self.model)
        self.counter.value += 1
        self.seed += 100

    def load(self, small: Payload) -> tuple[int, int]:
        with torch.random.fork_rng():
            self.recorded = self.protected.load_small(bytes(small))
            self.drawn = torch.initial_seed()
        return int(self.average.n_averaged), self.counter.value


def taken_over(dead: Rank, twin: Rank) -> Payload:
    ready, small = twin.small(), dead.small()
    twin.change()
    return late.taken_over(small, late.changed([ready], twin.small()))


def test_what_was_equal_on_both_changed_alike() -> None:
    dead = Rank(seed=1)
    result = taken_over(dead, Rank(seed=2))
    assert Rank(seed=3).load(result) == (1, 4)
    taker = Rank(seed=3)
    taker.load(result)
    assert taker.recorded == {"loss": 1.0}, "what it recorded is its own"


def test_what_was_not_equal_is_left_as_it_is() -> None:
    dead = Rank(seed=1, count=5)
    assert Rank(seed=3).load(taken_over(dead, Rank(seed=2))) == (1, 5)


@pytest.mark.parametrize("draws", [False, True])
def test_random_numbers_that_were_drawn_are_told_from_the_rest(draws: bool) -> None:
    rank = Rank(seed=1)
    ready = rank.small()
    rank.counter.value += 1
    rank.seed += draws
    assert late.drew(ready, rank.small()) is draws


def test_nothing_changed_is_nothing() -> None:
    rank = Rank(seed=1)
    assert late.changed([rank.small()], rank.small()) == {}
    assert late.taken_over(rank.small(), {}) == rank.small()


def test_a_rank_may_have_died_with_either_of_two_states_that_were_sent() -> None:
    """The one of the first reduction, or the one before the optimizer."""
    for died_with in range(2):
        dead, twin, sent = Rank(seed=1), Rank(seed=2), []
        for instant in range(2):
            twin.counter.value += instant
            sent.append(twin.small())
        dead.counter.value += died_with
        twin.change()
        result = late.taken_over(dead.small(), late.changed(sent, twin.small()))
        assert Rank(seed=3).load(result) == (1, 5)


@pytest.mark.parametrize(
    ("seen", "in_the_end", "vote"),
    [
        ("", "a", 0),
        ("aa", "a", 1),
        ("ab", "b", 2),
        ("aba", "a", 2),  # a collective in a recomputed part, whose random numbers are those of the forward pass
        ("aa", "b", 2),  # after the last reduction
    ],
)
def test_a_rank_votes_by_all_that_it_saw_of_its_small_state(seen: str, in_the_end: str, vote: int) -> None:
    watch = late.Watch()
    for small in seen:
        watch.see(7, small.encode())
    assert watch.vote(in_the_end.encode()) == vote
