"""Which nodes are cut off from the others on the data network. Pure: asks through decisions, is answered by inputs.

Packets that are dropped without a word break no connection and stop no heartbeat: every rank has entered the
collective, so nobody is to blame by the watermarks, and all wait. Once nothing has moved for as long as a hang may
last, every agent is asked which nodes it can open a connection to. What two rounds in a row find is taken for true: a
connection may fail to open because the network is crowded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from phoenix_core.protocol import Probe

PROBE_S: Final = 2.5
"""How long an agent tries to reach a node: the first packet, if it is lost, is sent again after a second."""
ANSWER_S: Final = PROBE_S + 1.0
ROUNDS: Final = 2

Address = tuple[str, int]
Parted = frozenset[frozenset[str]]
"""Pairs of nodes of which one does not reach the other."""


class Reachability:
    def __init__(self) -> None:
        self._number = 0
        self.parted = False
        """The last round that was answered has found nodes that do not reach each other."""
        self.rest()

    def rest(self) -> None:
        """Something moves: nothing that was asked matters any more."""
        self._asked_at: float | None = None
        self._answers: dict[str, tuple[str, ...]] = {}
        self._asked: frozenset[str] = frozenset()
        self._found: list[Parted] = []
        self.sound = False
        """The last round has shown that all nodes reach each other."""

    def told(self, node: str, number: int, unreached: Collection[str]) -> None:
        """The answer of one agent to the probe of this number."""
        if number == self._number and node in self._asked:
            self._answers[node] = tuple(unreached)

    def look(self, addresses: Mapping[str, Address], now: float, every_s: float) -> Probe | None:
        """Called while nothing moves; `addresses[node]` is where a worker of it listens. The next round, if it is time.

        A round that found nothing is followed by another one after `every_s`.
        """
        if self._asked_at is not None:
            answered = self._asked <= set(self._answers) or now - self._asked_at > ANSWER_S
            if self._asked and answered:
                self._found.append(_parted(self._answers, self._asked))
                self.parted = bool(self._found[-1])
                self._asked, self.sound = frozenset(), not self.parted
            due = bool(self._found and self._found[-1]) and len(self._found) < ROUNDS
            if self._asked or not (due or now - self._asked_at > every_s):
                return None
            self._found = self._found if due else []
        self._number += 1
        self._asked_at, self._asked, self._answers = now, frozenset(addresses), {}
        return Probe(number=self._number, addresses=dict(addresses))

    def cut_off(self, nodes: Sequence[str]) -> list[str]:
        """The nodes that the job must go on without; `nodes[r]` is that of rank r."""
        if len(self._found) < ROUNDS:
            return []
        parted = frozenset.intersection(*self._found)
        self._found = []
        return outside(parted, nodes)


def outside(parted: Parted, nodes: Sequence[str]) -> list[str]:
    """Few nodes without which all others reach each other; `nodes[r]` is that of rank r.

    Empty where more than half of the ranks would have to go: then it is the network that has failed, not some nodes of
    it, and to wait is all that helps. Taken are, again and again, the node with the most broken pairs; of several the
    one with the fewest ranks, and of those the one whose rank is highest.
    """
    ranks, blamed, left = Counter(nodes), list[str](), set(parted)
    while left:
        broken = Counter(node for pair in left for node in pair)
        worst = max(broken, key=lambda node: (broken[node], -ranks[node], _last_rank(node, nodes), node))
        blamed.append(worst)
        left = {pair for pair in left if worst not in pair}
    return blamed if 2 * sum(ranks[node] for node in blamed) <= len(nodes) else []


def _last_rank(node: str, nodes: Sequence[str]) -> int:
    return max((rank for rank, other in enumerate(nodes) if other == node), default=len(nodes))


def _parted(answers: Mapping[str, Collection[str]], asked: Collection[str]) -> Parted:
    return frozenset(
        frozenset((node, other)) for node, unreached in answers.items() for other in unreached if other in asked
    )
