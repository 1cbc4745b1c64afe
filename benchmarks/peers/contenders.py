"""Who is compared: every runtime in every setting, how it is started, and what it cannot do.

"As documented" is what the project's own documentation or example sets; "tuned" shortens every timeout that the runtime
offers as far as a quiet machine allows. The reasons in `cannot`, `alone` and `same` go into the table.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.crew import Member, write_plan
from benchmarks.peers.environments import Environment
from benchmarks.peers.scripts.probe import EVENTS, NODE, SETTINGS
from chaos.cluster.layout import COORDINATOR_ADDRESS, NETWORK_FILE, Plane, addresses
from chaos.runtimes import Command, Job, PhoenixRuntime, restarting

RESTARTS: Final = "100"
LOOPBACK: Final = "127.0.0.1"
TRAIN: Final = ("-m", "benchmarks.workloads.gpt")
PORT: Final = 29500
"""On isolated nodes, whose networks nobody else uses."""

Starter = Callable[["Contender", Job, Environment], Command]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the table. `key` names it in the results and on the command line (its part before the slash).

    `spares` are part of every job; `standby` nodes wait only where nodes are lost.
    `cannot`: measurements that would say nothing, with the reason. `alone`: faults after which the world is never whole
    again, with the reason; then it counts when the survivors go on. `single`: faults that a job survives once.
    `patience_s`: how long a recovery is waited for, where it is not the usual.
    """

    key: str
    title: str
    setting: str
    note: str
    start: Starter
    settings: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    spares: int = 0
    standby: int = 0
    cannot: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    single: frozenset[str] = frozenset()
    patience_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def peer(self) -> str:
        return self.key.partition("/")[0]

    def command(self, job: Job, environment: Environment) -> Command:
        return self.start(self, job, environment)

    def script(self, name: str, job: Job) -> tuple[str, ...]:
        return ("-m", "benchmarks.peers.scripts", name, *job.workload)

    def variables(self, job: Job) -> dict[str, str]:
        """For the probe and the script."""
        checkpoints = job.directory.path / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        given = {"ranks": job.cluster.world_size, "spares": self.spares, "directory": str(checkpoints), **self.settings}
        return {EVENTS: str(job.directory.events), SETTINGS: json.dumps(given), "OMP_NUM_THREADS": "1"}


# --- how they are started ---------------------------------------------------------------------------------------------


def phoenix(contender: Contender, job: Job, environment: Environment) -> Command:
    return PhoenixRuntime().command(replace(job, workload=(*TRAIN, *job.workload)))


def plain(contender: Contender, job: Job, environment: Environment) -> Command:
    """Plain DDP under torchrun: what the overhead and the cost of all others are counted against."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.cluster.world_size))
    argv = (environment.python, *launcher, *TRAIN, "--plain", *job.workload)
    return Command(argv=argv, environment={"OMP_NUM_THREADS": "1", "PHOENIX_RUN_DIR": str(job.directory.path)})


def disk(contender: Contender, job: Job, environment: Environment) -> Command:
    """torchrun restarts everybody; with nodes, one launcher on each, and one more that waits for a place."""
    launcher = (environment.python, "-m", "torch.distributed.run")
    chosen = contender.settings
    variables = restarting(
        job.directory, every=chosen["every"], asynchronous=chosen["asynchronous"], timeout_s=chosen.get("gloo_s")
    )
    train = (*TRAIN, "--restart", *job.workload)
    return _elastic(contender, job, launcher, train, {**variables, "OMP_NUM_THREADS": "1"})


def injob(contender: Contender, job: Job, environment: Environment) -> Command:
    variables = contender.variables(job)
    settings = json.loads(variables[SETTINGS])
    # A gated job stands still for seconds at a time, which learned timeouts would take for a hang.
    variables[SETTINGS] = json.dumps({**settings, "learn": settings["learn"] and "--gate" not in job.workload})
    launcher = (str(environment.bin / "ft_launcher"),)
    return _elastic(contender, job, launcher, contender.script("injob", job), variables)


def _elastic(
    contender: Contender, job: Job, launcher: tuple[str, ...], train: tuple[str, ...], variables: Mapping[str, str]
) -> Command:
    flags = [part for flag in contender.flags.items() for part in flag]
    common = ("--max-restarts", RESTARTS, *flags)
    if not job.cluster.isolated:
        local = _local_rendezvous(launcher)
        argv = (*launcher, *local, "--nproc-per-node", str(job.cluster.world_size), *common, *train)
        return Command(argv=argv, environment=variables)
    shape = ("--nnodes", str(job.cluster.nodes), "--nproc-per-node", str(job.cluster.ranks_per_node))
    meeting = ("--rdzv-backend", "c10d", "--rdzv-id", "peers", "--rdzv-endpoint", f"{_address(0)}:{PORT}")
    members = [
        Member(
            name=f"n{node}",
            node=f"n{node}",
            argv=(*launcher, *shape, *meeting, *common, *train),
            environment={**variables, NODE: f"n{node}"},
            # A launcher that came sooner would take the place of another.
            after=str(steady(job)) if node >= job.cluster.nodes else None,
        )
        for node in range(job.cluster.nodes + job.cluster.spares)
    ]
    return _crew(job, members)


def _local_rendezvous(launcher: tuple[str, ...]) -> tuple[str, ...]:
    if launcher[-1].endswith("ft_launcher"):  # it knows --standalone, but documents the rendezvous
        return ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:{free_ports(1)}")
    return ("--standalone",)


def torchft(contender: Contender, job: Job, environment: Environment) -> Command:
    """A lighthouse, and for each replica group a torchrun of its own, as its component for torchx does."""
    isolated, ranks = job.cluster.isolated, job.cluster.world_size
    groups = ranks + contender.spares
    first = PORT if isolated else free_ports(groups + 1)
    lighthouse = f"http://{COORDINATOR_ADDRESS if isolated else LOOPBACK}:{first}"
    flags = [part for flag in contender.flags.items() for part in flag]
    quorum = ("--min_replicas", str(ranks) if contender.spares else "1")
    serve = (str(environment.bin / "torchft_lighthouse"), "--bind", f"[::]:{first}", *quorum, *flags)
    members = [Member(name="lighthouse", argv=serve, serves=True)]
    for group in range(groups):
        address = _address(group) if isolated else LOOPBACK
        store = ("--master-addr", address, "--master-port", str(first + 1 + (0 if isolated else group)))
        launcher = (environment.python, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1")
        variables = {"TORCHFT_LIGHTHOUSE": lighthouse, "REPLICA_GROUP_ID": str(group), NODE: f"n{group}"}
        members.append(
            Member(
                name=f"group{group}",
                node=f"n{group}",
                argv=(*launcher, *store, "--max-restarts", RESTARTS, *contender.script("torchft_ddp", job)),
                environment={**contender.variables(job), **variables},
            )
        )
    return _crew(job, members)


def inprocess(contender: Contender, job: Job, environment: Environment) -> Command:
    """Processes without a launcher: torchrun would end all of them when one dies."""
    isolated = job.cluster.isolated
    size = job.cluster.world_size + contender.spares
    port = PORT if isolated else free_ports(3)
    common = {
        **contender.variables(job),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": _address(0) if isolated else LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCH_CPP_LOG_LEVEL": "error",  # as its guide asks, for waits that time out all the time
    }
    members = [
        Member(
            name=f"rank{rank}",
            node=f"n{rank}",
            argv=(environment.python, *contender.script("inprocess", job)),
            environment={**common, "RANK": str(rank), NODE: f"n{rank}"},
        )
        for rank in range(size)
    ]
    return _crew(job, members)


def steady(job: Job) -> Path:
    """The file that whoever measures makes when the job trains."""
    return job.directory.path / "steady"


def _crew(job: Job, members: list[Member]) -> Command:
    job.directory.path.mkdir(parents=True, exist_ok=True)
    plan, network = job.directory.path / "crew.json", job.directory.path / NETWORK_FILE
    write_plan(plan, members, network if job.cluster.isolated else None)
    crew = (sys.executable, "-m", "benchmarks.peers.crew", str(plan))
    if not job.cluster.isolated:
        return Command(argv=crew)
    nodes = ",".join(f"n{index}" for index in range(job.cluster.nodes + job.cluster.spares))
    build = (sys.executable, "-m", "chaos.cluster.build", "--nodes", nodes, "--file", str(network), "--")
    return Command(argv=(*build, *crew))


def _address(node: int) -> str:
    return addresses(node)[Plane.DATA]


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on now."""
    for first in range(PORT, 60000, 10 * count):
        with ExitStack() as stack:
            try:
                for number in range(first, first + count):
                    stack.enter_context(socket.socket()).bind((LOOPBACK, number))
            except OSError:
                continue
            return first
    raise OSError("no free ports")
