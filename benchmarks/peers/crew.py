"""Starts the processes of a peer that has no launcher of its own for all of them, each on its node.

    python -m benchmarks.peers.crew PLAN.json

A plan is {"members": [{"name", "argv", "environment", "node", "serves", "after"}], "network": FILE or null}. With a
network each member runs inside of its node's namespace, and the node's address is its host name there, since some peers
announce that name to the others. A member that `serves` (a lighthouse) is ended when all others have ended; one with
`after` is started when that file exists. Nobody is restarted: that is the business of what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

POLL_S: Final = 0.02
GRACE_S: Final = 5.0
_RENAMED: Final = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process of the crew. `node` None: where the control plane is."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    serves: bool = False
    after: str | None = None


def write_plan(path: Path, members: Sequence[Member], network: Path | None) -> None:
    plan = {"members": [asdict(member) for member in members], "network": None if network is None else str(network)}
    path.write_text(json.dumps(plan))


def on_node(argv: Sequence[str], host: Mapping[str, Any]) -> list[str]:
    """The command inside of a node: its network, and a host name that is its address."""
    return [*host["prefix"], "unshare", "--uts", "sh", "-c", _RENAMED, host["address"], *argv]


class Crew:
    def __init__(self, plan: Mapping[str, Any]) -> None:
        network = plan["network"]
        self._hosts: Mapping[str, Any] = {} if network is None else json.loads(Path(network).read_text())["nodes"]
        self._waiting = list(plan["members"])
        self._working: dict[str, subprocess.Popen[bytes]] = {}
        self._serving: list[subprocess.Popen[bytes]] = []
        self._codes: dict[str, int] = {}
        self._told = False
        signal.signal(signal.SIGTERM, self._tell)

    def run(self) -> int:
        """Until everybody has ended: the worst exit code of those that do not merely serve."""
        while not self._told and (self._waiting or self._working):
            self._start_those_due()
            self._collect()
            time.sleep(POLL_S)
        self._end([*self._working.values(), *self._serving])
        return max((abs(code) for code in self._codes.values()), default=0)

    def _start_those_due(self) -> None:
        for member in list(self._waiting):
            if member["after"] is None or Path(member["after"]).exists():
                self._waiting.remove(member)
                self._start(member)

    def _start(self, member: Mapping[str, Any]) -> None:
        argv = member["argv"]
        if self._hosts and member["node"] is not None:
            argv = on_node(argv, self._hosts[member["node"]])
        process = subprocess.Popen(argv, env={**os.environ, **member["environment"]}, start_new_session=True)
        if member["serves"]:
            self._serving.append(process)
        else:
            self._working[member["name"]] = process

    def _collect(self) -> None:
        for name, process in list(self._working.items()):
            if (code := process.poll()) is not None:
                print(f"crew: {name} ended with {code}", flush=True)
                self._codes[name] = code
                del self._working[name]

    def _tell(self, *_: object) -> None:
        self._told = True

    @staticmethod
    def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    sys.exit(Crew(json.loads(Path(sys.argv[1]).read_text())).run())
