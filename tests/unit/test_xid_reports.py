"""What is read from the kernel log and from NVML, and what it asks for."""

from __future__ import annotations

import pytest

from chaos.nvml.state import Gpu
from chaos.nvml.xid_lines import DRIVERS, XidReport, introduction, numberless_loss, records
from phoenix_core.xid_reports import Judge, Judgement, Sighting, action_of, read_line, said_of, visible
from phoenix_core.xids import Action, catalogue

GPU = Gpu(uuid="GPU-1", bus=0x3B)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mig", [None, 5])
def test_every_line_of_the_catalogue_is_read(driver: str, mig: int | None) -> None:
    for xid in catalogue():
        report = XidReport(xid=xid, gpu=GPU, driver=DRIVERS[driver], process=(7, "python3"), mig=mig)
        for line in (report.line, *records([report.line], first=1, at_us=2)):
            seen = read_line(line)
            assert seen is not None and (seen.xid, seen.pci, seen.gpu) == (xid, "0000:3b:00", None), line


# Lines of public reports, in forms that no driver of ours writes.
@pytest.mark.parametrize(
    ("line", "xid", "pci", "action"),
    [
        ("[ 17.0] NVRM: Xid (PCI:0003:00:00): 31, pid=1, Ch 00000008", 31, "0003:00:00", Action.RESPAWN),
        ("kernel: NVRM:  Xid (0000:3B:00): 79, GPU has fallen off the bus", 79, "0000:3b:00", Action.QUARANTINE_NODE),
        ("NVRM: Xid (PCI:0000:3f:00): 46", 46, "0000:3f:00", Action.QUARANTINE_GPU),
        ("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.", 79, "0000:b3:00", Action.QUARANTINE_NODE),
        ("NVRM: The NVIDIA GPU 0000:b3:00.0", 79, "0000:b3:00", Action.QUARANTINE_NODE),
        ("NVRM: Xid (PCI:0000:3b:00): 999, of a driver to come", 999, "0000:3b:00", Action.NOTHING),
        (
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)",
            149,
            "0008:01:00",
            Action.QUARANTINE_GPU,
        ),
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x1)", 144, "0000:01:00", Action.NOTHING),
    ],
)
def test_lines_of_other_drivers_are_read_too(line: str, xid: int, pci: str, action: Action) -> None:
    seen = read_line(line)
    assert seen is not None and (seen.xid, seen.pci, action_of(seen)) == (xid, pci, action)


@pytest.mark.parametrize(
    "line",
    [
        *introduction(GPU),
        *numberless_loss(GPU)[1:],
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1234) installed in this system is not supported",
        "nvidia-nvswitch3: SXid (PCI:0000:8b:00.0): 20034, Fatal, Link 55 LTSSM Fault Up",
        "usb 1-1: new device",
        "",
    ],
)
def test_other_lines_tell_of_no_xid(line: str) -> None:
    assert read_line(line) is None


@pytest.mark.parametrize(
    ("recovery", "action"),
    [(0, "nothing"), (1, "quarantine_gpu"), (2, "quarantine_node"), (4, "quarantine_gpu"), (5, "quarantine_node")],
)
def test_a_change_of_the_recovery_action_says_what_to_do_in_both_witnesses(recovery: int, action: str) -> None:
    line = XidReport(xid=154, gpu=GPU, recovery=(0, recovery)).line
    seen = read_line(line)
    assert seen is not None and action_of(seen) == action
    assert action_of(Sighting(xid=154, source="state", gpu=0, recovery=recovery)) == action


def test_a_number_that_nobody_knows_yet_is_taken_for_the_gravest() -> None:
    assert action_of(Sighting(xid=154, source="state", gpu=0, recovery=99)) is Action.QUARANTINE_NODE


def sighting(xid: int, gpu: int | None = 0, source: str = "nvml") -> Sighting:
    return Sighting(xid=xid, source=source, gpu=gpu)


def test_one_error_that_two_witnesses_tell_of_is_acted_on_once() -> None:
    judge = Judge()
    assert judge.see(sighting(13), 10.0) == Judgement(action=Action.RESPAWN, told=True)
    assert not judge.see(sighting(13, source="log"), 10.3).told
    assert judge.see(sighting(13, gpu=1), 10.4).told, "another GPU"
    assert judge.see(sighting(13), 12.0).told, "another error"


@pytest.mark.parametrize("xid", [45, 63, 43, 154, 999])
def test_what_informs_or_follows_is_told_to_nobody(xid: int) -> None:
    assert Judge().see(sighting(xid), 10.0) == Judgement(action=Action.NOTHING)


def test_an_error_of_nobodys_gpu_is_told_to_nobody() -> None:
    assert not Judge().see(sighting(79, gpu=None), 10.0).told


def test_one_link_is_nothing_and_all_links_are_the_node() -> None:
    judge = Judge()
    judge.gpus = range(3)
    assert [judge.see(sighting(145, gpu=gpu), 10.0 + gpu).told for gpu in (0, 1)] == [False, False]
    assert not judge.see(sighting(145, gpu=2), 12.5).told, "the first is too long ago"
    assert not judge.see(sighting(149, gpu=1), 12.6).told
    last = judge.see(sighting(145, gpu=0), 12.7)
    assert last == Judgement(action=Action.QUARANTINE_NODE, told=True, whole_node=True)
    assert not judge.see(sighting(145, gpu=1), 12.8).told, "it has been told"


def test_the_link_of_an_only_gpu_is_one_link() -> None:
    judge = Judge()
    judge.gpus = range(1)
    assert not judge.see(sighting(145), 10.0).told


def test_what_was_seen_is_said_in_words() -> None:
    told = Judgement(action=Action.RESPAWN, told=True)
    assert said_of(Sighting(xid=94, source="nvml", gpu=0, pci="0000:3b:00"), told) == (
        "Xid 94 of GPU 0000:3b:00: robust channel contained error"
    )
    seen = read_line(XidReport(xid=62, gpu=GPU).line)
    assert seen is not None and said_of(seen, told) == "Xid 62 of GPU 0000:3b:00: 209f(2c78) 00000000 00000000"
    whole = Judgement(action=Action.QUARANTINE_NODE, told=True, whole_node=True)
    assert "on all GPUs of the node" in said_of(sighting(145), whole)


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        ("GPU-b,1", (1, 1)),
        ("1,7,0", (1,)),
        ("GPU-,0", ()),
        ("-1,0", ()),
    ],
)
def test_which_gpus_a_script_sees_in_which_order(chosen: str | None, indices: tuple[int, ...]) -> None:
    assert visible(3, ("GPU-aa", "GPU-bb", "GPU-cc"), chosen) == indices
