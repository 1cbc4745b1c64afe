"""Who can be lost, and when: two ranks, a node, a rank and its holder, a spare, somebody in mid recovery."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.cluster.client import HandClient
from chaos.cluster.layout import Network, Plane
from chaos.cluster.shapes import blocks
from phoenix_core.events import Event, read_events
from tests.process.isolated import on_nodes, skip_where_refused
from tests.process.job import DEADLINE_S, Finished, Watched, launch, run

STEPS = 40
AT = 10
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = run(tmp_path_factory.mktemp("twin"), "--steps", str(STEPS), flags=("--nnodes", "4", "--spares", "0"))
    assert finished.code == 0, finished.stderr
    return finished


class Blow:
    """Strikes once with `sig`, as soon as `when` says so of an event and `spares` are parked."""

    def __init__(
        self,
        spares: int,
        when: Callable[[Event], bool],
        whom: Callable[[Event, Watched], Sequence[int]],
        sig: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.spares = spares
        self.when = when
        self.whom = whom
        self.sig = sig
        self.struck = False

    def __call__(self, event: Event, watched: Watched) -> None:
        if not self.struck and len(watched.parked) >= self.spares and self.when(event):
            self.struck = True
            for pid in self.whom(event, watched):
                os.kill(pid, self.sig)


def in_training(event: Event) -> bool:
    return event.kind == "step_committed" and event.rank == 0 and event.step is not None and event.step >= AT


def ranks(*numbers: int) -> Callable[[Event, Watched], Sequence[int]]:
    return lambda _, watched: [watched.pids[watched.ranks[rank]] for rank in numbers]


def a_spare(_: Event, watched: Watched) -> Sequence[int]:
    return [watched.pids[min(watched.parked)]]


def agent_of_rank(number: int) -> Callable[[Event, Watched], Sequence[int]]:
    """The agent is the parent of its workers, which die with it."""

    def find(_: Event, watched: Watched) -> Sequence[int]:
        worker = watched.pids[watched.ranks[number]]
        return [int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])]

    return find


class Twice:
    """A second blow that waits for an event of the recovery from the first.

    It spares ranks 0 and 2: until that recovery is over only 2 has the state of rank 1, and only 0 has its own, since
    its holder was rank 1.
    """

    def __init__(self, kind: str, whom: Callable[[Event, Watched], Sequence[int]]) -> None:
        self.first = Blow(2, in_training, ranks(1))
        self.second = Blow(0, lambda event: event.kind == kind and event.rank in (1, 3), whom)

    @property
    def struck(self) -> bool:
        return self.first.struck and self.second.struck

    def __call__(self, event: Event, watched: Watched) -> None:
        if self.first.struck:
            self.second(event, watched)
        self.first(event, watched)


def its_worker(event: Event, watched: Watched) -> Sequence[int]:
    assert event.worker is not None
    return [watched.pids[event.worker]]


@pytest.mark.parametrize(
    ("blow", "flags"),
    [
        pytest.param(
            lambda: Blow(2, in_training, ranks(1, 3)), ("--nnodes", "4"), marks=pytest.mark.soak, id="two-ranks"
        ),
        pytest.param(
            lambda: Blow(2, in_training, agent_of_rank(2)),
            ("--nnodes", "2", "--nproc-per-node", "2"),
            marks=pytest.mark.soak,
            id="node-with-two-ranks",
        ),
        pytest.param(
            lambda: Blow(2, in_training, agent_of_rank(2), signal.SIGSTOP),
            ("--nnodes", "2", "--nproc-per-node", "2"),
            marks=pytest.mark.soak,
            id="silent-node-with-two-ranks",
        ),
        pytest.param(lambda: Blow(2, in_training, ranks(0)), ("--nnodes", "4"), marks=pytest.mark.soak, id="rank-0"),
        pytest.param(lambda: Blow(2, in_training, a_spare), ("--nnodes", "4"), marks=pytest.mark.soak, id="a-spare"),
        pytest.param(
            lambda: Twice("spare_assigned", its_worker),
            ("--nnodes", "4"),
            marks=pytest.mark.soak,
            id="the-spare-that-comes",
        ),
        pytest.param(
            lambda: Twice("worker_quiesced", its_worker),
            ("--nnodes", "4"),
            marks=pytest.mark.soak,
            id="a-survivor-that-quiesced",
        ),
        pytest.param(
            lambda: Twice("state_restored", its_worker), ("--nnodes", "4"), marks=pytest.mark.soak, id="a-restored-rank"
        ),
    ],
)
def test_the_run_goes_on_bit_for_bit(
    run_dir: Path, twin: Finished, blow: Callable[[], Blow | Twice], flags: Sequence[str]
) -> None:
    struck = blow()
    finished = run(run_dir, "--steps", str(STEPS), flags=(*flags, "--spares", "2"), on_event=struck)
    assert struck.struck
    assert finished.code == 0, finished.stderr
    assert finished.losses == twin.losses
    assert finished.digests == twin.digests and finished.buffers == twin.buffers


class Cut:
    """Isolates the node of rank 2 from step AT on, until the others have done all steps of the twin without it.

    The job ends once that is healed and the process of the old rank 2 has ended.
    """

    def __init__(self, hand: HandClient, stop_file: Path) -> None:
        self.hand = hand
        self.stop_file = stop_file
        self.cut_at = 0
        self.healed: object = None
        self.exited = False

    def __call__(self, event: Event, watched: Watched) -> None:
        if not self.cut_at and watched.parked and in_training(event):
            network = Network.read(self.hand.file)
            assert network is not None
            self.cut_at = self.hand.part("f", blocks("isolate", tuple(Plane), network.nodes, "n2"), ttl_s=60)["at"]
        elif self.cut_at and self.healed is None and event.kind == "step_committed" and event.step == STEPS - 1:
            self.healed = self.hand.revert("f")["healed"]
        self.exited = self.exited or (event.kind == "worker_exited" and event.worker == "w2")
        if self.healed is not None and self.exited:
            self.stop_file.touch()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_isolated_node_is_replaced_and_does_not_train_on_when_the_network_is_healed(
    run_dir: Path, twin: Finished
) -> None:
    skip_where_refused()
    file = run_dir / "network.json"
    with HandClient(file) as hand:
        cut = Cut(hand, run_dir / "stop")
        finished = run(
            run_dir,
            *("--steps", "1000000", "--stop-file", str(cut.stop_file)),
            flags=("--nnodes", "4", "--spares", "1", "--hosts", str(file)),
            prefix=on_nodes(file, 5),
            on_event=cut,
            deadline_s=280,
        )
    assert cut.healed is True
    assert finished.code == 0, finished.stderr
    first = next(event for event in finished.events if event.kind == "failure_detected")
    assert (first.worker, first.rank) == ("w2", 2), first
    assert {place: loss for place, loss in finished.losses.items() if place[1] < STEPS} == twin.losses
    late = [e for e in finished.events if e.worker == "w2" and e.kind == "step_committed" and e.at > first.at]
    assert late == []


@pytest.mark.soak
def test_a_rank_lost_with_its_holder_ends_the_job_and_is_named(run_dir: Path) -> None:
    struck = Blow(2, in_training, ranks(1, 2))
    finished = run(run_dir, "--steps", "400", flags=("--nnodes", "4", "--spares", "2"), on_event=struck)
    assert finished.code == 1
    assert "nobody holds the small state of rank 1" in finished.stderr


@pytest.mark.soak
def test_a_node_that_hears_nothing_of_its_coordinator_ends_its_workers(run_dir: Path) -> None:
    job = launch(run_dir, "--steps", "100000", flags=("--nnodes", "2", "--spares", "0"))
    deadline = time.monotonic() + DEADLINE_S
    while not any(event.kind == "step_committed" for event in read_events(run_dir / "events")):
        assert job.poll() is None and time.monotonic() < deadline
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    (coordinator,) = [pid for pid in children if b"coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(coordinator), signal.SIGSTOP)
    try:
        while sum(event.kind == "worker_exited" for event in read_events(run_dir / "events")) < 2:
            assert time.monotonic() < deadline, "a node without a coordinator trains on"
    finally:
        os.kill(int(coordinator), signal.SIGCONT)
    stderr = job.communicate(timeout=DEADLINE_S)[1]
    assert job.returncode == 1 and "the coordinator is silent; this node ends its workers" in stderr
