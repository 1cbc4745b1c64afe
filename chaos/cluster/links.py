"""Links that are slow, late or lossy: a queueing discipline of the kernel on both ends of a node's cables.

Unlike the rules of a cut, a discipline does not go with the process that set it. So the hand has a child, the guard,
that clears all links as soon as the hand has ended, however that was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

from chaos.cluster import namespaces
from chaos.cluster.layout import COORDINATOR, Network, Plane, port

_LATENCY: Final = "200ms"
_OURS: Final = ("tbf", "netem")
LEAST_BURST: Final = 16384


@dataclass(frozen=True)
class Link:
    """One end of a cable: what leaves the interface `name` of this namespace is disciplined."""

    namespace: int
    name: str


def links(network: Network, nodes: Sequence[str], planes: Sequence[Plane]) -> list[Link]:
    """Both ends of each cable of these nodes: what they send, and what is sent to them."""
    (home,) = (party.namespace for party in network.parties if party.name == COORDINATOR)
    found = []
    for index, party in enumerate(party for party in network.parties if party.name != COORDINATOR):
        for plane in planes if party.name in nodes else ():
            found += [Link(party.namespace, plane.value), Link(home, port(plane, index))]
    return found


def discipline(kind: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel is asked for, in its own words: bytes per second, microseconds, percent."""
    if kind == "network_rate":
        rate = round(float(params["mbit_s"]) * 125_000)
        return {"kind": "tbf", "rate": rate, "burst": max(rate // 100, LEAST_BURST), "latency": _LATENCY}
    if kind == "network_delay":
        return {"kind": "netem", "delay": round(float(params["delay_s"]) * 1_000_000)}
    return {"kind": "netem", "loss": float(params["percent"])}


def set_all(ends: Sequence[Link], asked: Mapping[str, Any]) -> None:
    """All or none. Raises OSError where the kernel refuses, with the reason in words."""
    settings = {name: value for name, value in asked.items() if name != "kind"}
    done: list[Link] = []
    try:
        for link in ends:
            with _route(link) as (route, index):
                route.tc("add", asked["kind"], index, **settings)
            done.append(link)
    except NetlinkError as error:
        clear_all(done)
        if error.code == errno.ENOENT:
            missing = f"this kernel has no sch_{asked['kind']}: as root: modprobe sch_{asked['kind']}"
            raise OSError(error.code, missing) from error
        if error.code == errno.EEXIST:
            raise OSError(error.code, "another fault holds a link of this node") from error
        raise OSError(error.code, f"the kernel refuses {asked['kind']}: {error}") from error


def clear_all(ends: Sequence[Link]) -> None:
    """Back to the default; the kernel refuses where that is the case already."""
    for link in ends:
        with contextlib.suppress(NetlinkError), _route(link) as (route, index):
            route.tc("del", index=index, parent=TC_H_ROOT)


def disciplined(ends: Sequence[Link]) -> bool:
    """Whether the kernel still knows of a discipline of ours on one of these."""
    for link in ends:
        with _route(link) as (route, index):
            if any(queue.get_attr("TCA_KIND") in _OURS for queue in route.get_qdiscs(index=index)):
                return True
    return False


@contextlib.contextmanager
def _route(link: Link) -> Iterator[tuple[IPRoute, int]]:
    with namespaces.inside(link.namespace), IPRoute() as route:
        yield route, route.link_lookup(ifname=link.name)[0]


def guard(network: Network) -> None:
    """Fork a process that clears every link of the cluster when this one has ended."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(readable)  # the writable end stays open, in this process only, until it ends
        return
    os.close(writable)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1):
        os.close(descriptor)  # the trial waits for the end of what the hand says, not for ours
    os.read(readable, 1)
    clear_all(links(network, network.nodes, tuple(Plane)))
    os._exit(0)
