"""Who keeps whose snapshot, and who restores whom: pure functions over values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phoenix_core.errors import SnapshotUnavailable


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one rank can give after it quiesced.

    A boundary b is the state after b optimizer steps. `live` is the boundary of the tensors that
    the rank trains on (None: half changed, or not restored yet); `own` are the boundaries of its own
    small state that it still has; `held[r]` those of rank r that it keeps as holder. `whole`: the job has state
    without a live twin, so what is kept and held is the whole state of a rank. `twins` are the ranks whose tensors are
    the same as this one's; of such, a holder may keep only what is not the same: those are in `bare` instead of `held`.
    """

    live: int | None
    own: tuple[int, ...] = ()
    whole: bool = False
    held: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    bare: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    twins: tuple[int, ...] = ()

    def to_json(self) -> dict[str, object]:
        held, bare = (
            {str(rank): list(boundaries) for rank, boundaries in kept.items()} for kept in (self.held, self.bare)
        )
        rare = {"bare": bare, "twins": list(self.twins)} if bare or self.twins else {}
        return {"live": self.live, "own": list(self.own), "whole": self.whole, "held": held, **rare}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Offer:
        live, own, held, bare = data["live"], data["own"], data["held"], data.get("bare", {})
        twins = data.get("twins", [])
        assert isinstance(own, list) and isinstance(twins, list) and (live is None or isinstance(live, int))
        assert isinstance(held, dict) and isinstance(bare, dict)
        kept, rest = ({int(rank): tuple(found) for rank, found in states.items()} for states in (held, bare))
        whole = bool(data["whole"])
        return Offer(live=live, own=tuple(own), whole=whole, held=kept, bare=rest, twins=tuple(twins))


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one rank takes its state from: `tensors` is a live twin, `small` the holder (None: has it).

    Where ranks keep whole states, `tensors` is a twin that gives those in its own slot, None where `small` has all.
    """

    tensors: int | None
    small: int | None


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """The boundary at which every rank resumes, and the source of each rank that is not there."""

    boundary: int
    sources: Mapping[int, Source]
    disk: bool = False
    """Every rank reads its state from the checkpoint of that boundary."""


def plan_restore(offers: Mapping[int, Offer], size: int) -> RestorePlan:
    """The greatest boundary that every rank can be given, each source used as evenly as possible.

    `offers` holds one entry per surviving rank, 0 <= rank < `size`; all ranks are replicas of each
    other (DDP), so any survivor that is live at the boundary can give the tensors.
    Raises SnapshotUnavailable with what is missing where no boundary is left.
    """
    if any(offer.whole for offer in offers.values()):
        return _plan_from_snapshots(offers, size)
    missing: list[str] = []
    givers = _givers(offers)
    for boundary in sorted({offer.live for offer in offers.values() if offer.live is not None}, reverse=True):
        twins = sorted(rank for rank, offer in offers.items() if offer.live == boundary)
        there = set(twins)
        small = {rank: _small_source(rank, boundary, offers, givers) for rank in range(size) if rank not in there}
        lost = [rank for rank, source in small.items() if source is None]
        if not lost:
            return RestorePlan(boundary=boundary, sources=_sources(small, twins))
        missing.append(f"step {boundary}: nobody holds the small state of rank {', '.join(map(str, lost))}")
    reason = "; ".join(missing) or "no surviving rank has a complete live state"
    raise SnapshotUnavailable(f"no step is left to resume from ({reason})")


def _plan_from_snapshots(offers: Mapping[int, Offer], size: int) -> RestorePlan:
    """Where ranks have state of their own: each resumes from its live state, its own snapshot, or its holder's; of that
    the tensors may be with a twin."""
    lives = {offer.live for offer in offers.values() if offer.live is not None}
    kept = {boundary for offer in offers.values() for boundary in offer.own}
    missing: list[str] = []
    givers, bare_givers, twins = _givers(offers), _bare_givers(offers), _twins(offers)
    for boundary in sorted(lives | kept, reverse=True):
        behind = [rank for rank in range(size) if rank not in offers or offers[rank].live != boundary]
        sources = {}
        for rank in behind:
            giver = _small_source(rank, boundary, offers, givers)
            twin = next((twin for twin in twins.get(rank, ()) if boundary in offers[twin].own), None)
            bare = bare_givers.get((rank, boundary))
            if giver is not None:
                sources[rank] = Source(tensors=None, small=None if giver == rank else giver)
            elif twin is not None and bare is not None:
                sources[rank] = Source(tensors=twin, small=bare)
        lost = [rank for rank in behind if rank not in sources]
        if not lost:
            return RestorePlan(boundary=boundary, sources=sources)
        missing.append(f"step {boundary}: nobody has the state of rank {', '.join(map(str, lost))}")
    raise SnapshotUnavailable(f"no step is left to resume from ({'; '.join(missing) or 'no rank has survived'})")


def _givers(offers: Mapping[int, Offer]) -> dict[tuple[int, int], int]:
    """By (rank, boundary) the first other rank that holds that state: found once, not by a search for each rank."""
    return _first((holder, offers[holder].held) for holder in sorted(offers))


def _bare_givers(offers: Mapping[int, Offer]) -> dict[tuple[int, int], int]:
    """The same of states whose tensors a twin has."""
    return _first((holder, offers[holder].bare) for holder in sorted(offers))


def _first(holders: Iterable[tuple[int, Mapping[int, tuple[int, ...]]]]) -> dict[tuple[int, int], int]:
    givers: dict[tuple[int, int], int] = {}
    for holder, kept in holders:
        for rank, boundaries in kept.items():
            for boundary in boundaries if holder != rank else ():
                givers.setdefault((rank, boundary), holder)
    return givers


def _twins(offers: Mapping[int, Offer]) -> dict[int, list[int]]:
    """By rank the survivors that have the same tensors."""
    twins: dict[int, list[int]] = {}
    for survivor in sorted(offers):
        for rank in offers[survivor].twins:
            twins.setdefault(rank, []).append(survivor)
    return twins


def _small_source(
    rank: int, boundary: int, offers: Mapping[int, Offer], givers: Mapping[tuple[int, int], int]
) -> int | None:
    """The rank that can give `rank` its small state; `rank` itself where it has kept its own."""
    if rank in offers and boundary in offers[rank].own:
        return rank
    return givers.get((rank, boundary))


def _sources(small: Mapping[int, int | None], twins: Sequence[int]) -> dict[int, Source]:
    sources = {}
    for index, (rank, holder) in enumerate(sorted(small.items())):
        sources[rank] = Source(tensors=twins[index % len(twins)], small=None if holder == rank else holder)
    return sources


def holder_of(rank: int, nodes: Sequence[str]) -> int | None:
    """The rank that keeps the snapshot of `rank`; `nodes[r]` is the node of rank r.

    The next rank on another node: the ring spreads the load evenly where nodes have the same
    number of ranks. Where all ranks share a node the next rank serves (it survives the loss of a process,
    not of the node). None in a world of one.
    """
    size = len(nodes)
    ring = [(rank + distance) % size for distance in range(1, size)]
    elsewhere = [other for other in ring if nodes[other] != nodes[rank]]
    per_node = sum(node == nodes[rank] for node in nodes)
    if elsewhere:
        # Ranks of one node would all choose the first rank of the next node: step by position instead.
        position = [other for other in range(size) if nodes[other] == nodes[rank]].index(rank)
        return elsewhere[min(position, per_node - 1) % len(elsewhere)]
    return ring[0] if ring else None
