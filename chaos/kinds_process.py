"""The kinds of fault that are applied to processes from outside: by signals, by limits of the kernel. Pure values."""

from __future__ import annotations

from typing import Final

from chaos.faultkind import EVERYBODY, FaultKind, Fidelity, Scope, params, ttl_s

PROCESS_KILL: Final = FaultKind(
    kind="process_kill",
    title="Kill process",
    description="SIGKILL: the process ends at once, without a chance to say so. All processes, for a node.",
    lasting=False,
    fidelity=Fidelity.REAL,
    targets=EVERYBODY,
    params_schema=params(),
)
PROCESS_STOP: Final = FaultKind(
    kind="process_stop",
    title="Freeze process",
    description="SIGSTOP: the process stays, but does nothing more (a hang). SIGCONT on revert, if it still lives.",
    lasting=True,
    fidelity=Fidelity.REAL,
    targets=EVERYBODY,
    params_schema=params(ttl_s=ttl_s("Seconds until it is resumed")),
)
PROCESS_TERMINATE: Final = FaultKind(
    kind="process_terminate",
    title="Preempt",
    description="SIGTERM, and SIGKILL to what is left after the grace: how a scheduler takes a machine back.",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    targets=EVERYBODY,
    params_schema=params(
        ttl_s={
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 3600,
            "default": 30,
            "title": "Seconds of grace, then SIGKILL",
        }
    ),
)
PROCESS_OOM: Final = FaultKind(
    kind="process_oom",
    title="Out of memory",
    description="The process gets no more memory. In a cgroup (v1, v2) the kernel kills it when it wants some; where "
    "none can be made its address space is limited (rlimit), and allocations fail. The receipt says which.",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    params_schema=params(ttl_s=ttl_s("Seconds until the limit is lifted")),
)
CPU_THROTTLE: Final = FaultKind(
    kind="cpu_throttle",
    title="Throttle CPU",
    description="The process gets a share of one core: by a cgroup's quota (v1, v2), or, where none can be made, by "
    "stopping and resuming it 25 times a second. The receipt says which.",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.TRAINING,
    quiet=True,
    params_schema=params(
        share={"type": "number", "minimum": 0.01, "maximum": 1, "default": 0.2, "title": "Share of a core"},
        ttl_s=ttl_s("Seconds until it is as quick as before"),
    ),
)
PROCESS_KINDS: Final = (PROCESS_KILL, PROCESS_STOP, PROCESS_TERMINATE, PROCESS_OOM, CPU_THROTTLE)
