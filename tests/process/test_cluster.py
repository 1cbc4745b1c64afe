"""Isolated nodes and partitions on real namespaces: what is cut is cut, what is healed is healed, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cluster.client import HandClient
from chaos.cluster.layout import Plane
from chaos.cluster.shapes import Block, blocks
from chaos.errors import TargetGone
from chaos.procfs import all_processes
from tests.process.isolated import Cluster, Witness, cluster, skip_where_refused
from tests.support import wait_until

pytestmark = pytest.mark.process
BOTH = tuple(Plane)
ORDINARY = 65534


@pytest.fixture
def nodes(run_dir: Path) -> Iterator[Cluster]:
    skip_where_refused()
    with cluster(run_dir, 3) as there:
        yield there


def isolated(there: Cluster, node: str, *planes: Plane) -> frozenset[Block]:
    return blocks("isolate", planes or BOTH, there.network.nodes, node)


def hand_of(owner: int) -> int:
    """The process that holds faults for this process, by what it was started as."""
    (pid,) = [
        stat.pid
        for stat in all_processes()
        if stat.parent == owner and b"chaos.cluster.hand" in Path(f"/proc/{stat.pid}/cmdline").read_bytes()
    ]
    return pid


def test_an_isolated_node_is_cut_and_healed_and_the_receipt_tells(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as cut, Witness(nodes, "n0", "n2") as other:
        told = hand.apply("f", isolated(nodes, "n1"), ttl_s=60)
        # Two networks of three nodes, the coordinator on one of them: 6 + 12 ways, of which 4 + 6 lead to or from n1.
        assert told["proof"] | {"took_s": 0} == {"tried": 18, "passed_before": 18, "passed": 8, "cut": 10, "took_s": 0}
        cut.must_be_silent()
        other.must_talk()
        assert hand.over("f") == ""
        seen = hand.revert("f")
        assert seen["healed"] and seen["proof"]["passed"] == seen["proof"]["tried"] == 10
        cut.must_talk()


def test_one_plane_alone(nodes: Cluster) -> None:
    with (
        HandClient(nodes.file) as hand,
        Witness(nodes, "n0", "n1", Plane.DATA) as data,
        Witness(nodes, "n0", "n1", Plane.CONTROL) as control,
    ):
        hand.apply("f", isolated(nodes, "n1", Plane.CONTROL), ttl_s=60)
        control.must_be_silent()
        data.must_talk()


def test_two_partitions_at_once_are_healed_each_by_itself(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.apply("f", isolated(nodes, "n1"), ttl_s=60)
        hand.apply("g", blocks("pair", BOTH, nodes.network.nodes, "n0"), ttl_s=60)
        first = hand.revert("f")
        assert first["healed"] and first["proof"]["tried"] == 6  # n0 and n1 are still parted
        witness.must_be_silent()
        assert hand.revert("g")["healed"]
        witness.must_talk()


def test_a_partition_ends_with_its_time_to_live_though_nobody_asks(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.apply("f", isolated(nodes, "n1"), ttl_s=0.6)
        assert wait_until(lambda: hand.over("f"), "the hand heals it") == "its time to live is over"
        assert hand.revert("f")["healed"]
        witness.must_talk()


def test_a_flapping_partition_lets_through_in_between_and_ends_by_itself(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.apply("f", isolated(nodes, "n1"), ttl_s=60, period_s=2.0, count=3)
        wait_until(lambda: witness.drain() and not hand.over("f"), "packets pass in a whole half of a period")
        assert wait_until(lambda: hand.over("f"), "it ends") == "it has flapped as often as asked"
        assert hand.revert("f")["healed"]
        witness.must_talk()


def test_kill_9_of_the_hand_heals_and_a_new_one_says_so(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.apply("f", isolated(nodes, "n1"), ttl_s=60)
        os.kill(hand_of(os.getpid()), signal.SIGKILL)
        witness.must_talk()
        assert wait_until(lambda: hand.over("f"), "it is noticed") == "the process that held it was killed"
        seen = hand.revert("f")
        assert seen["healed"] and seen["proof"]["passed"] == 10
        assert hand.apply("g", isolated(nodes, "n1"), ttl_s=60)["proof"]["cut"] == 10  # and the next fault has a hand


OWNER = """
import sys
from pathlib import Path
from chaos.cluster.client import HandClient
from chaos.cluster.layout import Network, Plane
from chaos.cluster.shapes import blocks
file = Path(sys.argv[1])
hand = HandClient(file)
print(hand.apply("f", blocks("isolate", tuple(Plane), Network.read(file).nodes, "n1"), ttl_s=600), flush=True)
sys.stdin.read()
"""


def test_kill_9_of_its_owner_heals_and_ends_the_hand(nodes: Cluster) -> None:
    with Witness(nodes, "n0", "n1") as witness:
        command = [sys.executable, "-c", OWNER, str(nodes.file)]
        owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert owner.stdout is not None
        assert b"proof" in owner.stdout.readline()
        witness.must_be_silent()
        hand = hand_of(owner.pid)
        owner.kill()
        owner.communicate()
        witness.must_talk()
        wait_until(lambda: not Path(f"/proc/{hand}").exists(), "the hand ends")


def test_where_the_network_is_broken_already_nothing_is_applied(nodes: Cluster) -> None:
    with HandClient(nodes.file) as one, HandClient(nodes.file) as other:
        one.apply("f", isolated(nodes, "n1"), ttl_s=60)
        with pytest.raises(TargetGone, match=r"the network did not work before: .*n1"):
            other.apply("g", isolated(nodes, "n2"), ttl_s=60)


def test_with_its_holder_the_cluster_is_gone(nodes: Cluster) -> None:
    mine = {os.readlink(f"/proc/{nodes.network.pid}/fd/{party.namespace}") for party in nodes.network.parties}
    assert len(mine) == 4
    with HandClient(nodes.file) as hand:
        hand.apply("f", isolated(nodes, "n1"), ttl_s=60)
        nodes.holder.kill()
        nodes.holder.wait()
        assert hand.revert("f")["healed"]
    assert not mine & networks_in_use()


def networks_in_use() -> set[str]:
    found = set()
    for stat in all_processes():
        with_descriptors = [Path(f"/proc/{stat.pid}/ns/net"), *_descriptors(stat.pid)]
        for path in with_descriptors:
            try:
                found.add(os.readlink(path))
            except OSError:
                continue
    return found


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


@pytest.mark.root
def test_an_ordinary_user_can_do_all_of_it(run_dir: Path) -> None:
    """Of the tests above, run by somebody who has no right of root, where root runs this one."""
    skip_where_refused()
    become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--bounding-set=-all", "--"]
    if subprocess.run([*become, sys.executable, "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"user {ORDINARY} may not run {sys.executable}")
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(run_dir / "tests"), "-k", "tells or owner"]
    os.chown(run_dir, ORDINARY, ORDINARY)
    command = [*become, sys.executable, "-B", "-m", "pytest", *arguments, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
