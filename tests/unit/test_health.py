"""The watch over a node's GPUs, in a process of its own with the stand-in library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from chaos.nvml.build import library_directory
from chaos.nvml.state import EVENT_XID, Gpu, Machine, NodeGpus, NvmlEvent, environment
from chaos.nvml.xid_lines import XidReport, introduction, numberless_loss

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler (apt-get install gcc libc6-dev)")

# Prints what the watch tells, as an agent would be told.
WATCH = """
import asyncio, json, os, sys, time
from pathlib import Path
from phoenix_core.health import Health, HealthSettings

def say(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)

async def main():
    loop = asyncio.get_running_loop()
    settings = HealthSettings(log=Path(os.environ["KERNEL_LOG"]), poll_s=0.05, deadline_s=0.3,
                              chosen=os.environ.get("CUDA_VISIBLE_DEVICES"))
    health = Health(settings, node="n0", users=lambda: {"w0": 0, "w1": 1}, post=loop.call_soon_threadsafe, emit=say,
                    send=lambda told: say("told", **{name: told[name] for name in ("xids", "action", "workers")}))
    health.start()
    while os.getppid() == int(sys.argv[1]):
        await asyncio.sleep(0.01)
        health.look(time.monotonic())

asyncio.run(main())
"""


class Watch:
    """A process that watches `node`; `wait` for what it says."""

    def __init__(self, node: NodeGpus, **more: str) -> None:
        with_node = environment(library_directory(), node.directory) if (node.directory / "state").exists() else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(os.getpid())],
            env={**os.environ, **with_node, "KERNEL_LOG": str(node.kernel_log), **more},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def wait(self, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next thing of this kind that fits; all before it is in `said`."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                self.said.append(json.loads(self._lines.get(timeout=0.1)))
            except Empty:
                continue
            if self.said[-1]["kind"] == kind and fits(self.said[-1]):
                return self.said[-1]
        raise AssertionError(f"no {kind} came; {self.said}")


@pytest.fixture
def node(tmp_path: Path) -> NodeGpus:
    gpus = tuple(Gpu(uuid=f"GPU-{index}", bus=0x3B + index) for index in range(2))
    return NodeGpus.create(tmp_path / "n0", Machine(driver="570.148.08", cuda=12080, gpus=gpus))


@pytest.fixture
def watch(node: NodeGpus, request: pytest.FixtureRequest) -> Iterator[Watch]:
    watching = Watch(node, **getattr(request, "param", {}))
    yield watching
    watching.process.kill()
    watching.process.wait()
    assert watching.process.stdout is not None
    watching.process.stdout.close()


def told(xid: int, action: str, *workers: str) -> dict[str, object]:
    return {"kind": "told", "xids": [xid], "action": action, "workers": list(workers)}


def xid(number: int, gpu: int = 0) -> NvmlEvent:
    return NvmlEvent(gpu=gpu, type=EVENT_XID, data=number)


def test_nvml_tells_of_an_xid_and_the_log_of_the_same_one(node: NodeGpus, watch: Watch) -> None:
    watched = watch.wait("gpus_watched")
    assert (watched["gpus"], watched["used"], watched["deaf"]) == (["GPU-0", "GPU-1"], [0, 1], "")
    assert watched["log"] == str(node.kernel_log)
    node.tell([xid(79, gpu=1)])
    assert watch.wait("told") == told(79, "quarantine_node", "w1")
    gpu = node.read().gpus[1]
    node.log([*introduction(gpu), *XidReport(xid=79, gpu=gpu).lines])
    seen = watch.wait("xid_seen", lambda said: said["source"] == "log")
    assert (seen["gpu"], seen["told"], seen["words"]) == (1, False, "GPU has fallen off the bus.")


def test_what_follows_from_another_error_is_seen_and_told_to_nobody(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.tell([xid(45), xid(13)])
    assert watch.wait("told")["xids"] == [13]
    assert [(said["xid"], said["told"]) for said in watch.said if said["kind"] == "xid_seen"] == [
        (45, False),
        (13, True),
    ]


def test_a_lost_gpu_is_found_without_any_event(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.change(1, lambda gpu: replace(gpu, lost=1))
    assert watch.wait("told") == told(79, "quarantine_node", "w1")
    assert watch.said[-2]["source"] == "state"


def test_a_lost_gpu_is_found_by_words_without_a_number(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.log(numberless_loss(node.read().gpus[0]))
    assert watch.wait("told") == told(79, "quarantine_node", "w0")


def test_what_an_event_does_not_say_is_asked_of_nvml_at_once(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.change(0, lambda gpu: replace(gpu, recovery_action=4))
    node.tell([xid(154)])
    assert watch.wait("told") == told(154, "quarantine_gpu", "w0")


def test_a_gpu_that_was_lost_before_is_left_out(node: NodeGpus) -> None:
    node.change(0, lambda gpu: replace(gpu, lost=1))
    watching = Watch(node)
    try:
        assert watching.wait("gpus_watched")["gpus"] == ["", "GPU-1"]
        node.tell([xid(79, gpu=1)])
        assert watching.wait("told") == told(79, "quarantine_node", "w1")
    finally:
        watching.process.kill()
        watching.process.communicate()


def test_links_of_all_gpus_at_once_are_the_nodes(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.tell([xid(145, gpu=0), xid(145, gpu=1)])
    assert watch.wait("told") == told(145, "quarantine_node", "w0", "w1")


def test_a_call_that_does_not_come_back_is_reported_and_hides_no_event(node: NodeGpus, watch: Watch) -> None:
    watch.wait("gpus_watched")
    node.change(0, lambda gpu: replace(gpu, block_ms=3_600_000))
    assert watch.wait("gpu_monitor_blocked")["call"] == "state"
    node.tell([xid(119)])
    assert watch.wait("told") == told(119, "quarantine_gpu", "w0")
    node.change(0, lambda gpu: replace(gpu, block_ms=0))
    assert watch.wait("gpu_monitor_answered")["call"] == "state"


@pytest.mark.parametrize("watch", [{"CUDA_VISIBLE_DEVICES": "1"}], indirect=True)
def test_only_the_gpus_that_scripts_may_use_count(node: NodeGpus, watch: Watch) -> None:
    assert watch.wait("gpus_watched")["used"] == [1]
    node.tell([xid(79, gpu=0), xid(13, gpu=1)])
    assert watch.wait("told") == told(13, "respawn", "w0", "w1"), "they take turns on the only one"


def test_a_machine_without_nvml_is_left_alone(tmp_path: Path) -> None:
    node = NodeGpus(tmp_path)
    watching = Watch(node)
    try:
        watched = watching.wait("gpus_watched")
        assert watched["gpus"] == [] and watched["deaf"]
        node.kernel_log.write_text(XidReport(xid=79, gpu=Gpu(uuid="", bus=1)).line + "\n")
        assert watching.wait("xid_seen")["gpu"] is None
        assert [said["kind"] for said in watching.said] == ["gpus_watched", "xid_seen"]
    finally:
        watching.process.kill()
        watching.process.communicate()
