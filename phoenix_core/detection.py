"""Who keeps the others waiting: pure functions over watermarks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phoenix_core.protocol import Progress


def keeps_others_waiting(
    seen: Mapping[str, tuple[Progress, float]], now: float, limit_s: float, finished: Collection[str] = ()
) -> list[str]:
    """The workers that have not entered the collective in which all who entered it are waiting.

    `seen[worker]` is its watermark and the time (s) at which that last changed. Nobody is blamed while anybody
    moves: a slow rank still enters collectives, a hung one does not. Those that have `finished` their last step wait
    too, in no collective: for whoever does not wait in one either.
    """
    if not seen or any(now - changed_at <= limit_s for _, changed_at in seen.values()):
        return []
    furthest = max(progress.entered for progress, _ in seen.values())
    behind = {worker: p.entered for worker, (p, _) in seen.items() if p.entered < furthest}
    waiting = [p for p, _ in seen.values() if p.entered == furthest]
    if behind and all(p.completed < furthest for p in waiting):
        least = min(behind.values())
        return [worker for worker, entered in behind.items() if entered == least]
    at_work = [worker for worker, (p, _) in seen.items() if p.completed == p.entered and worker not in finished]
    return at_work if finished else []
