"""What the watermarks of a job that trains tell as time passes: who is slow, who hangs, who is cut off. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from phoenix_core.detection import Seen as Waiting
from phoenix_core.detection import all_wait, keeps_others_waiting, nobody_waits
from phoenix_core.pace import Boundaries, Pace
from phoenix_core.protocol import Probe, Record
from phoenix_core.reachability import Reachability
from phoenix_core.roster import Member
from phoenix_core.settings import Detection
from phoenix_core.straggler import Stragglers

CUT_OFF: Final = "the others do not reach it on the data network"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`hung` keep the others waiting, or all are stuck and `stuck` is one of them, and `why`.

    The job must go on without the nodes `cut`.
    """

    told: tuple[Record | Probe, ...] = ()
    hung: tuple[str, ...] = ()
    stuck: str = ""
    why: str = ""
    cut: tuple[str, ...] = ()


class Watch:
    def __init__(self, detection: Detection) -> None:
        self._detection = detection
        self.pace = Pace(detection)
        self._stragglers = Stragglers(self.pace, detection.heartbeat_s)
        self._reach = Reachability()
        self._boundaries = Boundaries()
        self._still_since: float | None = None  # of the standstill that was told of last

    def begin(self, boundaries: Iterable[int]) -> None:
        """All ranks train, from these boundaries on."""
        self._boundaries = Boundaries(boundaries)
        self._stragglers.restart()
        self._reach.rest()

    def resume(self, boundary: int, joined: Mapping[str, int], boundaries: Iterable[int]) -> None:
        """The same after a recovery that leads to `boundary`; `joined` are the new workers, with the rank of each."""
        self.pace.resume(boundary, joined)
        self.begin(boundaries)

    def moved(self, before: int, after: int, now: float) -> int:
        """A rank was at `before` and is at `after`; returns the lowest boundary of all."""
        lowest = self._boundaries.moved(before, after)
        self.pace.reached(lowest, now)
        return lowest

    def probed(self, node: str, number: int, unreached: Collection[str]) -> None:
        self._reach.told(node, number, unreached)

    @property
    def parted(self) -> bool:
        """The nodes did not all reach each other when they were asked last."""
        return self._reach.parted

    def training(
        self, members: Mapping[str, Member], ranks: Sequence[str], finished: Collection[str], now: float
    ) -> Seen:
        """A look at a job that trains; `finished` have executed their last step.

        Nobody is blamed for a hang before the network was asked: who waits for a node that is cut off, be it only for
        its word as a holder, keeps the others waiting too. Where all wait and nobody is to blame they are stuck.
        """
        seen = {worker: (members[worker].progress, members[worker].changed_at) for worker in ranks}
        hung = keeps_others_waiting(seen, ranks, now, self.pace, finished)
        moved_at = max(changed_at for _, changed_at in seen.values())
        network = self._network(members, ranks, now, moved_at, self.pace.hang_limit_s())
        if hung and self._reach.sound:
            waited_s = now - max(seen[worker][1] for worker in hung)
            option = "--hang-timeout" if any(seen[worker][0].phase for worker in hung) else "--pause-timeout"
            for worker in hung:
                self.pace.lost(worker)
            why = f"has kept the others waiting for {waited_s:.1f} s; {option} sets the limit"
            return Seen(hung=tuple(hung), why=why)
        if hung:
            return network
        if self._reach.sound and now - moved_at > self.pace.longest_s and all_wait(seen, finished):
            return Seen(stuck=ranks[0], why=f"all have waited for each other for {now - moved_at:.0f} s")
        still = self._standstill(seen, ranks, finished, now, moved_at)
        return Seen(told=(*self._stragglers.look(seen, ranks, now), *still, *network.told), cut=network.cut)

    def _standstill(
        self, seen: Waiting, ranks: Sequence[str], finished: Collection[str], now: float, moved_at: float
    ) -> list[Record]:
        """Said once where no rank moves and none waits for another: all may be computing, so nobody is blamed."""
        if now - moved_at <= self.pace.longest_s or moved_at == self._still_since:
            return []
        if self.parted or all_wait(seen, finished) or not nobody_waits(seen, ranks, finished):
            return []
        self._still_since = moved_at
        return [Record(kind="standstill_noticed", fields={"seconds": round(now - moved_at, 1)})]

    def recovery(self, members: Mapping[str, Member], ranks: Sequence[str], since: float, now: float) -> Seen:
        """A look at a recovery that has lasted since `since`: who cannot be reached."""
        return self._network(members, ranks, now, since, self._detection.hang_floor_s)

    def _network(
        self, members: Mapping[str, Member], ranks: Sequence[str], now: float, moved_at: float, limit_s: float
    ) -> Seen:
        """Whom the nodes reach is asked once nothing has moved, since `moved_at`, for `limit_s`, then that often."""
        if now - moved_at <= limit_s:
            self._reach.rest()
            return Seen()
        listening = {m.node: m.address for m in members.values() if m.alive and m.address is not None}
        probe = self._reach.look(listening, now, limit_s)
        if self.parted:
            self.pace.pause()
        cut = self._reach.cut_off([members[worker].node for worker in ranks])
        return Seen(told=() if probe is None else (probe,), cut=tuple(cut))


def late_in_recovery(
    ranks: Sequence[str], expected: Set[int], offered: Set[int] | None, restored: Set[int], joining: Set[int]
) -> list[str]:
    """Who keeps the recovery from going on: those without an offer; then those not restored.

    `offered` is None once there is a plan. Of those not restored first who joins: while it builds its model nobody can
    form a group, nor be restored.
    """
    unrestored = set(range(len(ranks))) - restored
    late = expected - offered if offered is not None else unrestored & joining or unrestored
    return [ranks[rank] for rank in sorted(late)]
