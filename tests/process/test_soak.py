"""Many swaps in one job: every one exact, and nothing of the survivors grows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import linear_regression

import pytest

from phoenix_core.events import Event
from tests.process.job import Strike, Watched, run

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(4500)]

SWAPS = 100
DEADLINE_S = 2900.0
STEPS = 200_000
LOAD_S = 3600.0


def _belongings(pid: int) -> tuple[int, ...]:
    """Threads, descriptors, sockets, shared and resident memory (kB) of a process."""
    status = Path(f"/proc/{pid}/status").read_text().split()
    threads, shared, resident = (int(status[status.index(name) + 1]) for name in ("Threads:", "RssShmem:", "VmRSS:"))
    targets = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    return threads, len(targets), sum(target.startswith("socket:") for target in targets), shared, resident


def test_a_hundred_swaps_leave_a_survivor_as_it_was(run_dir: Path) -> None:
    """Rank 0 survives all; ranks 1 to 3 are killed in turn, in every phase. Each step is the undisturbed run's."""
    phases = ("forward", "backward", "gradient_sync", "optimizer")
    strikes = [Strike(rank=1 + i % 3, step=0, phase=phases[i % 4], parked=True) for i in range(SWAPS)]
    seen: list[tuple[int, ...]] = []
    stop = run_dir / "stop"

    def look(event: Event, watched: Watched) -> None:
        if event.kind == "spare_parked" and watched.ranks:
            seen.append(_belongings(watched.pids[watched.ranks[0]]))
        if event.kind == "generation_resumed" and event.generation == SWAPS + 1:
            stop.touch()

    arguments = ("--steps", str(STEPS), "--width", "64", "--stop-file", str(stop))
    finished = run(run_dir, *arguments, strikes=strikes, on_event=look, deadline_s=DEADLINE_S)
    assert finished.code == 0, finished.stderr
    assert len(finished.recoveries) == SWAPS and all(r.complete for r in finished.recoveries)
    assert len(set(finished.digests.values())) == 1
    names = ("threads", "descriptors", "sockets", "shared kB", "RSS kB")
    for name, values in zip(names, zip(*seen, strict=True), strict=True):
        slope = linear_regression(range(len(values)), values).slope
        print(f"{name}: first {values[0]}, fifth {values[4]}, last {values[-1]}, {slope:+.2f} a swap")
    for first, last, slack in zip(seen[4], seen[-1], (1, 2, 2, 256, 30_000), strict=True):
        assert last <= first + slack, (seen[4], seen[-1])
    steps = 1 + max(step for _, step in finished.losses)
    twin = run(run_dir / "twin", "--steps", str(steps), "--width", "64", flags=("--nnodes", "4"), deadline_s=DEADLINE_S)
    assert finished.losses == twin.losses, "the loss of a step differs from the undisturbed run's"
    assert finished.digests == twin.digests
    print(
        f"{len(finished.losses)} losses of {steps} steps and the final state equal the undisturbed run's, bit for bit"
    )


def test_an_hour_of_load_is_no_reason_to_take_anybody_for_failed(run_dir: Path) -> None:
    """With the default limits, each core wanted by four busy processes beside the ranks."""
    stop, began = run_dir / "stop", time.monotonic()

    def look(event: Event, watched: Watched) -> None:
        if time.monotonic() - began > LOAD_S:
            stop.touch()

    with ExitStack() as stack:
        for _ in range(4 * len(os.sched_getaffinity(0))):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        arguments = ("--steps", "10000000", "--width", "64", "--stop-file", str(stop))
        finished = run(run_dir, *arguments, on_event=look, deadline_s=LOAD_S + 600)
    assert finished.code == 0, finished.stderr
    alarms = [event for event in finished.events if event.kind in ("failure_detected", "nodes_cut_off")]
    assert not alarms and len(finished.losses) > 100
