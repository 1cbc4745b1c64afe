"""Small states that change after a step's first reduction: all ranks decide alike, and nothing else costs anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
import torch.distributed as dist

from phoenix_core.advice import LATE_CHANGE
from phoenix_core.bandwidth import Throttle
from phoenix_core.exchange import Exchange
from phoenix_core.gate import Gate
from phoenix_core.inbox import Inbox
from phoenix_core.kept import Payload, checksum
from phoenix_core.late import Told
from phoenix_core.replicator import Replicator
from phoenix_core.snapshot import Protected
from phoenix_core.transport import PeerClient
from tests.unit.test_snapshot import Counter

SAME, CHANGED, NO_BACKWARD = 1, 2, 0


class Rank:
    """Rank 0 of two, which counts something; its collectives are those with a rank that votes `others`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counter, self.inbox, protected = Counter(), Inbox(), Protected()
        protected.add({"counter": self.counter})
        self.protected = protected
        self.holder = Exchange(protected, "127.0.0.1", "token")
        self.gate = Gate(protected, self.inbox, lambda _: None, Throttle(None))
        self.gate.open(0, 1, 1, [self.holder.address] * 2, "token")
        self.boundary, self.task, self.others = 0, -1, SAME
        self.calls: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: self.task)
        monkeypatch.setattr(dist, "all_reduce", self._all_reduce)
        monkeypatch.setattr(dist, "barrier", lambda: self._met("barrier"))
        monkeypatch.setattr("phoenix_core.gate.say_once", self.said.append)

    def _all_reduce(self, vote: torch.Tensor, op: object) -> None:
        assert op == dist.ReduceOp.MAX
        vote.clamp_(min=self.others)
        self._met("agree")

    def _met(self, what: str) -> None:
        """Once ranks have met here, any of them may change its parameters."""
        assert self.is_safe()
        self.calls.append(what)

    def is_safe(self) -> bool:
        """Whether the holder has the small state as it is now."""
        kept = self.holder.held_states[0].get(0, self.boundary + 1)
        return bytes(kept) == self.protected.capture_small({})

    def reduce(self, *, times: int = 1, task: int = 1) -> None:
        self.task = task
        for _ in range(times):
            self.gate.before_collective("allreduce", everybody=True)
        self.task = -1

    def count(self) -> None:
        self.counter.value += 1

    def begin(self) -> None:
        self.gate.arrive(self.boundary)
        self.gate.begin_step({})

    def end(self, *, safe: bool = True) -> None:
        self.gate.before_optimizer(2)
        assert self.is_safe() is safe
        self.gate.committed(1)
        self.boundary += 1

    def step(self, during: Callable[[], None] = lambda: None, *, safe: bool = True) -> None:
        """Two buckets; `during` what comes between them."""
        self.begin()
        self.reduce()
        during()
        self.reduce()
        self.end(safe=safe)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    made = Rank(monkeypatch)
    yield made
    made.gate.close()
    made.holder.close()


def test_a_job_without_the_habit_meets_once_and_never_again(rank: Rank) -> None:
    for _ in range(3):
        rank.step()
    assert rank.calls == ["agree"] and not rank.said


def test_the_habit_of_one_rank_is_everybodys(rank: Rank) -> None:
    """This one changes nothing, and would hang the others if it decided for itself."""
    rank.others = CHANGED
    for _ in range(3):
        rank.step()
    assert rank.calls == ["agree", "barrier", "barrier"]
    rank.begin()
    rank.reduce(times=2)
    assert max(rank.gate.own.boundaries()[0]) == rank.boundary, "the state of the first reduction is of no use"


def test_what_changes_between_reductions_is_safe_before_any_rank_goes_on(rank: Rank) -> None:
    for _ in range(3):
        rank.step(rank.count)
    assert rank.calls == ["agree", "barrier", "barrier"] and not rank.said


def test_a_change_before_the_first_reduction_counts_since_another_step_may_reduce_earlier(rank: Rank) -> None:
    rank.begin()
    rank.task = 1
    rank.gate.enter_backward()
    rank.count()
    rank.reduce(times=2)
    rank.end()
    assert rank.gate.late is True


def test_what_changes_between_two_passes_is_captured_by_the_second(rank: Rank) -> None:
    """Gradients are accumulated, each pass with a batch and random numbers of its own."""
    rank.begin()
    for task in (1, 2):
        rank.reduce(times=2, task=task)
        rank.count() if task == 1 else None
    rank.end()
    rank.step()
    assert rank.calls == ["agree"] and rank.gate.late is False


def test_a_step_without_a_backward_pass_decides_nothing(rank: Rank) -> None:
    rank.others = NO_BACKWARD
    rank.begin()
    rank.end()
    assert rank.calls == ["agree"] and rank.gate.late is None
    rank.step(rank.count)
    assert rank.calls == ["agree", "agree"] and rank.gate.late is True


def test_what_was_agreed_in_a_step_that_broke_is_agreed_again(rank: Rank) -> None:
    """Others may not have heard of it, and a replacement has not."""
    rank.begin()
    rank.reduce(times=2)
    rank.gate.before_optimizer(2)
    assert rank.gate.told(0) == Told(late=None)
    rank.step()
    assert rank.calls == ["agree", "agree"] and rank.gate.told(1).late is False


@pytest.mark.parametrize("late", [False, True])
def test_a_replacement_goes_on_with_what_its_twin_tells(rank: Rank, late: bool) -> None:
    rank.gate.late = late
    rank.step(rank.count if late else lambda: None)
    assert rank.calls == ["barrier"] * late


def test_a_replacement_leaves_its_loop_where_its_twin_did(rank: Rank) -> None:
    rank.step()
    rank.gate.left = 1
    told, rank.gate.left = rank.gate.told(1), None
    rank.gate.hear(told, disk=False)
    assert rank.gate.left == 1 and rank.gate.late is False


def test_a_habit_that_begins_later_is_safe_on_its_own_rank_and_told_of(rank: Rank) -> None:
    rank.step()
    rank.step(rank.count, safe=False)  # found when the loop comes to its next step
    rank.step(rank.count)
    assert rank.calls == ["agree"] and rank.said == [LATE_CHANGE]
    assert list(rank.gate.told(3).changed) == [("objects", "counter")], "who died in between has what was before"


def test_what_changes_after_the_optimizer_is_looked_for_and_not_told_of(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures: list[bytes] = []
    capture = rank.protected.capture_small

    def counted(recorded: Mapping[str, object]) -> bytes:
        captures.append(capture(recorded))
        return captures[-1]

    monkeypatch.setattr(rank.protected, "capture_small", counted)
    counts = []
    for counts_after in (False, True, False, False):
        captures.clear()
        rank.step()
        counts.append(len(captures))
        rank.counter.value += counts_after
    assert rank.calls == ["agree"] and not rank.said
    assert counts[1] == counts[3] == counts[2] - 1, "a job without the habit pays for no capture"


def test_a_state_that_is_sent_twice_is_not_safe_by_its_first_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    second, confirmed, put = threading.Event(), threading.Semaphore(0), PeerClient.put

    def slowly(self: PeerClient, owner: int, boundary: int, payload: Payload, *rest: object) -> bool:
        if payload == b"second":
            second.wait(30)
        return put(self, owner, boundary, payload, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(PeerClient, "put", slowly)
    holder = Exchange(Protected(), "127.0.0.1", "token")

    def never(boundary: int) -> None:
        raise AssertionError(boundary)

    replicator = Replicator(0, holder.address, "token", confirmed.release, 4, Throttle(None), never)
    for payload in (b"first", b"second"):
        replicator.send(5, payload, checksum(payload))
    assert confirmed.acquire(timeout=30) and not replicator.safe(5)
    second.set()
    assert confirmed.acquire(timeout=30) and replicator.safe(5) and not replicator.safe(6)
    replicator.close()
    holder.close()
