"""Where the parties of a job run: the launcher's seam. Only how an agent is started and where it is reached differ.

    {"coordinator": "10.64.255.254", "nodes": {"n0": {"address": "10.65.0.1", "prefix": ["nsenter", "--net=..."]}}}

The coordinator and its store listen on the one address, the ranks of a node on the node's; an agent is started by its
node's prefix. Without a file everything is a process of this machine on its loopback.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phoenix_core.errors import UsageError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Host:
    address: str = LOOPBACK
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hosts:
    coordinator: str = LOOPBACK
    nodes: Mapping[str, Host] = field(default_factory=dict)

    def of(self, node: str) -> Host:
        return self.nodes.get(node, Host())

    @staticmethod
    def read(path: Path, needed: Sequence[str]) -> Hosts:
        """Raises UsageError for a file that cannot be used, or that lacks a node which is needed."""
        try:
            data = json.loads(path.read_text())
            nodes = {
                str(name): Host(address=_address(node["address"]), prefix=tuple(map(str, node["prefix"])))
                for name, node in data["nodes"].items()
            }
            hosts = Hosts(coordinator=_address(data["coordinator"]), nodes=nodes)
        except OSError as error:
            raise UsageError(f"{path}: it cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}: it does not describe hosts as `python -m chaos.cluster.build` does: an object with "
                f'"coordinator", an address, and "nodes", each with "address" and "prefix" ({error})'
            ) from error
        if missing := [node for node in needed if node not in nodes]:
            raise UsageError(f"{path}: it names no host for {', '.join(missing)}")
        return hosts


def _address(text: object) -> str:
    return str(ipaddress.ip_address(str(text)))
