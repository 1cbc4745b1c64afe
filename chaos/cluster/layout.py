"""Isolated nodes as data: which parties there are, on which networks, at which addresses. Pure, apart from the file.

Two networks, as a cluster has them: over *control* agents and ranks speak with the coordinator and its store, over
*data* ranks exchange gradients and snapshots. Every node is on both, the coordinator on the control network only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

COORDINATOR: Final = "coordinator"
NETWORK_FILE: Final = "network.json"
MOST_NODES: Final = 1000
"""A bridge of the kernel has 1024 ports."""


class Plane(StrEnum):
    CONTROL = "control"
    DATA = "data"


_NETWORKS: Final = {Plane.CONTROL: "10.64", Plane.DATA: "10.65"}
PREFIX_BITS: Final = 16


def addresses(index: int) -> dict[Plane, str]:
    """Of the `index`-th node. Only its own namespaces know these networks: they cannot clash with the machine's."""
    high, low = divmod(index + 1, 256)
    return {plane: f"{network}.{high}.{low}" for plane, network in _NETWORKS.items()}


def port(plane: Plane, index: int) -> str:
    """The interface of the switch at which the cable of the `index`-th node ends."""
    return f"{plane.value[0]}{index}"


COORDINATOR_ADDRESS: Final = f"{_NETWORKS[Plane.CONTROL]}.255.254"


@dataclass(frozen=True, kw_only=True)
class Party:
    """Somebody on the networks; `namespace` is the descriptor of its network namespace in the holder's process."""

    name: str
    namespace: int
    address: Mapping[Plane, str]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A cluster of isolated nodes that exists: process `pid` (the job's launcher) holds all of its namespaces."""

    pid: int
    start_ticks: int
    parties: tuple[Party, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(party.name for party in self.parties if party.name != COORDINATOR)

    def to_json(self) -> dict[str, object]:
        """Also what `phoenix run --hosts` reads: an address and a command prefix for each node."""
        nodes = {
            party.name: {
                "address": party.address[Plane.DATA],
                "control": party.address[Plane.CONTROL],
                "namespace": party.namespace,
                "prefix": ["nsenter", f"--net=/proc/{self.pid}/fd/{party.namespace}", "--"],
            }
            for party in self.parties
            if party.name != COORDINATOR
        }
        (home,) = (party.namespace for party in self.parties if party.name == COORDINATOR)
        holder = {"pid": self.pid, "start_ticks": self.start_ticks, "namespace": home}
        return {"coordinator": COORDINATOR_ADDRESS, "holder": holder, "nodes": nodes}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Network:
        """Raises KeyError for what is no such document."""
        holder = data["holder"]
        parties = [coordinator_party(holder["namespace"])]
        parties += [
            Party(
                name=name,
                namespace=node["namespace"],
                address={Plane.CONTROL: node["control"], Plane.DATA: node["address"]},
            )
            for name, node in data["nodes"].items()
        ]
        return Network(pid=holder["pid"], start_ticks=holder["start_ticks"], parties=tuple(parties))

    @staticmethod
    def read(path: Path) -> Network | None:
        """None while it is not there; it is renamed into place, so that it is whole when it is."""
        try:
            return Network.from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            return None


def coordinator_party(namespace: int) -> Party:
    return Party(name=COORDINATOR, namespace=namespace, address={Plane.CONTROL: COORDINATOR_ADDRESS})


def node_parties(names: Sequence[str], namespaces: Sequence[int]) -> tuple[Party, ...]:
    return tuple(
        Party(name=name, namespace=namespace, address=addresses(index))
        for index, (name, namespace) in enumerate(zip(names, namespaces, strict=True))
    )
