"""What broke in a published training run, and how often, as faults that can be injected. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.kinds import Scope, fault_kind


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One row of a mix: how often it was `seen`, and the fault that stands for it."""

    name: str
    seen: int
    kind: str
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def scope(self) -> Scope:
        return fault_kind(self.kind).scope


# A node that is cut off for longer than its lease is lost.
_CUT_OFF: Final = {"shape": "isolate", "plane": "both", "ttl_s": 20}

# 419 unexpected interruptions in 54 days on 16,384 GPUs ("The Llama 3 Herd of Models", table 5), less six of silent
# corruption, which nothing here can notice, and the six of heat, which made GPUs slow and ended no job by themselves.
# Whatever takes its process along is a kill to the others; what stalls it is a freeze.
LLAMA3: Final = (
    Cause(name="faulty GPU", seen=148, kind="process_kill"),
    Cause(name="GPU HBM3 memory", seen=72, kind="process_kill"),
    Cause(name="software bug", seen=54, kind="process_kill"),
    Cause(name="network switch or cable", seen=35, kind="network_partition", params=_CUT_OFF),
    Cause(name="unplanned host maintenance", seen=32, kind="process_kill"),
    Cause(name="GPU SRAM memory", seen=19, kind="process_kill"),
    Cause(name="GPU system processor", seen=17, kind="process_stop", params={"ttl_s": 60}),
    Cause(name="network interface", seen=7, kind="network_partition", params=_CUT_OFF),
    Cause(name="NCCL watchdog timeout", seen=7, kind="process_stop", params={"ttl_s": 60}),
    Cause(name="SSD", seen=3, kind="process_kill"),
    Cause(name="power supply", seen=3, kind="process_kill"),
    Cause(name="server chassis", seen=2, kind="process_kill"),
    Cause(name="IO expansion board", seen=2, kind="process_kill"),
    Cause(name="dependency", seen=2, kind="process_kill"),
    Cause(name="CPU", seen=2, kind="process_kill"),
    Cause(name="system memory", seen=2, kind="process_kill"),
)
MIXES: Final[Mapping[str, tuple[Cause, ...]]] = {"llama3": LLAMA3}
