"""The files that the stand-in library reads: which GPUs a node has, how they are, and what happens to them.

One directory a node, all of it 0600: two jobs on one machine share no fault. See nvml.c for the other end.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

DIRECTORY_VARIABLE: Final = "PHOENIX_NVML_DIR"
KERNEL_LOG: Final = "kernel.log"
NO_INSTANCE: Final = 0xFFFFFFFF
"""What NVML says for an instance of a GPU that is not divided (MIG)."""
MOST_GPUS: Final = 32

EVENT_DOUBLE_BIT: Final = 0x2
EVENT_XID: Final = 0x8

_HEADER: Final = struct.Struct("=4I80s")
_GPU: Final = struct.Struct("=96s96s6I2Q8I4Q4Q")
_MAGIC: Final = 0x4D564E50
_VERSION: Final = 1
_POLL_S: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; the fields are those of nvml.c's `struct gpu`, in its order.

    `recovery_action` is NVML's field 230. While `block_ms` is above 0, whatever asks the GPU waits so many milliseconds
    and then fails. `ecc_*` count corrected and uncorrected errors of the driver's life and of the GPU's.
    """

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    domain: int = 0
    bus: int
    device: int = 0
    pci_id: int = 0x233010DE
    pci_subsystem: int = 0x16C110DE
    capability: int = 90
    memory_total: int = 85520809984
    memory_used: int = 0
    lost: int = 0
    recovery_action: int = 0
    block_ms: int = 0
    remap_corrected: int = 0
    remap_uncorrected: int = 0
    remap_pending: int = 0
    remap_failure: int = 0
    links_down: int = 0
    ecc_corrected_volatile: int = 0
    ecc_corrected_aggregate: int = 0
    ecc_uncorrected_volatile: int = 0
    ecc_uncorrected_aggregate: int = 0
    nvlink_replay: int = 0
    nvlink_recovery: int = 0
    nvlink_crc_flit: int = 0
    nvlink_crc_data: int = 0

    @property
    def pci(self) -> str:
        """Its address as the kernel log writes it: without the function."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What NVML tells of a node. `driver` is the version of the driver, `cuda` that of CUDA (12040: 12.4)."""

    driver: str
    cuda: int
    gpus: tuple[Gpu, ...]

    def pack(self) -> bytes:
        header = _HEADER.pack(_MAGIC, _VERSION, len(self.gpus), self.cuda, self.driver.encode())
        records = [_GPU.pack(*(_packed(value) for value in astuple(gpu))) for gpu in self.gpus]
        return b"".join((header, *records))

    @staticmethod
    def unpack(data: bytes) -> Machine:
        """Raises ValueError for what is no such file."""
        if len(data) < _HEADER.size or data[:4] != struct.pack("=I", _MAGIC):
            raise ValueError("not the state of a node's GPUs")
        _, _, count, cuda, driver = _HEADER.unpack_from(data)
        names = [field.name for field in fields(Gpu)]
        records = [_GPU.unpack_from(data, _HEADER.size + index * _GPU.size) for index in range(count)]
        values: list[dict[str, Any]] = [dict(zip(names, map(_unpacked, record), strict=True)) for record in records]
        gpus = [Gpu(**value) for value in values]
        return Machine(driver=_text(driver), cuda=cuda, gpus=tuple(gpus))


def _packed(value: str | int) -> bytes | int:
    return value.encode() if isinstance(value, str) else value


def _unpacked(value: bytes | int) -> str | int:
    return _text(value) if isinstance(value, bytes) else value


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()


@dataclass(frozen=True, kw_only=True)
class NvmlEvent:
    """What `nvmlEventSetWait` will tell: for EVENT_XID `data` is the Xid, `gi` and `ci` the MIG instances."""

    gpu: int
    type: int
    data: int
    gi: int = NO_INSTANCE
    ci: int = NO_INSTANCE


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The library handed event `event` to process `pid` at `at` (monotonic ns)."""

    event: int
    pid: int
    at: int


class NodeGpus:
    """The GPUs of one node, by the directory that the library is pointed to. One process writes, any number read."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self.kernel_log: Final = directory / KERNEL_LOG

    @staticmethod
    def create(directory: Path, machine: Machine) -> NodeGpus:
        """Raises OSError where the files cannot be made."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        node = NodeGpus(directory)
        for path in (directory / "journal", directory / "acks", node.kernel_log):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        node.write(machine)
        return node

    def read(self) -> Machine:
        """Raises OSError or ValueError where there is no such node."""
        return Machine.unpack((self.directory / "state").read_bytes())

    def write(self, machine: Machine) -> None:
        """Whoever reads it sees the old state or the new one, whole."""
        unfinished = self.directory / "state.new"
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, machine.pack())
        finally:
            os.close(file)
        unfinished.replace(self.directory / "state")

    def change(self, gpu: int, changed: Callable[[Gpu], Gpu]) -> None:
        """Put one GPU into another condition."""
        machine = self.read()
        gpus = [changed(one) if index == gpu else one for index, one in enumerate(machine.gpus)]
        self.write(replace(machine, gpus=tuple(gpus)))

    def tell(self, events: Sequence[NvmlEvent]) -> list[int]:
        """Every event set that exists now gets these events, in this order; their ids."""
        ids = [time.monotonic_ns() + index for index in range(len(events))]
        lines = [f"{i} {e.gpu} {e.type} {e.data} {e.gi} {e.ci}\n" for i, e in zip(ids, events, strict=True)]
        _append(self.directory / "journal", "".join(lines))
        return ids

    def log(self, lines: Sequence[str]) -> None:
        """Append to the node's kernel log."""
        _append(self.kernel_log, "".join(f"{line}\n" for line in lines))

    def deliveries(self, events: Sequence[int]) -> list[Delivery]:
        """Who has been handed which of these events so far."""
        found = []
        for line in (self.directory / "acks").read_text().splitlines():
            event, pid, at = (int(word) for word in line.split())
            found += [Delivery(event=event, pid=pid, at=at)] if event in events else []
        return found

    def await_delivery(self, events: Sequence[int], seconds: float) -> list[Delivery]:
        """The deliveries once every event has one, or when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.deliveries(events)
            if {delivery.event for delivery in found} == set(events) or time.monotonic() >= deadline:
                return found
            time.sleep(_POLL_S)


def _append(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def environment(library: Path, node: Path) -> Mapping[str, str]:
    """What a process needs so that NVML, however it loads it, is the stand-in with the GPUs of this node."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": f"{library}:{before}" if before else str(library),
        DIRECTORY_VARIABLE: str(node),
    }
