"""The training jobs that a scenario can name: a name stands for a command and the options it takes.

A REST request names a workload, never a command, so what can be started is exactly what is registered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.errors import InvalidScenario
from chaos.schema import violations
from chaos.triggers import TRAINING_PHASES


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A registered training script.

    `command` follows the runtime's own arguments (a module to run, fixed flags). `options_schema` is the JSON Schema
    of what a scenario may set; option `block: 32` becomes `--block 32`. An option marked `"format": "path"` names
    a file of the machine that runs the trial: a service must not take it from strangers. `longer_than` says of such an
    option which other one counts the bytes that its file must exceed. `phases` are those that this training enters: no
    fault can wait for another. `restarting` are the flags of its form for runtimes that end all ranks when one fails:
    it then begins from checkpoints of its own, and writes what a runtime that knows nothing of PHOENIX does not.
    """

    name: str
    title: str
    description: str
    command: tuple[str, ...]
    options_schema: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    longer_than: Mapping[str, str] = field(default_factory=dict)
    phases: tuple[str, ...] = ("forward", "backward", "gradient_sync", "optimizer")
    restarting: tuple[str, ...] = ()

    def arguments(self, *, steps: int, seed: int, options: Mapping[str, object]) -> list[str]:
        """The whole command of one rank. Raises InvalidScenario for an option that is not allowed."""
        self.check(options)
        chosen = {**self.defaults, **options}
        flags = [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        return [*self.command, "--steps", str(steps), "--seed", str(seed), *flags]

    def check(self, options: Mapping[str, object]) -> None:
        """Raises InvalidScenario, naming the first option that is not allowed."""
        for violation in violations(dict(options), self.options_schema):
            raise InvalidScenario(violation.message, field=f"options.{violation.field}".rstrip("."))

    @property
    def path_options(self) -> frozenset[str]:
        """Options that name a file of this machine."""
        properties = self.options_schema["properties"]
        assert isinstance(properties, Mapping)
        return frozenset(name for name, rule in properties.items() if rule.get("format") == "path")

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "options_schema": dict(self.options_schema),
            "defaults": dict(self.defaults),
            "phases": list(self.phases),
        }


def _whole(title: str, most: int) -> Mapping[str, object]:
    return {"type": "integer", "minimum": 1, "maximum": most, "title": title}


_GPT_OPTIONS: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "minLength": 1, "format": "path", "title": "Text file to train on"},
        "batch": _whole("Sequences per rank and step", 256),
        "block": _whole("Bytes per sequence", 4096),
        "layers": _whole("Transformer layers", 96),
        "heads": _whole("Attention heads", 96),
        "width": _whole("Embedding width", 8192),
    },
    "additionalProperties": False,
}

GPT: Final = Workload(
    name="gpt",
    title="Byte-level GPT, 10 M parameters",
    description="Data-parallel training on real text (the source of the Python standard library, or a file of yours).",
    command=("-m", "benchmarks.workloads.gpt"),
    options_schema=_GPT_OPTIONS,
    defaults={"block": 64},
    restarting=("--restart",),
    longer_than={"data": "block"},
)
GPT_TINY: Final = Workload(
    name="gpt-tiny",
    title="Byte-level GPT, two small layers",
    description="The same training script in a size whose steps take milliseconds: for smoke tests.",
    command=("-m", "benchmarks.workloads.gpt"),
    options_schema=_GPT_OPTIONS,
    defaults={"layers": 2, "heads": 2, "width": 64, "block": 32, "batch": 2},
    restarting=("--restart",),
    longer_than={"data": "block"},
)
GPT_SHARDED: Final = Workload(
    name="gpt-sharded",
    title="Byte-level GPT, 10 M parameters, FSDP2",
    description="The same training with parameters and optimizer state sharded over the ranks (fully_shard).",
    command=("-m", "benchmarks.workloads.gpt", "--sharded"),
    options_schema=_GPT_OPTIONS,
    defaults={"block": 64},
    restarting=("--restart",),
    longer_than={"data": "block"},
    phases=TRAINING_PHASES,
)
WORKLOADS: Final[Mapping[str, Workload]] = {workload.name: workload for workload in (GPT, GPT_TINY, GPT_SHARDED)}


def workload(name: str) -> Workload:
    """Raises InvalidScenario, naming those that exist."""
    if name not in WORKLOADS:
        raise InvalidScenario(f"unknown workload {name!r}; there are: {', '.join(WORKLOADS)}", field="workload")
    return WORKLOADS[name]
