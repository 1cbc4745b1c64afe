"""Whom a fault hits: pure values with their JSON forms.

{"rank": 2} | {"random_rank": true} | {"spare": true} | {"node": "n1"} | {"coordinator": true} | {"store": true}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.errors import InvalidFault
from chaos.faultkind import EVERYBODY
from chaos.fields import one_of, true, whole

_NODE = re.compile(r"n(0|[1-9]\d{0,5})")


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The worker that holds this rank when the fault fires."""

    rank: int

    def to_json(self) -> dict[str, object]:
        return {"rank": self.rank}


@dataclass(frozen=True, kw_only=True)
class RandomRank:
    """A rank drawn from the trial's seed and the fault's id, so that the same trial hits the same rank."""

    def to_json(self) -> dict[str, object]:
        return {"random_rank": True}


@dataclass(frozen=True, kw_only=True)
class Spare:
    """The spare that has been parked longest."""

    def to_json(self) -> dict[str, object]:
        return {"spare": True}


@dataclass(frozen=True, kw_only=True)
class Node:
    """All processes of a node: its agent, its workers, what they have started. Nodes are n0, n1, ..., spares last."""

    node: str

    @property
    def index(self) -> int:
        return int(self.node[1:])

    def to_json(self) -> dict[str, object]:
        return {"node": self.node}


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """The process that decides who holds which rank, where the runtime has one."""

    def to_json(self) -> dict[str, object]:
        return {"coordinator": True}


@dataclass(frozen=True, kw_only=True)
class Store:
    """The process that holds the rendezvous store: the job's launcher."""

    def to_json(self) -> dict[str, object]:
        return {"store": True}


Target = Rank | RandomRank | Spare | Node | Coordinator | Store

_FORMS = '{"rank": N}, {"random_rank": true}, {"spare": true}, {"node": "nN"}, {"coordinator": true}, {"store": true}'


def target_from_json(data: object) -> Target:
    """Raises InvalidFault: an empty target, or one with two answers, hits nobody rather than somebody."""
    fields = one_of(data, EVERYBODY, "target", f"one of {_FORMS}")
    if "rank" in fields:
        return Rank(rank=whole(fields["rank"], "target.rank"))
    if "node" in fields:
        node = fields["node"]
        if not isinstance(node, str) or not _NODE.fullmatch(node):
            raise InvalidFault(f"must be the name of a node (n0, n1, ...), not {node!r}", field="target.node")
        return Node(node=node)
    name = next(iter(fields))
    true(fields[name], f"target.{name}")
    simple: Mapping[str, Target] = {
        "random_rank": RandomRank(),
        "spare": Spare(),
        "coordinator": Coordinator(),
        "store": Store(),
    }
    return simple[name]


def check_target(target: Target, *, nodes: int, world_size: int, spares: int) -> None:
    """Raises InvalidFault where a cluster of this shape has no such target (`nodes`: those of spares too)."""
    if isinstance(target, Rank):
        check_rank(target.rank, world_size, "target.rank")
    if isinstance(target, Spare) and spares == 0:
        raise InvalidFault("the cluster has no spare: set cluster.spares, or choose a rank", field="target.spare")
    if isinstance(target, Node) and target.index >= nodes:
        raise InvalidFault(f"node {target.node} does not exist: nodes are n0..n{nodes - 1}", field="target.node")


def check_rank(rank: int, world_size: int, where: str) -> None:
    """Raises InvalidFault where there is no such rank."""
    if rank >= world_size:
        raise InvalidFault(f"rank {rank} does not exist: ranks are 0..{world_size - 1}", field=where)


def target_schemas() -> list[dict[str, object]]:
    """One JSON Schema for each form."""
    rules: Mapping[str, object] = {
        **{name: {"const": True} for name in EVERYBODY},
        "rank": {"type": "integer", "minimum": 0},
        "node": {"type": "string", "pattern": f"^{_NODE.pattern}$"},
    }
    return [
        {"type": "object", "properties": {name: rules[name]}, "required": [name], "additionalProperties": False}
        for name in EVERYBODY
    ]
