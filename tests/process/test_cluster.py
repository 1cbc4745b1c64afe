"""Isolated nodes and partitions on real namespaces: what is cut is cut, what is healed is healed, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cluster.abilities import abilities
from chaos.cluster.client import HandClient
from chaos.cluster.layout import Plane
from chaos.cluster.shapes import Block, blocks
from chaos.errors import TargetGone
from chaos.procfs import all_processes, start_ticks
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
        told = hand.part("f", isolated(nodes, "n1"), ttl_s=60)
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
        hand.part("f", isolated(nodes, "n1", Plane.CONTROL), ttl_s=60)
        control.must_be_silent()
        data.must_talk()


def test_two_partitions_at_once_are_healed_each_by_itself(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.part("f", isolated(nodes, "n1"), ttl_s=60)
        hand.part("g", blocks("pair", BOTH, nodes.network.nodes, "n0"), ttl_s=60)
        first = hand.revert("f")
        assert first["healed"] and first["proof"]["tried"] == 6  # n0 and n1 are still parted
        witness.must_be_silent()
        assert hand.revert("g")["healed"]
        witness.must_talk()


def test_a_partition_ends_with_its_time_to_live_though_nobody_asks(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.part("f", isolated(nodes, "n1"), ttl_s=0.6)
        assert wait_until(lambda: hand.over("f"), "the hand heals it") == "its time to live is over"
        assert hand.revert("f")["healed"]
        witness.must_talk()


@pytest.mark.soak
def test_a_flapping_partition_lets_through_in_between_and_ends_by_itself(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.part("f", isolated(nodes, "n1"), ttl_s=60, period_s=2.0, count=3)
        wait_until(lambda: witness.drain() and not hand.over("f"), "packets pass in a whole half of a period")
        assert wait_until(lambda: hand.over("f"), "it ends") == "it has flapped as often as asked"
        assert hand.revert("f")["healed"]
        witness.must_talk()


def test_kill_9_of_the_hand_heals_and_a_new_one_says_so(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as witness:
        hand.part("f", isolated(nodes, "n1"), ttl_s=60)
        os.kill(hand_of(os.getpid()), signal.SIGKILL)
        witness.must_talk()
        assert wait_until(lambda: hand.over("f"), "it is noticed") == "the process that held it was killed"
        seen = hand.revert("f")
        assert seen["healed"] and seen["proof"]["passed"] == 10
        assert hand.part("g", isolated(nodes, "n1"), ttl_s=60)["proof"]["cut"] == 10  # and the next fault has a hand
        assert hand.revert("g")["healed"]
        os.kill(killed := hand_of(os.getpid()), signal.SIGKILL)
        wait_until(lambda: start_ticks(killed) is None, "its end")
        assert hand.part("h", isolated(nodes, "n1"), ttl_s=60)["proof"]["cut"] == 10  # also where it held nothing


OWNER = """
import sys
from pathlib import Path
from chaos.cluster.abilities import abilities
from chaos.cluster.client import HandClient
from chaos.cluster.layout import Network, Plane
from chaos.cluster.shapes import blocks
file = Path(sys.argv[1])
hand = HandClient(file)
print(hand.part("f", blocks("isolate", tuple(Plane), Network.read(file).nodes, "n1"), ttl_s=600), flush=True)
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


RATE = {"kind": "network_rate", "node": "n1", "planes": ["data"], "params": {"mbit_s": 5}}


def test_a_slow_network_is_measured_before_while_and_after(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand:
        seen = hand.apply("f", **RATE, ttl_s=60)["proof"]["data_mbit_s"]
        assert seen["during"] < 7.5 < seen["before"], seen
        with pytest.raises(TargetGone, match="another fault holds a link of this node"):
            hand.apply("g", **RATE, ttl_s=60)
        after = hand.revert("f")
        assert after["healed"] and after["proof"]["data_mbit_s"]["after"] > 7.5, after


def test_a_slow_network_and_a_partition_at_once_end_each_by_itself(nodes: Cluster) -> None:
    """Where no packet passes nothing can be measured: the kernel says that the slow link is none any more."""
    with HandClient(nodes.file) as hand:
        hand.apply("slow", **RATE, ttl_s=60)
        hand.part("cut", isolated(nodes, "n1"), ttl_s=60)
        seen = hand.revert("slow")
        assert seen["healed"] and seen["proof"] == {"lifted": True}
        with pytest.raises(TargetGone, match="another fault holds a link of this node"):
            hand.apply("late", **RATE, ttl_s=60)
        assert hand.over("cut") == ""
        assert hand.revert("cut")["proof"]["passed"] == 10


def test_two_slow_nodes_are_not_measured_by_each_other(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand:
        hand.apply("one", **RATE, ttl_s=60)
        hand.apply("two", **{**RATE, "node": "n0", "params": {"mbit_s": 2}}, ttl_s=60)
        seen = hand.revert("one")
        assert seen["healed"] and seen["proof"]["data_mbit_s"]["after"] > 7.5, seen
        assert hand.revert("two")["healed"]


@pytest.mark.soak
def test_kill_9_of_the_hand_lifts_a_slow_network(nodes: Cluster) -> None:
    """The kernel would keep it: it is the hand's child that lifts it."""
    with HandClient(nodes.file) as hand:
        hand.apply("f", **RATE, ttl_s=600)
        pid = hand_of(os.getpid())
        (guard,) = [stat.pid for stat in all_processes() if stat.parent == pid]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{guard}").exists(), "the guard has done its work")
        assert wait_until(lambda: hand.over("f"), "it is noticed") == "the process that held it was killed"
        seen = hand.revert("f")
        assert seen["healed"] and seen["proof"]["data_mbit_s"]["after"] > 7.5, seen


def test_connections_are_reset_and_counted(nodes: Cluster) -> None:
    with HandClient(nodes.file) as hand, Witness(nodes, "n0", "n1") as hit, Witness(nodes, "n0", "n2") as other:
        order = {"kind": "network_reset", "node": "n1", "params": {}}
        assert hand.apply("f", **order, planes=["data"])["proof"] == {"data_connections": 1}
        hit.must_be_closed()
        other.must_talk()
        with pytest.raises(TargetGone, match="n1 has no connection on control"):
            hand.apply("g", **order, planes=["control"])


def test_what_this_kernel_lacks_is_refused_with_the_fix(nodes: Cluster) -> None:
    lacks = abilities().network_delay
    if not lacks:
        pytest.skip("this kernel has netem")
    assert "as root: modprobe sch_netem" in lacks
    with HandClient(nodes.file) as hand, pytest.raises(TargetGone, match="no sch_netem"):
        hand.apply("f", kind="network_delay", node="n1", planes=["data"], params={"delay_s": 0.05}, ttl_s=60)


@pytest.mark.soak
def test_where_the_network_is_broken_already_nothing_is_applied(nodes: Cluster) -> None:
    with HandClient(nodes.file) as one, HandClient(nodes.file) as other:
        one.part("f", isolated(nodes, "n1"), ttl_s=60)
        with pytest.raises(TargetGone, match=r"the network did not work before: .*n1"):
            other.part("g", isolated(nodes, "n2"), ttl_s=60)


def test_with_its_holder_the_cluster_is_gone(nodes: Cluster) -> None:
    mine = {os.readlink(f"/proc/{nodes.network.pid}/fd/{party.namespace}") for party in nodes.network.parties}
    assert len(mine) == 4
    with HandClient(nodes.file) as hand:
        hand.part("f", isolated(nodes, "n1"), ttl_s=60)
        nodes.holder.kill()
        nodes.holder.wait()
        assert hand.revert("f")["healed"]
    wait_until(lambda: not mine & networks_in_use(), "nobody is in the namespaces any more, or holds one")


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
def test_an_ordinary_user_can_do_all_of_it() -> None:
    """Of the tests above, run by somebody who has no right of root, where root runs this one."""
    skip_where_refused()
    become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--bounding-set=-all", "--"]
    # setpriv itself may still start what the user may not: hence by way of a second process.
    again = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', ''], check=True)"
    if subprocess.run([*become, sys.executable, "-c", again], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"user {ORDINARY} may not run {sys.executable}")
    with tempfile.TemporaryDirectory() as directory:  # run_dir lies where only root may look
        os.chown(directory, ORDINARY, ORDINARY)
        arguments = ["-q", "-x", "-p", "no:cacheprovider", "--basetemp", f"{directory}/t", "-k", "tells or owner"]
        command = [*become, sys.executable, "-B", "-m", "pytest", *arguments, __file__]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
