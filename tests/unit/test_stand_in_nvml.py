"""The stand-in library, read by the unmodified pynvml in a process of its own, as monitors read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.nvml.build import LIBRARY, NoStandIn, library_directory
from chaos.nvml.state import EVENT_XID, Gpu, Machine, NodeGpus, NvmlEvent
from tests.nvml_reader import Reader

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler (apt-get install gcc libc6-dev)")


@pytest.fixture
def node(tmp_path: Path) -> NodeGpus:
    gpus = tuple(Gpu(uuid=f"GPU-{index}", bus=0x3B + index, memory_used=1 << 30) for index in range(2))
    return NodeGpus.create(tmp_path / "n0", Machine(driver="570.148.08", cuda=12080, gpus=gpus))


def test_the_state_is_read_as_it_was_written(node: NodeGpus) -> None:
    node.change(1, lambda gpu: replace(gpu, lost=1, nvlink_crc_data=7))
    assert node.read().gpus[1] == Gpu(uuid="GPU-1", bus=0x3C, memory_used=1 << 30, lost=1, nvlink_crc_data=7)
    assert {path.stat().st_mode & 0o777 for path in node.directory.iterdir()} == {0o600}


def test_pynvml_reads_what_the_state_says(node: NodeGpus) -> None:
    with Reader(node) as reader:
        assert reader.ask("[nvmlSystemGetDriverVersion(), nvmlSystemGetCudaDriverVersion()]") == ["570.148.08", 12080]
        assert reader.ask("[nvmlDeviceGetUUID(d) for d in devices]") == ["GPU-0", "GPU-1"]
        assert reader.ask("nvmlDeviceGetPciInfo(devices[1]).busId") == "00000000:3C:00.0"
        assert reader.ask("nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('0000:3c:00.0'))") == 1
        assert reader.ask("nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('GPU-1'))") == 1
        assert reader.ask("nvmlDeviceGetHandleByUUID('GPU-9')") == "Not Found"
        assert reader.ask("nvmlDeviceGetMemoryInfo(devices[0]).used") == 1 << 30
        assert reader.ask("nvmlDeviceGetMemoryInfo(devices[0], version=nvmlMemory_v2).used") == 1 << 30
        assert reader.ask("nvmlDeviceGetComputeRunningProcesses(devices[0])") == []
        counters = "[nvmlDeviceGetTotalEccErrors(devices[0], 1, 0), list(nvmlDeviceGetRemappedRows(devices[0]))]"
        recovery = "[v.value.uiVal for v in nvmlDeviceGetFieldValues(devices[0], [230, 144])]"
        assert (reader.ask(counters), reader.ask(recovery)) == ([0, [0, 0, 0, 0]], [0, 0])
        node.change(
            0,
            lambda gpu: replace(
                gpu, ecc_uncorrected_volatile=3, remap_uncorrected=1, remap_pending=1, recovery_action=4
            ),
        )
        assert (reader.ask(counters), reader.ask(recovery)) == ([3, [0, 1, 1, 0]], [4, 1])


def test_a_lost_gpu_says_so_and_comes_back(node: NodeGpus) -> None:
    with Reader(node) as reader:
        node.change(1, lambda gpu: replace(gpu, lost=1))
        assert reader.ask("nvmlDeviceGetPowerUsage(devices[1])") == "GPU is lost"
        assert reader.ask("nvmlDeviceGetHandleByIndex(1)") == "GPU is lost"
        assert reader.ask("nvmlDeviceGetUUID(devices[1])") == "GPU-1"
        assert reader.ask("nvmlDeviceGetPowerUsage(devices[0])") == 70000
        node.change(1, lambda gpu: replace(gpu, lost=0))
        assert reader.ask("nvmlDeviceGetPowerUsage(devices[1])") == 70000


def test_every_subscriber_gets_every_event_after_it_came(node: NodeGpus) -> None:
    with Reader(node) as one, Reader(node) as other:
        node.tell([NvmlEvent(gpu=0, type=EVENT_XID, data=13)])  # before anybody listens
        one.ask("globals().update(events=listen())")
        other.ask("globals().update(events=listen())")
        for reader in (one, other):
            reader.say("wait(events, 20000)")
        mine = node.tell([NvmlEvent(gpu=1, type=EVENT_XID, data=79), NvmlEvent(gpu=0, type=EVENT_XID, data=45, gi=5)])
        for reader in (one, other):
            assert reader.hear() == [1, EVENT_XID, 79, 0xFFFFFFFF]
            assert reader.ask("wait(events, 20000)") == [0, EVENT_XID, 45, 5]
            assert reader.ask("wait(events, 1)") == "Timeout"
        delivered = {(delivery.event, delivery.pid) for delivery in node.await_delivery(mine, 1.0)}
        assert delivered == {(event, reader.process.pid) for event in mine for reader in (one, other)}


# By whom each is looked up: the C library of torch, NCCL (nvmlwrap), torch.cuda, the device plugin of Kubernetes.
LOOKED_UP = (
    "nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString nvmlDeviceGetCount nvmlDeviceGetCount_v2 "
    "nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId "
    "nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleByUUID nvmlDeviceGetPciInfo nvmlDeviceGetPciInfo_v3 "
    "nvmlDeviceGetCudaComputeCapability nvmlDeviceGetP2PStatus nvmlDeviceGetNvLinkState "
    "nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkCapability "
    "nvmlDeviceGetFieldValues nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetComputeRunningProcesses "
    "nvmlSystemGetCudaDriverVersion_v2 nvmlEventSetCreate nvmlEventSetWait nvmlEventSetWait_v2 nvmlEventSetFree "
    "nvmlDeviceRegisterEvents nvmlDeviceGetSupportedEventTypes"
)


def test_what_others_look_up_by_name_is_there(node: NodeGpus) -> None:
    with Reader(node) as reader:
        assert reader.ask(f"[n for n in {LOOKED_UP.split()!r} if not hasattr(__import__('pynvml').nvmlLib, n)]") == []


def test_what_a_display_shows_is_a_healthy_idle_gpu(node: NodeGpus) -> None:
    with Reader(node) as reader:
        assert reader.ask("nvmlDeviceGetUtilizationRates(devices[0]).gpu") == 0
        assert reader.ask("nvmlDeviceGetEncoderUtilization(devices[0])")[0] == 0
        assert reader.ask("nvmlDeviceGetTemperature(devices[0], 0)") == 35
        assert reader.ask("nvmlDeviceGetFanSpeed(devices[0])") == "Not Supported"
        assert reader.ask("nvmlDeviceGetNvLinkState(devices[0], 3)") == 1
        node.change(0, lambda gpu: replace(gpu, links_down=1 << 3))
        assert reader.ask("[nvmlDeviceGetNvLinkState(devices[0], link) for link in (3, 4)]") == [0, 1]


def test_an_event_of_another_type_reaches_nobody_who_did_not_ask_for_it(node: NodeGpus) -> None:
    with Reader(node) as reader:
        reader.ask("globals().update(events=listen())")
        mine = node.tell([NvmlEvent(gpu=0, type=0x2, data=0)])
        assert reader.ask("wait(events, 1)") == "Timeout"
        assert node.deliveries(mine) == []


def test_a_blocked_gpu_lets_its_callers_wait_and_a_healed_one_frees_them(node: NodeGpus) -> None:
    with Reader(node) as reader:
        node.change(0, lambda gpu: replace(gpu, block_ms=60))
        began = time.monotonic()
        assert reader.ask("nvmlDeviceGetPowerUsage(devices[0])") == "Unknown Error"
        assert time.monotonic() - began >= 0.06
        assert reader.ask("nvmlDeviceGetUUID(devices[0])") == "GPU-0"
        node.change(0, lambda gpu: replace(gpu, block_ms=3_600_000))
        reader.say("nvmlDeviceGetPowerUsage(devices[0])")
        node.change(0, lambda gpu: replace(gpu, block_ms=0))
        assert reader.hear() == 70000


def test_a_process_without_a_node_has_no_driver() -> None:
    with_library = {"LD_LIBRARY_PATH": str(library_directory()), "PATH": os.environ["PATH"]}
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env=with_library, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Driver Not Loaded"


def test_the_library_is_compiled_once_and_kept_where_nobody_else_can_write(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    directory = library_directory(home)
    made = (directory / LIBRARY).stat()
    assert library_directory({"HOME": str(tmp_path), "PATH": ""}) == directory  # needs no compiler any more
    assert (directory / LIBRARY).stat().st_ino == made.st_ino
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.parent.chmod(0o777)
    with pytest.raises(NoStandIn) as refused:
        library_directory(home)
    assert "chmod 700" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"PATH": "/nonexistent"}, "need a C compiler, and there is none"),
        ({"CC": "no-such-compiler"}, "looked for: no-such-compiler"),
        ({"CC": "false"}, "cannot compile the library"),
        ({"HOME": "/proc/nowhere"}, "cannot be kept there"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(NoStandIn) as refused:
        library_directory({"HOME": str(tmp_path), "PATH": os.environ["PATH"], **change})
    assert said in str(refused.value)
