"""Builds a cluster of isolated nodes, then becomes the command that runs on it.

    python -m chaos.cluster.build --nodes n0,n1,n2 --file DIR/network.json -- phoenix run --hosts DIR/network.json ...

Each node is a network namespace with one cable (a veth pair) into each of two switches (bridges), for control and for
data. This process keeps the namespaces open and then executes the command in its own place, so they last exactly as
long as that process and those inside: there is nothing to clean up, whoever is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyroute2 import IPRoute

from chaos.cluster import namespaces
from chaos.cluster.layout import (
    COORDINATOR_ADDRESS,
    MOST_NODES,
    PREFIX_BITS,
    Network,
    Party,
    Plane,
    coordinator_party,
    node_parties,
    port,
)
from chaos.cluster.refusal import why_refused
from chaos.procfs import start_ticks

_LOOPBACK = 1
"""The interface `lo` is the first of every network namespace."""


def build(names: Sequence[str]) -> Network:
    """Isolate this process and give it a cluster; the coordinator's place is its own namespace. Raises OSError."""
    namespaces.isolate()
    home = namespaces.current_network()
    parties = node_parties(names, [namespaces.new_network() for _ in names])
    with IPRoute() as route:
        route.link("set", index=_LOOPBACK, state="up")
        for plane in Plane:
            switch = _switch(route, plane)
            for number, party in enumerate(parties):
                _cable(route, switch, plane, party, port(plane, number))
    for party in parties:
        with namespaces.inside(party.namespace), IPRoute() as route:
            route.link("set", index=_LOOPBACK, state="up")
            for plane in Plane:
                index = route.link_lookup(ifname=plane.value)[0]
                route.addr("add", index=index, address=party.address[plane], prefixlen=PREFIX_BITS)
                route.link("set", index=index, state="up")
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None
    return Network(pid=pid, start_ticks=ticks, parties=(coordinator_party(home), *parties))


def _switch(route: IPRoute, plane: Plane) -> int:
    """A bridge; on the control network it is also where the coordinator listens."""
    route.link("add", ifname=plane.value, kind="bridge")
    index: int = route.link_lookup(ifname=plane.value)[0]
    if plane is Plane.CONTROL:
        route.addr("add", index=index, address=COORDINATOR_ADDRESS, prefixlen=PREFIX_BITS)
    route.link("set", index=index, state="up")
    return index


def _cable(route: IPRoute, switch: int, plane: Plane, party: Party, name: str) -> None:
    peer = {"ifname": plane.value, "net_ns_fd": party.namespace}
    route.link("add", ifname=name, kind="veth", peer=peer)
    index = route.link_lookup(ifname=name)[0]
    route.link("set", index=index, master=switch, state="up")


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 2 where this machine refuses, 127 where the command cannot be started; else it is the command's."""
    parser = argparse.ArgumentParser(prog="python -m chaos.cluster.build", description=__doc__)
    parser.add_argument("--nodes", required=True, help="names, separated by commas")
    parser.add_argument("--file", type=Path, required=True, help="where the cluster is described")
    parser.add_argument("command", nargs="+", help="what runs on it")
    options = parser.parse_args(arguments)
    names = options.nodes.split(",")
    if not all(names) or len(set(names)) < len(names):
        parser.error(f"--nodes {options.nodes!r}: names, each once, separated by commas")
    if len(names) > MOST_NODES:
        parser.error(f"{len(names)} nodes: a switch has room for {MOST_NODES}")
    try:
        network = build(names)
    except OSError as error:
        parser.error(why_refused(error))
    for party in network.parties:
        os.set_inheritable(party.namespace, True)
    unfinished = options.file.with_suffix(".new")
    try:
        unfinished.write_text(json.dumps(network.to_json()))
        unfinished.replace(options.file)
    except OSError as error:
        parser.error(f"--file {options.file}: it cannot be written: {error.strerror}")
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        print(f"{parser.prog}: cannot start {options.command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
