"""What the NVIDIA driver writes into the kernel log about an Xid, letter by letter. Pure.

The frame of a line is that of krcReportXid in the open driver (NVIDIA/open-gpu-kernel-modules, kernel_rc.c). Behind it
each error has words of its own: `TAILS` holds those that were seen in source or in public reports. Of all other Xids
the words are not known; a channel's error names its channel, any other its mnemonic (`known_words` tells which it is).

The six words of an NVLink5 error (144-150) are those of public reports. Which rows of NVIDIA's tables they decode to
depends on the driver (patterns changed with R575), and is not claimed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.nvml.state import Gpu
from phoenix_core.xids import catalogue

LOST: Final = 79
RECOVERY_CHANGED: Final = 154
RECOVERY_ACTIONS: Final = (
    "None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset", "Recover IMEX Domain",
)  # fmt: skip
"""By their number, which is NVML's field 230."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A generation of the driver, as far as its lines differ.

    `unknown`: it writes pid='<unknown>' where no process is to blame, later ones leave that out. `rpc_s`: how long it
    waits for the GPU's own processor before it gives up (119); `sequence`: whether it then says which call it was.
    `pads`: NVLink errors are written in columns.
    """

    version: str
    cuda: int
    unknown: bool
    rpc_s: int
    sequence: bool
    pads: bool


DRIVERS: Final[Mapping[str, Driver]] = {
    "r535": Driver(version="535.183.06", cuda=12020, unknown=True, rpc_s=6, sequence=False, pads=False),
    "r570": Driver(version="570.148.08", cuda=12080, unknown=False, rpc_s=45, sequence=True, pads=True),
    "r580": Driver(version="580.82.07", cuda=13000, unknown=False, rpc_s=45, sequence=True, pads=False),
}
DEFAULT_DRIVER: Final = "r570"


@dataclass(frozen=True, kw_only=True)
class XidReport:
    """One Xid on one GPU, with all that its line tells.

    `process` is (pid, name) of the one to blame, if the driver knows it; `mig` the number of the GPU instance on a GPU
    that is divided; `cause` the Xid that led to this one (45 names it); `recovery` what field 230 changes from and to
    (154 tells it); `words` replaces the words behind the number.
    """

    xid: int
    gpu: Gpu
    driver: Driver = DRIVERS[DEFAULT_DRIVER]
    process: tuple[int, str] | None = None
    mig: int | None = None
    cause: int | None = None
    recovery: tuple[int, int] = (0, 1)
    words: str = ""

    @property
    def line(self) -> str:
        """The line with the Xid's number."""
        mig = "" if self.mig is None else f" GPU-I:{self.mig:02d}"
        parts = [str(self.xid)]
        if self.process is not None:
            parts += [f"pid={self.process[0]}", f"name={self.process[1]}"]
        elif self.driver.unknown:
            parts += ["pid='<unknown>'", "name=<unknown>"]
        words = self.words or TAILS.get(self.xid, _general)(self)
        if self.xid == BARE:
            parts = parts[:1]  # reported without anything behind the number, not even the comma
        return f"NVRM: Xid (PCI:{self.gpu.pci}{mig}): {', '.join([*parts, *([words] if words else [])])}"

    @property
    def lines(self) -> tuple[str, ...]:
        """All that the driver writes about it."""
        if self.xid == LOST:
            return (self.line, f"NVRM: GPU {self.gpu.pci}.0: GPU has fallen off the bus.")
        return (self.line,)


BARE: Final = 46
_CHANNEL: Final = 8


def introduction(gpu: Gpu, serial: int = 1650623000000) -> tuple[str, ...]:
    """What the driver writes of a GPU once, before its first Xid."""
    return (f"NVRM: GPU at PCI:{gpu.pci}: {gpu.uuid}", f"NVRM: GPU Board Serial Number: {serial + gpu.bus}")


def numberless_loss(gpu: Gpu) -> tuple[str, ...]:
    """All that some drivers write of a GPU that is lost: no Xid."""
    return (
        f"NVRM: The NVIDIA GPU {gpu.pci}.0",
        f"NVRM: (PCI ID: {gpu.pci_id & 0xFFFF:04x}:{gpu.pci_id >> 16:04x}) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )


def records(lines: Sequence[str], *, first: int, at_us: int) -> tuple[str, ...]:
    """The lines as /dev/kmsg gives them: a warning (4) of the kernel, sequence number, microseconds since boot."""
    return tuple(f"4,{first + index},{at_us + index},-;{line}" for index, line in enumerate(lines))


def known_words(xid: int) -> bool:
    """Whether the words behind the number are those of source or reports."""
    return xid in TAILS or catalogue()[xid].mnemonic.startswith("ROBUST_CHANNEL_")


def _general(report: XidReport) -> str:
    mnemonic = catalogue()[report.xid].mnemonic
    if mnemonic.startswith("ROBUST_CHANNEL_"):
        return f"Ch {_CHANNEL:08x}"
    return mnemonic.replace("_", " ").capitalize()


def _mmu_fault(report: XidReport) -> str:
    channel = f"Ch {_CHANNEL:08x}" if report.driver.unknown else f"channel 0x{_CHANNEL:08x}"
    where = "ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000"
    return f"{channel}, intr 00000000. MMU Fault: {where}. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"


def _removed(report: XidReport) -> str:
    return f"Ch {_CHANNEL:08x}" + (f" caused by previous Xid {report.cause}" if report.cause is not None else "")


def _no_answer(report: XidReport) -> str:
    driver = report.driver
    sequence = "sequence 24174 " if driver.sequence else ""
    return (
        f"Timeout after {driver.rpc_s}s of waiting for RPC response from GPU{report.gpu.device} GSP! "
        f"Expected function 76 (GSP_RM_CONTROL) {sequence}(0x20803032 0x58c)."
    )


def _recovery(report: XidReport) -> str:
    before, after = (f"0x{number:x} ({RECOVERY_ACTIONS[number]})" for number in report.recovery)
    return f"GPU recovery action changed from {before} to {after}"


def _link(unit: str, severity: str, link: str, *numbers: int) -> Callable[[XidReport], str]:
    words = " ".join(f"0x{number:08x}" for number in (*numbers, *[0] * (6 - len(numbers))))

    def tail(report: XidReport) -> str:
        columns = f"{unit:<15} {severity:<7}" if report.driver.pads else f"{unit} {severity}"
        return f"{columns} XC0 i0 Link {link} ({words})"

    return tail


def _always(words: str) -> Callable[[XidReport], str]:
    return lambda _: words


TAILS: Final[Mapping[int, Callable[[XidReport], str]]] = {
    13: _always("Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter"),
    31: _mmu_fault,
    32: _always("Channel ID 0000000d intr0 00040000"),
    43: _always(f"Ch {_CHANNEL:08x}"),
    45: _removed,
    46: _always(""),
    48: _always(
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, "
        "subpartition 0."
    ),
    61: _always("0cec(3098) 00000000 00000000"),
    62: _always("209f(2c78) 00000000 00000000"),
    63: _always("Row Remapper: New row marked for remapping, reset gpu to activate."),
    69: _always("Class Error: ChId 0008, Class 0000cbc0, Offset 00000184, Data ffffffff, ErrorCode 00000004"),
    74: _always("NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
    79: _always("GPU has fallen off the bus."),
    94: _always("Contained: CE User Channel (0x9). RST: No, D-RST: No"),
    95: _always("Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No"),
    109: _always(f"Ch {_CHANNEL:08x}, errorString CTX SWITCH TIMEOUT, Info 0x58005"),
    119: _no_answer,
    144: _link("SAW_MVB", "Nonfatal", "0", 0x1, 0x8),
    145: _link("RLW_SRC_TRACK", "Nonfatal", "12", 0x040988E2, 0x8),
    146: _link("TLW_RX", "Nonfatal", "12", 0x040988E2, 0x8),
    147: _link("TREX", "Nonfatal", "12", 0x1, 0x8),
    148: _link("NVLPW_CTRL", "Nonfatal", "12", 0x1, 0x8),
    149: _link("NETIR_LINK_EVT", "Fatal", "01", 0x021425C6),
    150: _link("MSE_WATCHDOG", "Fatal", "01", 0x1),
    154: _recovery,
}
