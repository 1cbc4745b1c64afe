"""The lines of the kernel log, fed to the patterns by which others find Xids in it."""

from __future__ import annotations

import re

import pytest

from chaos.nvml.state import Gpu
from chaos.nvml.xid_lines import (
    DRIVERS,
    RECOVERY_ACTIONS,
    XidReport,
    introduction,
    known_words,
    numberless_loss,
    records,
)
from phoenix_core.xids import catalogue

GPU = Gpu(uuid="GPU-8f3b7a1c-0000-0000-0000-0000000000a5", bus=0x3B)

# Written anew after what these detectors accept; their own are in leptonai/gpud (components/accelerator/nvidia/xid),
# NVIDIA/DCGM (the kernel log's reader) and NVIDIA/NVSentinel (its syslog monitor).
GPUD = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:]+)\).*?: (\d+),")
GPUD_LOST = re.compile(r"NVRM: .*fallen off the bus")
DCGM = re.compile(r"^\d+,\d+,(\d+),.*;NVRM: Xid \(PCI:(.*)\): (\d+),.*")
NVSENTINEL = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?: GPU-I:\d+)?\): (\d+)(?:,|$)")

ALL = sorted(catalogue())


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("process", [None, (4242, "python3")])
def test_published_detectors_read_every_line_of_the_catalogue(driver: str, process: tuple[int, str] | None) -> None:
    for xid in ALL:
        line = XidReport(xid=xid, gpu=GPU, driver=DRIVERS[driver], process=process).line
        (record,) = records([line], first=7, at_us=123)
        found = {name: pattern.search(record) for name, pattern in (("gpud", GPUD), ("dcgm", DCGM))}
        if xid == 46:  # reported without a comma, which both ask for
            assert found == {"gpud": None, "dcgm": None}
        else:
            assert found["gpud"] is not None and found["gpud"].groups() == ("PCI:0000:3b:00", str(xid)), line
            assert found["dcgm"] is not None and found["dcgm"].groups() == ("123", "0000:3b:00", str(xid)), line
        read = NVSENTINEL.search(record)
        assert read is not None and read.groups() == ("0000:3b:00", str(xid)), line


def test_gpud_does_not_know_an_instance_of_a_divided_gpu() -> None:
    line = XidReport(xid=94, gpu=GPU, process=(7194, "python3"), mig=5).line
    assert line.startswith("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, name=python3, Contained: ")
    assert GPUD.search(line) is None
    assert NVSENTINEL.search(line) is not None and DCGM.search(f"4,1,2,-;{line}") is not None


def test_a_lost_gpu_without_a_number_is_found_by_its_words_only() -> None:
    text = "\n".join(numberless_loss(GPU))
    assert text.startswith("NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:2330) installed")
    assert GPUD_LOST.search(text) is not None
    assert all(pattern.search(text) is None for pattern in (GPUD, DCGM, NVSENTINEL))


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            XidReport(xid=79, gpu=GPU, driver=DRIVERS["r535"]),
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        (XidReport(xid=79, gpu=GPU), "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
        (
            XidReport(xid=45, gpu=GPU, process=(1818990, "python3"), cause=149),
            "NVRM: Xid (PCI:0000:3b:00): 45, pid=1818990, name=python3, Ch 00000008 caused by previous Xid 149",
        ),
        (
            XidReport(xid=154, gpu=GPU, recovery=(0, 4)),
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        ),
        (
            XidReport(xid=119, gpu=GPU, driver=DRIVERS["r535"], process=(1, "nvidia-smi")),
            "NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=nvidia-smi, Timeout after 6s of waiting for RPC response "
            "from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c).",
        ),
        (
            XidReport(xid=149, gpu=GPU),
            "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 "
            "0x00000000 0x00000000 0x00000000 0x00000000)",
        ),
        (XidReport(xid=46, gpu=GPU, process=(1, "x")), "NVRM: Xid (PCI:0000:3b:00): 46"),
        (XidReport(xid=63, gpu=GPU, words="words of mine"), "NVRM: Xid (PCI:0000:3b:00): 63, words of mine"),
    ],
)
def test_the_exact_line(report: XidReport, line: str) -> None:
    assert report.line == line


def test_what_is_not_an_xid_is_not_read_as_one() -> None:
    assert not [line for line in introduction(GPU) if GPUD.search(line) or NVSENTINEL.search(line)]


def test_of_some_xids_the_words_are_known_and_of_others_they_are_said_to_be_ours() -> None:
    assert known_words(13) and known_words(119) and not known_words(162)
    assert XidReport(xid=162, gpu=GPU).line.endswith("162, Pshc reengaged")


def test_every_recovery_action_has_a_line() -> None:
    for number, name in enumerate(RECOVERY_ACTIONS):
        assert f"to 0x{number:x} ({name})" in XidReport(xid=154, gpu=GPU, recovery=(0, number)).line
