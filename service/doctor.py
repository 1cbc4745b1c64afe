"""`phoenix doctor`: what this machine can run and inject, and if not, why not."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from chaos import cgroups
from chaos.cluster.abilities import abilities
from chaos.kinds import FAULT_KINDS
from chaos.kinds_process import CPU_THROTTLE, PROCESS_OOM
from chaos.nvml.build import no_gpus
from service.files import trouble_with
from service.host import trouble_with_kind

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at; `needed`: without it nothing works."""

    name: str
    ok: bool
    detail: str
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Report:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings if finding.needed)

    def to_json(self) -> dict[str, object]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


def examine(directory: Path) -> Report:
    """Looks, and changes nothing but processes of its own, two nodes that end with one of them, and a nameless file."""
    return Report(findings=tuple(_findings(directory)))


def render(report: Report) -> str:
    width = max(len(finding.name) for finding in report.findings)
    marks = {True: "ok", False: "--"}
    lines = [f"{marks[finding.ok]}  {finding.name:<{width}}  {finding.detail}" for finding in report.findings]
    return "\n".join([*lines, "" if report.ok else "\nSomething that is needed is missing."]).rstrip()


def _findings(directory: Path) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(name="python", ok=sys.version_info >= (3, 11), detail=f"{version} (3.11 or newer is needed)")
    yield _torch()
    cores = len(os.sched_getaffinity(0))
    yield Finding(name="cores", ok=cores >= 2, needed=False, detail=f"{cores} (the demo is sized for 2)")
    yield _signals()
    yield Finding(
        name="shared memory",
        ok=os.access(_SHARED_MEMORY, os.W_OK),
        detail=f"{_SHARED_MEMORY} {'can' if os.access(_SHARED_MEMORY, os.W_OK) else 'cannot'} be written",
        needed=False,
    )
    yield _loopback()
    yield _data(directory)
    can = abilities()
    works = "each node can have networks of its own, without root"
    yield Finding(name="isolated nodes", ok=not can.isolation, detail=can.isolation or works, needed=False)
    gpus = no_gpus()
    yield Finding(name="emulated GPUs", ok=not gpus, detail=gpus or "NVML's stand-in can be loaded", needed=False)
    otherwise = {
        PROCESS_OOM.kind: (cgroups.trouble("memory"), "its address space is limited in place of that"),
        CPU_THROTTLE.kind: (cgroups.trouble("cpu"), "it is stopped and resumed in place of that"),
    }
    for kind in FAULT_KINDS.values():
        trouble = trouble_with_kind(kind, lambda: can)
        detail = trouble or f"{kind.title.lower()} ({kind.fidelity.value})"
        lacks, instead = otherwise.get(kind.kind, ("", ""))
        detail += f"; {lacks}: {instead}" if lacks else ""
        yield Finding(name=kind.kind, ok=not trouble, detail=detail, needed=False)


def _torch() -> Finding:
    """Found without importing it, which would take seconds."""
    if importlib.util.find_spec("torch") is None:
        return Finding(name="torch", ok=False, detail="not installed: pip install torch==2.13.0")
    return Finding(name="torch", ok=True, detail=metadata.version("torch"))


def _signals() -> Finding:
    """Stop and kill a process of our own, by pidfd: what the process faults do."""
    name = "process signals"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        descriptor = os.pidfd_open(child.pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
    except OSError as error:
        return Finding(name=name, ok=False, detail=f"this kernel or sandbox refuses pidfd signals: {error.strerror}")
    finally:
        child.kill()
        child.communicate()
    return Finding(name=name, ok=True, detail="own processes can be stopped and killed by pidfd")


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
            return Finding(name="loopback", ok=True, detail="127.0.0.1 can be listened on and reached")
    except OSError as error:
        return Finding(name="loopback", ok=False, detail=f"127.0.0.1 cannot be used: {error.strerror}")


def _data(directory: Path) -> Finding:
    trouble = trouble_with(directory)
    return Finding(name="data directory", ok=not trouble, detail=trouble or str(directory))
