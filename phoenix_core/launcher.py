"""`phoenix run`: starts a coordinator and one agent per node on this machine, and waits for the job.

It takes torchrun's flags, so that a command line moves over by changing its first word.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from phoenix_core.settings import Detection
from phoenix_core.wire import die_with_parent

LOOPBACK = "127.0.0.1"
POLL_S = 0.2
IGNORED = (
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr", "master-port", "local-addr",
    "monitor-interval", "start-method", "role", "redirects", "tee", "local-ranks-filter",
)  # fmt: skip
"""Flags of torchrun that say how machines find each other or where output goes; one machine needs none."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"phoenix run: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The command line of `phoenix run`; dashes and underscores are the same, as in torchrun."""
    result = _Parser(prog="phoenix run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--nnodes", default="1", metavar="N", help="nodes that hold ranks, each with an agent of its own (default 1)")
    add("--nproc-per-node", "--nproc_per_node", default="1", metavar="M", help="ranks per node, or 'auto' (default 1)")
    add("--spares", type=int, default=1, metavar="S", help="warm spares, each on a node of its own (default 1)")
    add("--max-restarts", "--max_restarts", type=int, default=3, metavar="R",
        help="failures in a row without one new step before the job is given up (default 3)")  # fmt: skip
    add("--run-dir", "--run_dir", "--log-dir", "--log_dir", type=Path, metavar="DIR",
        help="keep events/*.jsonl and logs/*.log here; without it output goes to this terminal")  # fmt: skip
    add("--standalone", action="store_true", help="accepted as in torchrun; one machine is the only mode today")
    add("-m", "--module", action="store_true", help="the script is a module name, as in python -m")
    add("--no-python", "--no_python", action="store_true", help="the script is a program of its own")
    for name in IGNORED:
        add(f"--{name}", f"--{name.replace('-', '_')}", dest="ignored", action="append", help=argparse.SUPPRESS)
    add("script", help="the training script")
    add("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return result


def _count(text: str, flag: str, fail: argparse.ArgumentParser) -> int:
    low, _, high = text.partition(":")
    if high and high != low:
        fail.error(f"{flag} {text}: the world does not change its size here; give one number and use --spares")
    if text in ("auto", "cpu", "gpu"):
        return os.cpu_count() or 1
    if not low.isdigit() or int(low) < 1:
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


class Launcher:
    """The processes of one job; `run` returns its exit code with none of them left."""

    def __init__(self, options: argparse.Namespace, command: Sequence[str], nodes: int, per_node: int) -> None:
        self.options = options
        self.command = command
        self.nodes = [f"n{index}" for index in range(nodes)]
        self.spare_nodes = [f"n{nodes + index}" for index in range(options.spares)]
        self.per_node = per_node
        self.token = secrets.token_hex(16)
        self.run_dir = str(options.run_dir.resolve()) if options.run_dir else None
        self._children: list[subprocess.Popen[str]] = []
        self._interrupted: int | None = None

    def run(self) -> int:
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._interrupt)
        with contextlib.ExitStack() as stack:
            control, store = (stack.enter_context(_listener()) for _ in range(2))
            addresses = [list(listener.getsockname()) for listener in (control, store)]
            coordinator = self._start_coordinator(control, store)
            for node in [*self.nodes, *self.spare_nodes]:
                self._start("phoenix_core.agent", self._agent_config(node, *addresses))
        code = self._wait_for(coordinator)
        for child in self._children[1:]:
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if code < 0:
            print(f"phoenix run: the coordinator was ended by signal {-code}; the job stops", file=sys.stderr)
        return 130 if self._interrupted else max(code, 0) or int(code < 0)

    def _wait_for(self, coordinator: subprocess.Popen[str]) -> int:
        """The coordinator's exit code; an interruption is passed on to it, whenever it came."""
        while True:
            if self._interrupted is not None:
                coordinator.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return coordinator.wait(timeout=POLL_S)

    def _interrupt(self, signum: int, _frame: FrameType | None) -> None:
        self._interrupted = signum  # the loop that waits passes it on

    def _start_coordinator(self, control: socket.socket, store: socket.socket) -> subprocess.Popen[str]:
        config = {
            "rank_nodes": [node for node in self.nodes for _ in range(self.per_node)],
            "spare_nodes": self.spare_nodes,
            "max_restarts": self.options.max_restarts,
            "detection": asdict(Detection()),
            "run_dir": self.run_dir,
            "token": self.token,
            "listen_fds": [control.fileno(), store.fileno()],
        }
        return self._start("phoenix_core.coordinator", config, (control.fileno(), store.fileno()))

    def _agent_config(self, node: str, coordinator: list[Any], store: list[Any]) -> dict[str, Any]:
        return {
            "node": node,
            "coordinator": coordinator,
            "store": store,
            "token": self.token,
            "command": list(self.command),
            "run_dir": self.run_dir,
            "address": LOOPBACK,
            "world_size": len(self.nodes) * self.per_node,
            "local_world_size": self.per_node,
            "detection": asdict(Detection()),
        }

    def _start(self, module: str, config: Mapping[str, object], fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            pass_fds=fds,
            preexec_fn=die_with_parent(),
            # The children share this terminal but not its Ctrl-C: the launcher passes on what it means.
            process_group=0,
            text=True,
        )
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            json.dump(config, child.stdin)  # by a pipe, since a command line shows the token to everyone
        self._children.append(child)
        return child


def _listener() -> socket.socket:
    listener = socket.create_server((LOOPBACK, 0), backlog=1024)
    listener.set_inheritable(True)
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 completed, 1 failed, 2 usage, 130 interrupted."""
    command_line = parser()
    options = command_line.parse_args(argv)
    if options.spares < 0:
        command_line.error(f"--spares {options.spares}: a number from 0 on")
    nodes = _count(options.nnodes, "--nnodes", command_line)
    per_node = _count(options.nproc_per_node, "--nproc-per-node", command_line)
    command = _command(options, command_line)
    if options.no_python and shutil.which(options.script) is None:
        command_line.error(f"there is no program {options.script}")
    if options.run_dir is not None:
        try:
            options.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            command_line.error(f"--run-dir {options.run_dir}: {error.strerror}")
    return Launcher(options, command, nodes, per_node).run()
