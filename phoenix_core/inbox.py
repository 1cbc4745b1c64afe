"""What the coordinator told this worker, for the training thread to wait on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from phoenix_core.errors import GenerationSuperseded, JobStopped, PeerLost
from phoenix_core.world import World

T = TypeVar("T")
POLL_S = 0.5
NOBODY_FAILED_S = 5.0
"""Longer than the coordinator takes to find who has failed, where that is what broke a collective. Meanwhile the others
may wait for this rank, and it says why (`Inbox.broken`), lest it be taken for hung."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One announcement of a generation: the world, where its ranks serve state, and on which nodes they are.

    `local_ranks` are those of the workers of this node, as its agent has given them.
    """

    world: World
    joining: tuple[int, ...]
    fresh: bool
    boundary: int
    peers: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]
    local_ranks: Mapping[str, int]

    @property
    def generation(self) -> int:
        return self.world.generation

    @staticmethod
    def from_message(message: dict[str, Any], before: Call | None = None) -> Call:
        """`before` is the announcement that this worker was sent last: most say only what has changed since."""
        if "changes" in message:
            assert before is not None
            return before._with(message)
        return Call(
            world=World.from_json(message["world"]),
            joining=tuple(message["joining"]),
            fresh=message["fresh"],
            boundary=message["boundary"],
            peers=tuple((host, port) for host, port in message["peers"]),
            nodes=tuple(message["nodes"]),
            local_ranks=message.get("local_ranks", {}),  # which the agent adds on the way
        )

    def _with(self, message: dict[str, Any]) -> Call:
        changes = message["changes"]
        ranks, peers, nodes = list(self.world.ranks), list(self.peers), list(self.nodes)
        for rank, worker, (host, port), node in changes["placed"]:
            ranks[rank], peers[rank], nodes[rank] = worker, (host, port), node
        world = World(generation=changes["generation"], ranks=tuple(ranks), spares=tuple(changes["spares"]))
        joining = tuple(message["joining"])
        where = {"boundary": message["boundary"], "peers": tuple(peers), "nodes": tuple(nodes)}
        return Call(world=world, joining=joining, fresh=message["fresh"], local_ranks=self.local_ranks, **where)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """This rank's part of the RestorePlan; a source is None where the rank has that state itself.

    `disk`: every rank has it from the checkpoint instead.
    """

    boundary: int
    disk: bool
    tensors: int | None
    small: int | None


class Inbox:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.call: Call | None = None
        self.plans: dict[int, Plan] = {}
        self.resumed: dict[int, int] = {}
        self.alerted = 0
        self.released = False
        self.broken = False
        """A collective has ended with an error, and it is not known yet who has failed."""

    def put(self, message: dict[str, Any]) -> None:
        """Take in one command of the coordinator; called by the control thread."""
        with self.changed:
            match message["op"]:
                case "world":
                    self.call = Call.from_message(message, self.call)
                case "alert":
                    self.alerted = message["generation"]
                case "plan":
                    sources = {"tensors": message.get("tensors"), "small": message.get("small")}
                    plan = Plan(boundary=message["boundary"], disk=message["disk"], **sources)
                    self.plans[message["generation"]] = plan
                case "resume":
                    self.resumed[message["generation"]] = message["boundary"]
                case "release":
                    self.released = True
            self.changed.notify_all()

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def newest(self) -> int:
        """The latest generation that was announced, or that an alert says is coming."""
        return max(self.alerted, self.call.generation if self.call is not None else 0)

    def wait(self, ready: Callable[[], T | None], *, generation: int | None, limit_s: float | None = None) -> T:
        """The first value of `ready` that is not None.

        Raises GenerationSuperseded once a generation after `generation` was announced, PeerLost after `limit_s`.
        """
        deadline = time.monotonic() + limit_s if limit_s is not None else None
        while True:
            with self.changed:
                if generation is not None and self.newest() > generation:
                    raise GenerationSuperseded(f"generation {self.newest()} follows {generation}")
                value = ready()
                if value is not None:
                    return value
                # Short waits, so that a signal's exception is not kept waiting by the lock.
                self.changed.wait(POLL_S)
            if deadline is not None and time.monotonic() > deadline:
                raise PeerLost(f"no word from the coordinator for {limit_s:.0f} s")

    def next_call(self, after: int) -> Call:
        """The announcement of a generation later than `after`, however long the coordinator looks for a worker."""
        return self.wait(
            lambda: self.call if self.call is not None and self.call.generation > after else None, generation=None
        )

    def expect_news(self, after: int, limit_s: float, ask: Callable[[], None]) -> int:
        """Wait for a generation later than `after` to be announced or alerted; raises JobStopped where none is.

        Who has failed is found within moments. Where there is no word of anybody for a while, `ask` is called once.
        """

        def newer() -> int | None:
            return self.newest() if self.newest() > after else None

        self.broken = newer() is None
        try:
            with contextlib.suppress(PeerLost):
                return self.wait(newer, generation=None, limit_s=min(NOBODY_FAILED_S, limit_s))
            ask()
            return self.wait(newer, generation=None, limit_s=limit_s)
        except PeerLost:
            raise JobStopped(
                f"a collective broke and no new generation was announced within {limit_s:.0f} s: the coordinator "
                "sees no failed rank"
            ) from None
        finally:
            self.broken = False
