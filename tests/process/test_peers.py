"""Other runtimes, broken for real: one kill of each, where their environments have been made (`make bench-peers`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.cells import name_of
from benchmarks.peers.crew import Member, write_plan
from benchmarks.peers.entries import CONTENDERS
from benchmarks.peers.environments import existing
from benchmarks.peers.nodes import node_of
from benchmarks.peers.scripts.probe import NODE
from chaos.launch import Launch, marked
from chaos.procfs import process_stat
from chaos.roster import WorkerInfo
from chaos.runtimes import Command

pytestmark = pytest.mark.process
BY_KEY = {contender.key: contender for contender in CONTENDERS}
SMALL = ["--layers", "2", "--heads", "2", "--width", "64"]


PARENT = "sleep 600 & sleep 600 & wait"
"""Three processes: what a launcher on a node and its workers look like."""


def crew_of(directory: Path, members: list[Member]) -> Command:
    plan = directory / "crew.json"
    write_plan(plan, members, None)
    return Command(argv=(sys.executable, "-m", "benchmarks.peers.crew", str(plan)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sleepers(token: str) -> dict[int, str]:
    return {pid: name for pid, name in marked(token).items() if name.startswith(("sh ", "sleep "))}


def test_a_crew_ends_with_its_last_worker_and_takes_its_servers_along(tmp_path: Path) -> None:
    late = tmp_path / "now"
    members = [
        Member(name="server", argv=("sleep", "600"), serves=True),
        Member(name="first", argv=("touch", str(late))),
        Member(name="second", argv=("sh", "-c", "exit 3"), after=str(late)),
    ]
    with Launch(crew_of(tmp_path, members), log=tmp_path / "log", token="crew-ends") as launch:
        until(lambda: launch.poll() is not None)
    assert launch.ended is not None
    assert (launch.ended.code, launch.ended.left) == (3, ())
    assert "second ended with 3" in (tmp_path / "log").read_text()


def test_a_lost_node_is_all_of_it_and_nothing_else(tmp_path: Path) -> None:
    members = [
        Member(name=name, node=name, argv=("sh", "-c", PARENT), environment={NODE: name}) for name in ("n0", "n1")
    ]
    with Launch(crew_of(tmp_path, members), log=tmp_path / "log", token="lost-node") as launch:
        until(lambda: len(sleepers("lost-node")) == 6)
        pid = next(pid for pid, name in sleepers("lost-node").items() if name.startswith("sleep "))
        stat = process_stat(pid)
        assert stat is not None
        # Its own word is not needed: that a process of the same node has started it is enough.
        worker = WorkerInfo(worker="w", node=None, pid=pid, start_ticks=stat.start_ticks)
        lost = {other.pid for other in node_of(worker, "lost-node")} | {pid}
        kept = set(sleepers("lost-node")) - lost
        assert (len(lost), len(kept)) == (3, 3)
        parents = {found.parent for one in lost if (found := process_stat(one)) is not None}
        assert len(parents) == 2  # the two of them below the third, which the crew has started
        launch.end()
        until(lambda: launch.poll() is not None)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("key", "lost"),
    [("phoenix/default", 1), ("torchrun-sync-10/tuned", 10), ("torchft/tuned", 1), ("nvrx-inprocess/tuned", 10)],
)
def test_a_killed_rank_comes_back(tmp_path: Path, key: str, lost: int) -> None:
    contender = BY_KEY[key]
    if contender.environment is not None and existing(contender.environment) is None:
        pytest.skip(f"its environment has not been made: python -m benchmarks.peers --only {contender.peer}")
    arguments = ["--only", key, "--metrics", "kill", "--trials", "1", "--out", str(tmp_path)]
    assert command.main([*arguments, "--", *SMALL]) == 0
    cell = command.kept(tmp_path / "peers.json")[name_of(contender, "kill")]
    (sample,) = cell.samples
    assert sample.recovery_s is not None, sample.why
    assert sample.lost_steps is not None
    assert sample.lost_steps <= lost
    assert sample.phases["detect"] is not None
    assert "never" not in (tmp_path / "peers.md").read_text()
