"""The Xid of a GPU: who is told, that all are told the same, what the receipt proves, and that it can be taken back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.agent.mailbox import DIRECTORY
from chaos.checkout import import_path
from chaos.errors import InvalidFault, TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import Active
from chaos.injectors.gpu import GpuXid
from chaos.kinds_gpu import GPU_XID
from chaos.nvml.prepare import machine
from chaos.nvml.state import NodeGpus
from chaos.procfs import start_ticks
from chaos.roster import WorkerInfo, WorkerState
from phoenix_core.device_errors import classify
from phoenix_core.xid_reports import read_line
from phoenix_core.xids import catalogue
from tests.nvml_reader import Reader
from tests.support import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler (apt-get install gcc libc6-dev)"),
]


class Node:
    """Node n3 with two GPUs, of which a process uses the second, and a monitor that listens."""

    def __init__(self, directory: Path, driver: str = "r570", script: str = "") -> None:
        """The process does nothing, or runs `script` with an agent in it."""
        self.gpus = NodeGpus.create(directory / "gpus" / "n3", machine("n3", 2, driver))
        self.injector = GpuXid(directory / "gpus", directory / "agents")
        boxes = directory / "agents"
        if script:
            (directory / "train.py").write_text(script)
            command = [sys.executable, "-m", "chaos.agent", str(directory / "train.py"), str(directory / "count")]
        else:
            command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
        told = {**os.environ, "PYTHONPATH": import_path(), DIRECTORY: str(boxes)}
        self.victim = subprocess.Popen(command, env=told, stderr=subprocess.PIPE, text=True)
        if script:
            wait_until(lambda: (directory / "count").exists(), "the training has begun")
        self.monitor = Reader(self.gpus)
        self.monitor.ask("globals().update(events=listen())")

    @property
    def worker(self) -> WorkerInfo:
        ticks = start_ticks(self.victim.pid)
        assert ticks is not None
        state = WorkerState.ACTIVE
        place = {"worker": "w3", "node": "n3", "rank": 3, "local_rank": 1}
        return WorkerInfo(pid=self.victim.pid, start_ticks=ticks, state=state, **place)  # type: ignore[arg-type]

    def inject(self, **params: Any) -> Active:
        pending = self.injector.inject(planned(**params), self.worker)
        found: list[Active] = []

        def came() -> bool:
            active = pending.poll()
            found.extend([active] if active is not None else [])
            return active is not None

        wait_until(came, "the receipt")
        return found[0]

    def heard(self, count: int) -> list[int]:
        return [self.monitor.ask("wait(events, 20000)")[2] for _ in range(count)]

    def logged(self) -> list[int]:
        seen = [read_line(line) for line in self.gpus.kernel_log.read_text().splitlines()]
        return [one.xid for one in seen if one is not None]

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        assert self.victim.stderr is not None
        self.victim.stderr.close()
        self.monitor.process.communicate()


def planned(**params: Any) -> PlannedFault:
    return PlannedFault.from_json({"id": "f", "kind": "gpu_xid", "target": {"rank": 3}, "params": params})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor takes events when the test asks it to: most receipts need not wait for that."""
    monkeypatch.setattr("chaos.injectors.gpu.DELIVERY_S", 0.02)


@pytest.fixture
def node(tmp_path: Path, quick: None) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_the_receipt_proves_what_was_written_and_who_was_handed_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.injectors.gpu.DELIVERY_S", 20)
    node.monitor.say("wait(events, 20000)[2]")
    receipt = node.inject(xid=79, effect="none").injection
    assert (receipt.worker, receipt.rank, receipt.node, receipt.fidelity) == ("w3", 3, "n3", "emulated")
    proof = receipt.proof
    assert (proof["xids"], proof["gpus"], proof["events"], proof["delivered"]) == ([79], ["0000:22:00"], 1, 1)
    assert (proof["effect"], proof["met"], proof["spared"]) == ("none", [], [])
    handed = proof["handed_us"]
    assert isinstance(handed, dict) and list(handed) == [str(node.monitor.process.pid)]
    assert node.monitor.hear() == 79
    assert node.logged() == [79, 79], "with its number, and in words"
    assert node.monitor.ask("nvmlDeviceGetPowerUsage(devices[1])") == "GPU is lost"
    assert node.monitor.ask("nvmlDeviceGetPowerUsage(devices[0])") == 70000


def test_a_lost_gpu_comes_back_when_the_fault_is_over(node: Node) -> None:
    active = node.inject(xid=79, effect="none", ttl_s=5)
    assert active.ttl_s == 5 and active.over == ""
    assert active.revert().alive and active.revert().alive
    assert node.monitor.ask("nvmlDeviceGetPowerUsage(devices[1])") == 70000


def test_what_leaves_nothing_behind_is_over_at_once(node: Node) -> None:
    active = node.inject(xid=13, effect="none")
    assert active.over == "nothing of it lasts" and not active.revert().alive


def test_a_sequence_comes_in_its_order_to_both_witnesses(node: Node) -> None:
    active = node.inject(xid=62, then=[45, 119, 154], recovery=4, effect="none")
    assert node.heard(4) == node.logged() == [62, 45, 119, 154]
    log = node.gpus.kernel_log.read_text()
    assert "45, pid=" in log and "caused by previous Xid 62" in log
    assert "changed from 0x0 (None) to 0x4 (Drain and Reset)" in log
    state = node.gpus.read().gpus[1]
    assert (state.recovery_action, state.block_ms) == (4, 45_000)
    active.revert()
    assert (
        node.heard(1) == [154]
        and "changed from 0x4 (Drain and Reset) to 0x0 (None)" in node.gpus.kernel_log.read_text()
    )
    assert node.monitor.ask("nvmlDeviceGetPowerUsage(devices[1])") == 70000


def test_a_gpu_is_introduced_once(node: Node) -> None:
    for xid in (13, 31):
        node.inject(xid=xid, effect="none")
    assert node.gpus.kernel_log.read_text().count("GPU at PCI:0000:22:00: GPU-") == 1


@pytest.mark.parametrize(("witnesses", "events", "lines"), [("nvml", 1, []), ("log", 0, [94]), ("all", 1, [94])])
def test_each_witness_can_be_the_only_one(node: Node, witnesses: str, events: int, lines: Sequence[int]) -> None:
    proof = node.inject(xid=94, effect="none", witnesses=witnesses).injection.proof
    assert proof["events"] == events and node.logged() == lines
    assert node.gpus.read().gpus[1].ecc_uncorrected_volatile == (0 if witnesses == "log" else 1)


def test_a_gpu_that_is_lost_without_a_number(node: Node) -> None:
    node.inject(xid=79, effect="none", numberless=True)
    assert node.logged() == [79] and "Xid" not in node.gpus.kernel_log.read_text()


def test_an_instance_of_a_divided_gpu_is_named_in_both(node: Node) -> None:
    node.inject(xid=94, effect="none", mig=5)
    assert node.monitor.ask("wait(events, 20000)") == [1, 8, 94, 5]
    assert "(PCI:0000:22:00 GPU-I:05): 94" in node.gpus.kernel_log.read_text()


def test_an_xid_that_follows_from_a_kill(node: Node) -> None:
    proof = node.inject(xid=45, effect="kill").injection.proof
    assert node.victim.wait() == -9 and proof["effect"] == "kill"
    assert node.heard(1) == [45] and f"45, pid={node.victim.pid}, " in node.gpus.kernel_log.read_text()


# A training of one line that counts its steps in a file.
TRAINING = """
import pathlib, sys, time
count, step = pathlib.Path(sys.argv[1]), 0
while True:
    step += 1
    count.write_text(str(step))
    time.sleep(0.002)
"""


def test_the_training_meets_the_error_of_the_catalogue_in_torchs_words(tmp_path: Path, quick: None) -> None:
    node = Node(tmp_path, script=TRAINING)
    try:
        proof: dict[str, Any] = dict(node.inject(xid=13).injection.proof)
        (met,) = proof["met"]
        assert met["worker"] == "w3" and "illegal memory access" in met["error"]
        assert node.victim.stderr is not None
        said = node.victim.stderr.read()
        assert node.victim.wait() == 1 and node.logged() == [13]
        found = classify(said.strip().splitlines()[-2])
        assert "AcceleratorError: CUDA error: an illegal memory access was encountered" in said
        assert found is not None and 13 in found.xids
    finally:
        node.close()


def test_a_gpu_that_does_not_answer_holds_the_training_until_it_is_well(tmp_path: Path, quick: None) -> None:
    node = Node(tmp_path, script=TRAINING)
    count = tmp_path / "count"
    try:
        active = node.inject(xid=119, ttl_s=60)
        stands = count.read_text()
        assert active.over == "" and node.gpus.read().gpus[1].block_ms > 0
        assert active.revert().alive and node.gpus.read().gpus[1].block_ms == 0
        wait_until(lambda: count.read_text() not in ("", stands), "it goes on")
    finally:
        node.close()


def test_a_whole_node_is_hit_on_all_its_gpus(node: Node) -> None:
    everybody = replace(node.worker, others=(replace(node.worker, worker="agent of n3", rank=None),))
    pending = node.injector.inject(planned(xid=145, effect="none"), everybody)
    wait_until(lambda: pending.poll() is not None, "the receipt")
    assert sorted(node.monitor.ask("wait(events, 20000)")[0] for _ in range(2)) == [0, 1]
    assert node.logged() == [145, 145]


def test_nobody_listens_and_the_receipt_says_so(node: Node) -> None:
    node.monitor.process.communicate()
    proof = node.inject(xid=13, effect="none").injection.proof
    assert (proof["events"], proof["delivered"], proof["handed_us"]) == (1, 0, {})


def test_an_error_needs_an_agent_in_the_process_and_is_else_missed(node: Node) -> None:
    with pytest.raises(TargetGone, match="no agent runs in w3"):
        node.inject(xid=13)
    assert node.logged() == [], "nothing was written of what did not happen"


def test_a_process_that_has_ended_is_gone(node: Node) -> None:
    worker = node.worker
    node.victim.kill()
    node.victim.wait()
    with pytest.raises(TargetGone, match="has ended"):
        node.injector.inject(planned(xid=13, effect="none"), worker)


def test_a_node_without_gpus_is_no_target(node: Node, tmp_path: Path) -> None:
    with pytest.raises(TargetGone, match="no node with emulated GPUs"):
        GpuXid(tmp_path / "elsewhere", tmp_path).inject(planned(xid=13), node.worker)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "params.xid"),
        ({"xid": 12}, "params.xid"),
        ({"xid": 79, "then": [12]}, "params.then[0]"),
        ({"xid": 78, "numberless": True}, "params.xid"),
        ({"xid": 13, "words": "two\nlines"}, "params.words"),
        ({"xid": 154, "recovery": 9}, "params.recovery"),
        ({"xid": 13, "code": 1}, "params.code"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_planned(params: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFault) as refused:
        planned(**params)
    assert refused.value.field == field


@pytest.mark.parametrize("driver", ["r535", "r570", "r580"])
def test_any_entry_of_the_catalogue_can_be_reported(tmp_path: Path, driver: str, quick: None) -> None:
    node = Node(tmp_path, driver)
    try:
        first, *others = catalogue()
        for begin in range(0, len(others), 16):
            node.inject(xid=first, then=others[begin : begin + 16], effect="none")
        assert set(node.logged()) == set(catalogue())
    finally:
        node.close()


def test_its_kind_says_that_it_is_emulated() -> None:
    assert GPU_XID.to_json()["fidelity"] == "emulated"
