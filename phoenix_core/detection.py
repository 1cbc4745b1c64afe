"""Who keeps the others waiting: pure functions over watermarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from phoenix_core.pace import Pace
from phoenix_core.protocol import Progress

Seen = Mapping[str, tuple[Progress, float]]
"""By worker: its watermark and the time (s) at which that last changed."""


def keeps_others_waiting(
    seen: Seen, ranks: Sequence[str], now: float, pace: Pace, finished: Collection[str] = ()
) -> list[str]:
    """The workers for whom somebody waits and who themselves wait for nobody; if there are none, who is out of step.

    `ranks[r]` is the worker of rank r. Nobody is blamed while anybody moves: a slow rank still enters collectives, a
    hung one does not. `pace` says how long is too long. `finished` have executed their last step.
    """
    limit_s = pace.hang_limit_s()
    if not seen or any(now - changed_at <= limit_s for _, changed_at in seen.values()):
        return []
    marks = {worker: progress for worker, (progress, _) in seen.items()}
    edges = waits_for(marks, ranks, finished)
    awaited = {other for others in edges.values() for other in others}
    suspects = {worker: marks[worker] for worker in seen if worker in awaited and not edges[worker]}
    blamed = _hung(suspects, seen) or out_of_step(marks)
    pausing = [worker for worker in blamed if worker not in finished]
    if any(now - seen[worker][1] <= pace.patience_s(worker, seen[worker][0]) for worker in pausing):
        return []
    return blamed


def out_of_step(seen: Mapping[str, Progress]) -> list[str]:
    """Of those that wait at the same place of a group, who is there in another step or collective than most.

    They have left out a collective, or made one too many, and each waits for what the others do not send. Where there
    is no majority it is those ahead: a step that they alone have executed was executed without the others; within one
    step nobody can tell, and the words decide. Nobody where a connection broke: that explains it.
    """
    if any(progress.broken for progress in seen.values()):
        return []
    places: dict[tuple[str, int], dict[str, tuple[int, str]]] = {}
    for worker, progress in seen.items():
        for stream, (entered, completed) in progress.streams.items():
            if entered > completed and ">" not in stream:
                here = (progress.boundary, progress.doing.get(stream, ""))
                places.setdefault((stream, completed), {})[worker] = here
    blamed = set()
    for there in places.values():
        counts = Counter(there.values())
        usual = max(sorted(counts), key=counts.__getitem__)
        blamed |= {worker for worker, here in there.items() if here != usual}
    return [worker for worker in seen if worker in blamed]


def all_wait(seen: Seen, finished: Collection[str]) -> bool:
    """Everybody who has steps to do has begun a collective, or a message, that is not over, or waits for a holder."""
    marks = [progress for worker, (progress, _) in seen.items() if worker not in finished]
    return all(mark.awaits is not None or any(e > c for e, c in mark.streams.values()) for mark in marks)


def nobody_waits(seen: Seen, ranks: Sequence[str], finished: Collection[str]) -> bool:
    """No rank needs anything of another: each computes, reads, or hangs by itself."""
    edges = waits_for({worker: progress for worker, (progress, _) in seen.items()}, ranks, finished)
    return not any(edges.values())


def _hung(awaited: Mapping[str, Progress], seen: Seen) -> list[str]:
    """Of those who wait for nobody the ones to blame.

    Who has met a broken connection waits to hear who has failed, and says so once nobody has. Others may sit in a
    collective that all have entered, because of the same connection: they are hung only if nothing else explains it.
    """
    at_rest = [
        worker
        for worker, progress in awaited.items()
        if not progress.broken and all(entered == completed for entered, completed in progress.streams.values())
    ]
    if at_rest or any(progress.broken for progress, _ in seen.values()):
        return at_rest
    return list(awaited)


def _at_work(progress: Progress) -> bool:
    """Not in a collective of a group. Messages do not count: who has sent one need not have waited for its arrival."""
    return all(entered == completed for stream, (entered, completed) in progress.streams.items() if ">" not in stream)


def waits_for(
    seen: Mapping[str, Progress], ranks: Sequence[str], finished: Collection[str] = ()
) -> dict[str, set[str]]:
    """For each worker those that have not entered the collective, sent or taken the message, or given the word of a
    holder, that it waits for.

    Those that have `finished` wait, in no collective, for those who have not and are in none either.
    """
    edges: dict[str, set[str]] = {worker: set() for worker in seen}
    members: dict[str, dict[str, int]] = {}
    for worker, progress in seen.items():
        for stream, (entered, _) in progress.streams.items():
            members.setdefault(stream, {})[worker] = entered
    # All who wait at the same place of a stream wait for the same workers: found once, not for each of them.
    late: dict[tuple[str, int], set[str]] = {}
    for worker, progress in seen.items():
        if progress.awaits is not None:
            edges[worker].add(ranks[progress.awaits])
        for stream, (entered, completed) in progress.streams.items():
            if entered > completed:
                if (stream, entered) not in late:
                    going = _members(stream, ranks, members[stream])
                    late[stream, entered] = {other for other, theirs in going.items() if theirs < entered}
                edges[worker] |= late[stream, entered]
    through = set(finished)
    at_work = {other for other in seen if other not in through and _at_work(seen[other])}
    edges.update(dict.fromkeys(finished, at_work))
    return edges


def _members(stream: str, ranks: Sequence[str], entered: Mapping[str, int]) -> Mapping[str, int]:
    """Who goes through the stream, and how far each has come in it."""
    source, arrow, destination = stream.partition(">")
    if not arrow:
        return entered
    return {worker: entered.get(worker, 0) for worker in (ranks[int(source)], ranks[int(destination)])}
