"""Runtimes under test: each adapter turns a job into a command line; its events tell the rest.

An adapter promises that the command, started as a child in a session of its own, writes `phoenix_core.events` files
into `job.directory.events` and the workers' output into `job.directory.logs`, and that SIGTERM ends all it started.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from chaos.agent.mailbox import DIRECTORY, SHIELD, SNAPSHOTS
from chaos.cluster.abilities import abilities
from chaos.cluster.layout import NETWORK_FILE
from chaos.disk import trouble as no_disk
from chaos.errors import InvalidScenario, Unsupported
from chaos.files import check_files
from chaos.nvml.build import no_gpus
from chaos.nvml.prepare import HOSTS_FILE
from chaos.record import PartDirectory
from chaos.scenario import NO_GPUS, Cluster, Scenario


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a runtime is asked to run. `workload` follows the launcher's own arguments; `restarting` follows those where
    the workload has to restart by itself (empty: it cannot). `checkpoint_every` is in steps; `disk_mb` is the size of
    the disk that the checkpoints get for themselves (None: none)."""

    workload: tuple[str, ...]
    steps: int
    seed: int
    cluster: Cluster
    directory: PartDirectory
    checkpoint_every: int | None = None
    restarting: tuple[str, ...] = ()
    disk_mb: int | None = None

    @property
    def on_its_disk(self) -> tuple[str, ...]:
        """What comes before the command of a job with a disk of its own."""
        if self.disk_mb is None:
            return ()
        return (sys.executable, "-m", "chaos.disk", str(self.directory.checkpoints), str(self.disk_mb), "--")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line and what it needs in its environment beyond ours."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """The whole of what a trial needs to know of a runtime."""

    @property
    def name(self) -> str: ...

    def command(self, job: Job) -> Command:
        """Raises Unsupported, with the reason, where this runtime cannot run such a job."""


def with_agent(job: Job) -> tuple[str, ...]:
    """The workload with the agent that makes faults inside of its processes, should any be ordered."""
    return ("-m", "chaos.agent", *job.workload)


def restarting(
    directory: PartDirectory, *, every: int, asynchronous: bool, timeout_s: float | None
) -> Mapping[str, str]:
    """The environment of a workload's restarting form under torchrun: where it writes, what it saves, its patience."""
    told = {
        "PHOENIX_RUN_DIR": str(directory.path),
        "PHOENIX_PLAIN_CHECKPOINTS": f"{every}:{'async' if asynchronous else 'sync'}:{directory.checkpoints}",
        # Without it (torch 2.13, gloo) the workers of the next round read the keys of the last: none starts.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # A silent rank is found by the timeout of the others' collectives, and by nothing else.
    return told if timeout_s is None else {**told, "PHOENIX_PLAIN_TIMEOUT_S": str(timeout_s)}


class PhoenixRuntime:
    """`phoenix run` as users start it, with an agent in each worker."""

    name: Final = "phoenix"

    def command(self, job: Job) -> Command:
        cluster = job.cluster
        flags: dict[str, object] = {
            "--nnodes": cluster.nodes,
            "--nproc-per-node": cluster.ranks_per_node,
            "--spares": cluster.spares,
            "--run-dir": job.directory.path,
        }
        if job.checkpoint_every is not None:
            flags |= {"--checkpoint-dir": job.directory.checkpoints, "--checkpoint-every": job.checkpoint_every}
        told = {SHIELD: "phoenix_core", SNAPSHOTS: "phoenix_core.kept:KeptStates"}
        environment = {DIRECTORY: str(job.directory.agents), **told}
        nodes = ("--nodes", ",".join(f"n{index}" for index in range(cluster.nodes + cluster.spares)))
        # What makes the disk, the nodes, the GPUs: each becomes the next, and the last the job.
        makers = [*job.on_its_disk]
        hosts: dict[str, object] = {}
        if cluster.isolated:
            hosts = {"--hosts": job.directory.path / NETWORK_FILE}
            makers += [sys.executable, "-m", "chaos.cluster.build", *nodes, "--file", str(hosts["--hosts"]), "--"]
        if cluster.gpus != NO_GPUS:
            gpus = {
                "--directory": job.directory.gpus,
                "--gpus": cluster.ranks_per_node,
                "--driver": cluster.gpus,
                **hosts,
            }
            makers += [sys.executable, "-m", "chaos.nvml.prepare", *nodes, *_arguments(gpus), "--"]
            hosts = {"--hosts": job.directory.gpus / HOSTS_FILE}
        return Command(argv=(*makers, *self._run({**flags, **hosts}, job)), environment=environment)

    def _run(self, flags: Mapping[str, object], job: Job) -> tuple[str, ...]:
        return (sys.executable, "-m", "phoenix_core", "run", *_arguments(flags), *with_agent(job))


def _arguments(flags: Mapping[str, object]) -> list[str]:
    return [str(part) for flag in flags.items() for part in flag]


@dataclass(frozen=True, kw_only=True)
class TorchrunRuntime:
    """Plain `torchrun --max-restarts`: when a rank ends, all are ended and begin again from a checkpoint on disk.

    It has one node and no spares, whatever the scenario asks for. Checkpoints are written every 10 steps unless it says
    otherwise, by torch.distributed.checkpoint: while training waits, or beside it (`torchrun-async`).
    """

    asynchronous: bool = False
    restarts: int = 10
    every: int = 10
    timeout_s: float = 10.0
    silent_phases: tuple[str, ...] = ("gradient_sync", "snapshot_copy", "replica_send")

    @property
    def name(self) -> str:
        return "torchrun-async" if self.asynchronous else "torchrun"

    def command(self, job: Job) -> Command:
        if not job.restarting:
            raise InvalidScenario("this workload has no form that restarts from disk", field="runtime")
        if job.cluster.isolated:
            raise InvalidScenario(f"{self.name} runs on one node without isolation", field="cluster.isolation")
        if job.cluster.gpus != NO_GPUS:
            raise InvalidScenario(f"{self.name} is tried without emulated GPUs", field="cluster.gpus")
        size, path = str(job.cluster.world_size), str(job.directory.path)
        logs = str(job.directory.logs / "torchrun")  # else it makes a directory in /tmp, and leaves it
        flags = ("--standalone", "--nproc-per-node", size, "--max-restarts", str(self.restarts), "--log-dir", logs)
        every = job.checkpoint_every or self.every
        told = restarting(job.directory, every=every, asynchronous=self.asynchronous, timeout_s=self.timeout_s)
        return Command(
            argv=(
                *job.on_its_disk,
                *(sys.executable, "-m", "chaos.torchrun", path, size, "--"),
                *(*flags, "--monitor-interval", "0.1", *with_agent(job), *job.restarting),
            ),
            environment={**told, DIRECTORY: str(job.directory.agents)},
        )


_RUNTIMES: Final[tuple[Runtime, ...]] = (PhoenixRuntime(), TorchrunRuntime(), TorchrunRuntime(asynchronous=True))
RUNTIMES: Final[Mapping[str, Runtime]] = {runtime.name: runtime for runtime in _RUNTIMES}


def find_runtime(name: str, runtimes: Mapping[str, Runtime] = RUNTIMES) -> Runtime:
    """Raises InvalidScenario, naming those that exist."""
    if name not in runtimes:
        raise InvalidScenario(f"unknown runtime {name!r}; there are: {', '.join(runtimes)}", field="runtime")
    return runtimes[name]


def runtime_for(scenario: Scenario, runtimes: Mapping[str, Runtime] = RUNTIMES) -> Runtime:
    """The runtime of a scenario that can be run here.

    Raises InvalidScenario for a runtime that nobody knows, for a data file that cannot be trained on and for a phase of
    which this runtime does not tell, and Unsupported for what this machine refuses, so that such a scenario is refused
    before anything is started.
    """
    runtime = find_runtime(scenario.runtime, runtimes)
    check_files(scenario.job, scenario.options)
    for index, fault in enumerate(scenario.faults):
        phase = fault.trigger.to_json().get("phase")
        if phase in getattr(runtime, "silent_phases", ()):  # an ability that few runtimes lack
            never = f"{runtime.name} does not tell when it enters {phase}"
            raise InvalidScenario(never, field=f"faults[{index}].trigger.phase")
    if scenario.cluster.isolated and (trouble := abilities().isolation):
        raise Unsupported(trouble, field="cluster.isolation")
    if scenario.cluster.gpus != NO_GPUS and (trouble := no_gpus()):
        raise Unsupported(trouble, field="cluster.gpus")
    full = next((index for index, fault in enumerate(scenario.faults) if fault.kind == "disk_full"), None)
    if full is not None and (trouble := no_disk()):
        raise Unsupported(trouble, field=f"faults[{full}].kind")
    places = [(fault.kind, f"faults[{index}].kind") for index, fault in enumerate(scenario.faults)]
    places += [(fault.kind, "campaign") for fault in scenario.drawn]
    for kind, place in places if scenario.cluster.isolated else ():
        if trouble := abilities().trouble(kind):
            raise Unsupported(trouble, field=place)
    return runtime


def with_extra(extra: str) -> dict[str, Runtime]:
    """The registered runtimes and those of others: `extra` is a comma-separated list of `module:object`.

    The value comes from the operator's environment (PHOENIX_RUNTIMES), never from a request.
    """
    runtimes = dict(RUNTIMES)
    for reference in filter(None, (part.strip() for part in extra.split(","))):
        module, _, attribute = reference.partition(":")
        try:
            runtime: Runtime = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            message = f"PHOENIX_RUNTIMES: cannot load {reference!r} (expected module:object): {error}"
            raise InvalidScenario(message) from error
        runtimes[runtime.name] = runtime
    return runtimes
