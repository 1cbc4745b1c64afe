"""`phoenix run`: starts a coordinator and one agent per node on this machine, and waits for the job.

It takes torchrun's flags, so that a command line moves over by changing its first word.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from phoenix_core.advice import tell
from phoenix_core.bandwidth import parse_rate
from phoenix_core.checkpoint import newest, set_aside
from phoenix_core.errors import UsageError
from phoenix_core.hosts import Hosts
from phoenix_core.keeper import Keeper
from phoenix_core.ledger import Book
from phoenix_core.settings import REPLICA_BANDWIDTH, CheckpointSettings, Detection
from phoenix_core.wire import COORDINATOR_EVENTS, die_with_parent

WORKER_BYTES = 64 << 20
"""What a worker that only imported torch shares with no other process, rounded down."""
IGNORED = (
    "rdzv-backend", "rdzv-id", "rdzv-conf", "master-port", "local-addr", "monitor-interval", "start-method", "role",
    "redirects", "tee", "local-ranks-filter",
)  # fmt: skip
"""Flags of torchrun that say how machines find each other or where output goes; one machine needs none."""
MEETING_POINTS = ("rdzv-endpoint", "master-addr")
"""Those that name a machine: not used either, which has to be said where it is another one."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        # argparse counts the rest of the line, which may be empty, among the arguments that are required.
        self.exit(2, f"phoenix run: {message.replace('script, arguments', 'script')}\n")


def parser() -> argparse.ArgumentParser:
    """The command line of `phoenix run`; dashes and underscores are the same, as in torchrun."""
    layout = argparse.RawDescriptionHelpFormatter
    # No abbreviations: a script's --n is not our --nnodes.
    result = _Parser(prog="phoenix run", description=__doc__, formatter_class=layout, allow_abbrev=False)
    add = result.add_argument
    add("--nnodes", default="1", metavar="N", help="nodes that hold ranks, each with an agent of its own (default 1)")
    add("--nproc-per-node", "--nproc_per_node", default="1", metavar="M", help="ranks per node, or 'auto' (default 1)")
    add("--spares", type=int, default=1, metavar="S", help="warm spares, each on a node of its own (default 1)")
    add("--max-restarts", "--max_restarts", type=int, default=3, metavar="R",
        help="failures of a rank without one new step, or in a row of spares that a rank needs, before the job is "
        "given up (default 3)")  # fmt: skip
    add("--run-dir", "--run_dir", "--log-dir", "--log_dir", type=_directory, metavar="DIR",
        help="keep events/*.jsonl and logs/*.log here; without it output goes to this terminal")  # fmt: skip
    add("--hang-timeout", "--hang_timeout", type=float, default=Detection.hang_floor_s, metavar="SECONDS",
        help="a rank that keeps the others waiting in a step for as long, and for 10 median steps, is replaced "
        "(default %(default)g)")  # fmt: skip
    add("--pause-timeout", "--pause_timeout", type=float, default=Detection.between_steps_s, metavar="SECONDS",
        help="the same between two steps, where a rank may save or evaluate (default %(default)g)")  # fmt: skip
    add("--checkpoint-dir", "--checkpoint_dir", type=_directory, metavar="DIR",
        help="keep checkpoints here and begin from the latest complete one; the last resort where every copy in memory "
        "is lost (default: none)")  # fmt: skip
    add("--checkpoint-every", "--checkpoint_every", type=int, metavar="N",
        help="steps between two checkpoints (default 100); one more is written at the end")  # fmt: skip
    add("--checkpoint-keep", "--checkpoint_keep", type=int, metavar="K",
        help="complete checkpoints that are kept (default 2)")  # fmt: skip
    add("--hosts", type=Path, metavar="FILE",
        help="a JSON file that says at which address each node is reached and by which command its agent is started "
        "there (default: all on 127.0.0.1)")  # fmt: skip
    add("--replica-bandwidth", "--replica_bandwidth", type=_rate, metavar="RATE",
        help="a rank sends its snapshots to their holder no faster: 200MB/s, 10Gbit/s (default: no limit)")  # fmt: skip
    add("--standalone", action="store_true", help="accepted as in torchrun; one machine is the only mode today")
    add("-m", "--module", action="store_true", help="the script is a module name, as in python -m")
    add("--no-python", "--no_python", action="store_true", help="the script is a program of its own")
    for name in (*IGNORED, *MEETING_POINTS, "node-rank"):
        add(f"--{name}", f"--{name.replace('-', '_')}", default="", help=argparse.SUPPRESS)
    add("script", help="the training script")
    add("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return result


def _directory(text: str) -> Path:
    if not text:  # a variable of the shell that is not set, and not the current directory
        raise argparse.ArgumentTypeError("it is empty; name a directory, or leave the option out")
    return Path(text)


def _rate(text: str) -> float | None:
    try:
        return parse_rate(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str, flag: str, fail: argparse.ArgumentParser) -> int:
    low, _, high = text.partition(":")
    if high and high != low:
        fail.error(f"{flag} {text}: the world does not change its size here; give one number and use --spares")
    if text == "gpu":
        fail.error(f"{flag} gpu: ranks train on the CPU in this version; give a number, or auto for one per core")
    if text in ("auto", "cpu"):
        return len(os.sched_getaffinity(0))
    if not low.isdecimal() or int(low) < 1:
        fail.error(f"{flag} {text}: not a positive whole number")
    return int(low)


def _command(options: argparse.Namespace, fail: argparse.ArgumentParser) -> list[str]:
    if options.no_python:
        return [options.script, *options.arguments]
    if options.module:
        return [sys.executable, "-u", "-m", options.script, *options.arguments]
    if not Path(options.script).is_file():
        fail.error(f"there is no file {options.script} (a module needs -m, a program --no-python)")
    return [sys.executable, "-u", options.script, *options.arguments]


def _check_memory(workers: int, fail: argparse.ArgumentParser) -> None:
    """Refuse what cannot fit, rather than start processes until the machine is full."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if workers * WORKER_BYTES > memory:
        fail.error(
            f"{workers} workers on this machine: each takes {WORKER_BYTES >> 20} MiB at the least once it has imported "
            f"torch, and there are {memory >> 20} MiB; ask for fewer nodes, ranks or spares"
        )


def _writable(path: Path, flag: str, fail: argparse.ArgumentParser) -> Path:
    """The directory, made where it is not there, and tried."""
    try:
        if path.exists() and not path.is_dir():
            fail.error(f"{flag} {path}: it is not a directory")
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        fail.error(f"{flag} {path}: it cannot be written: {error.strerror}")
    return path


def _make_run_dir(path: Path, fail: argparse.ArgumentParser) -> None:
    if (_writable(path, "--run-dir", fail) / COORDINATOR_EVENTS).exists():
        fail.error(f"--run-dir {path}: it holds the events of an earlier job; give another directory")


def _check_machine(options: argparse.Namespace, nodes: int, fail: argparse.ArgumentParser) -> None:
    """Who starts this on each of several machines, as torchrun, would get a whole job on each of them."""
    once = f"--nnodes {nodes} are processes of this machine, one job each time it is started"
    if options.node_rank not in ("", "0"):
        fail.error(f"--node-rank {options.node_rank}: {once}; start it once, without this flag")
    here = ("", "localhost", "127.0.0.1", "[::1]", "0.0.0.0", socket.gethostname())
    for flag in MEETING_POINTS if nodes > 1 else ():
        named = getattr(options, flag.replace("-", "_"))
        if named.removesuffix(":" + named.rpartition(":")[2]) not in here:
            tell(f"phoenix run: --{flag} {named} is not used: {once}")


def _hosts(options: argparse.Namespace, nodes: int, fail: argparse.ArgumentParser) -> Hosts:
    if options.hosts is None:
        return Hosts()
    try:
        hosts = Hosts.read(options.hosts, [f"n{index}" for index in range(nodes + options.spares)])
        _listener(hosts.coordinator).close()
    except UsageError as error:
        fail.error(f"--hosts {error}")
    except OSError as error:
        fail.error(f"--hosts {options.hosts}: the coordinator's address is not of this machine now: {error.strerror}")
    return hosts


def _claim(root: Path, fail: argparse.ArgumentParser) -> int:
    """A descriptor that keeps other jobs from `root`: parts of two jobs would make a checkpoint that looks whole."""
    claim = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail.error(f"--checkpoint-dir {root}: another job writes there now; end that one, or give another directory")
    except OSError:
        pass  # a file system without locks
    return claim


def _checkpoints(
    options: argparse.Namespace, world_size: int, fail: argparse.ArgumentParser, stack: contextlib.ExitStack
) -> tuple[CheckpointSettings | None, int]:
    """Where checkpoints go, and the boundary to begin from: that of the latest that is complete and intact.

    The directory is this job's until `stack` is left.
    """
    given = (options.checkpoint_every, options.checkpoint_keep)
    if options.checkpoint_dir is None:
        if given != (None, None):
            fail.error("--checkpoint-every and --checkpoint-keep say nothing without --checkpoint-dir")
        return None, 0
    every, keep = (default if number is None else number for number, default in zip(given, (100, 2), strict=True))
    if every < 2 or keep < 1:
        fail.error("--checkpoint-every needs at least 2 steps, --checkpoint-keep at least 1 checkpoint")
    root = _writable(options.checkpoint_dir, "--checkpoint-dir", fail).resolve()
    stack.callback(os.close, _claim(root, fail))
    found = newest(root)
    for reason in found.refused:
        tell(f"phoenix run: a checkpoint is not used: {reason}")
    if found.boundary is not None and found.world_size != world_size:
        fail.error(
            f"--checkpoint-dir {options.checkpoint_dir}: its checkpoint is of {found.world_size} ranks, this job has "
            f"{world_size}; give another directory, or as many ranks"
        )
    if found.boundary is not None:
        tell(f"phoenix run: begins from the checkpoint of step {found.boundary}")
    for path in set_aside(root, after=found.boundary or 0):
        tell(f"phoenix run: set aside: {path}")
    return CheckpointSettings(directory=root, every=every, keep=keep), found.boundary or 0


class Launcher:
    """The processes of one job; `run` returns its exit code with none of them left."""

    def __init__(
        self,
        options: argparse.Namespace,
        command: Sequence[str],
        nodes: int,
        per_node: int,
        *,
        hosts: Hosts,
        detection: Detection,
        checkpoint: CheckpointSettings | None,
        begins_at: int,
    ) -> None:
        self.options = options
        self.command = command
        self.nodes = [f"n{index}" for index in range(nodes)]
        self.spare_nodes = [f"n{nodes + index}" for index in range(options.spares)]
        self.per_node = per_node
        self.hosts = hosts
        self.token = secrets.token_hex(16)
        self.detection = asdict(detection)
        self.checkpoint = checkpoint
        self.begins_at = begins_at
        self.run_dir = str(options.run_dir.resolve()) if options.run_dir else None
        self._agents: list[subprocess.Popen[str]] = []
        self._interrupted: int | None = None

    def run(self) -> int:
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._interrupt)
        with contextlib.ExitStack() as stack:
            control, store = (stack.enter_context(_listener(self.hosts.coordinator)) for _ in range(2))
            addresses = [list(listener.getsockname()) for listener in (control, store)]
            ledger = Book.create()
            for fd in ledger:
                stack.callback(os.close, fd)
            for node in [*self.nodes, *self.spare_nodes]:
                config = self._agent_config(node, *addresses)
                self._agents.append(self._start("phoenix_core.agent", config, prefix=self.hosts.of(node).prefix))
            keeper = Keeper(
                lambda: self._start_coordinator(control, ledger),
                lambda: self._interrupted,
                lambda: all(agent.poll() is not None for agent in self._agents),
            )
            code = asyncio.run(keeper.run(store, self.token))
        for agent in self._agents:
            agent.terminate()  # where no coordinator could tell it
        for agent in self._agents:
            try:
                agent.wait(timeout=10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        if self._interrupted is not None:
            if code < 0:  # it came before the coordinator could have said so, or that one could not
                tell("phoenix run: the job stopped: interrupted")
            return 130
        return code

    def _interrupt(self, signum: int, _frame: FrameType | None) -> None:
        self._interrupted = signum  # the loop that waits passes it on

    def _start_coordinator(self, control: socket.socket, ledger: tuple[int, int]) -> subprocess.Popen[str]:
        config = {
            "rank_nodes": [node for node in self.nodes for _ in range(self.per_node)],
            "spare_nodes": self.spare_nodes,
            "max_restarts": self.options.max_restarts,
            "begins_at": self.begins_at,
            "detection": self.detection,
            "run_dir": self.run_dir,
            "token": self.token,
            "control_fd": control.fileno(),
            "ledger_fds": ledger,
        }
        # Until it listens to it, a Ctrl-C would end it with a traceback; the keeper repeats what it passes on.
        return self._start("phoenix_core.coordinator", config, (control.fileno(), *ledger), ignored=(signal.SIGINT,))

    def _agent_config(self, node: str, coordinator: list[Any], store: list[Any]) -> dict[str, Any]:
        return {
            "node": node,
            "coordinator": coordinator,
            "store": store,
            "token": self.token,
            "command": list(self.command),
            "environment": self._environment(),
            "run_dir": self.run_dir,
            "address": self.hosts.of(node).address,
            "world_size": len(self.nodes) * self.per_node,
            "local_world_size": self.per_node,
            "detection": self.detection,
        }

    def _environment(self) -> dict[str, str]:
        """Settings that workers read for themselves."""
        rate = self.options.replica_bandwidth
        limit = {REPLICA_BANDWIDTH: str(rate)} if rate is not None else {}
        return {**(self.checkpoint.to_environment() if self.checkpoint else {}), **limit}

    def _start(
        self,
        module: str,
        config: Mapping[str, object],
        fds: tuple[int, ...] = (),
        prefix: Sequence[str] = (),
        ignored: Sequence[signal.Signals] = (),
    ) -> subprocess.Popen[str]:
        dies = die_with_parent()

        def prepare() -> None:
            dies()
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        child = subprocess.Popen(
            [*prefix, sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            pass_fds=fds,
            preexec_fn=prepare,
            # The children share this terminal but not its Ctrl-C: the launcher passes on what it means.
            process_group=0,
            text=True,
        )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            json.dump(config, child.stdin)  # by a pipe, since a command line shows the token to everyone
        return child


def _listener(address: str) -> socket.socket:
    listener = socket.create_server((address, 0), backlog=1024)
    listener.set_inheritable(True)
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 completed, 1 failed, 2 usage, 130 interrupted."""
    command_line = parser()
    options = command_line.parse_args(argv)
    for flag, number in (("--spares", options.spares), ("--max-restarts", options.max_restarts)):
        if number < 0:
            command_line.error(f"{flag} {number}: a number from 0 on")
    nodes = _count(options.nnodes, "--nnodes", command_line)
    per_node = _count(options.nproc_per_node, "--nproc-per-node", command_line)
    _check_memory(nodes * per_node + options.spares, command_line)
    _check_machine(options, nodes, command_line)
    command = _command(options, command_line)
    if options.no_python and shutil.which(options.script) is None:
        command_line.error(f"there is no program {options.script}")
    if options.run_dir is not None:
        _make_run_dir(options.run_dir, command_line)
    if not Detection.silent_s < options.hang_timeout <= options.pause_timeout < math.inf:
        command_line.error(
            f"--hang-timeout {options.hang_timeout:g} must be above {Detection.silent_s:g} and at most --pause-timeout "
            f"{options.pause_timeout:g}"
        )
    hosts = _hosts(options, nodes, command_line)
    detection = Detection(hang_floor_s=options.hang_timeout, between_steps_s=options.pause_timeout)
    with contextlib.ExitStack() as stack:
        checkpoint, begins_at = _checkpoints(options, nodes * per_node, command_line, stack)
        return Launcher(
            options,
            command,
            nodes,
            per_node,
            hosts=hosts,
            detection=detection,
            checkpoint=checkpoint,
            begins_at=begins_at,
        ).run()
