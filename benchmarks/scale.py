"""One recovery at 8 to 16,384 ranks: the production coordinator, real sockets, and stub workers that answer at once.

    python -m benchmarks.scale                            all sizes
    python -m benchmarks.scale --ranks 8 64 --repeats 1   a quick look

The coordinator runs in a process of its own (benchmarks.metered), as in a job; its processor time and memory are what
is measured. All agents are one process (benchmarks.stubs), a connection a node. Nothing is trained: the time until
groups are formed and state is moved is not in these numbers.

Messages of one recovery of n ranks that loses one while a spare is warm, agents excluded:

    up    1 exited, n quiesced, n restored             2n + 1
    down  1 kill, n world, n plan, n resume            3n + 1

so 5 + 2/n a rank. A line may carry one message to several workers of a node, so there may be fewer lines.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.metered import PARTS, raise_descriptor_limit
from benchmarks.report import RESULTS, circumstances, heading, publish, table
from benchmarks.stats import Spread
from benchmarks.stubs import StubJob, StubsFailed, owner_of, victims
from phoenix_core.coordinator import TICK_S
from phoenix_core.detection import keeps_others_waiting
from phoenix_core.inbox import Call
from phoenix_core.pace import Pace
from phoenix_core.placement import Offer, plan_restore
from phoenix_core.protocol import Progress
from phoenix_core.settings import Detection
from phoenix_core.wire import decode

SIZES: Final = (8, 64, 512, 1024, 4096, 16384)
MESHES: Final = (2, 4, 8, 16, 32)
"""Sizes of real gloo groups; larger ones say more about 2 cores than about gloo."""
GOAL_RANKS, GOAL_S = 4096, 1.0
APART_S: Final = 0.0002
"""Between two heartbeats that are to be read one by one."""
EXIT_USAGE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One job. Seconds are processor time of the coordinator, except `wall_s`; of each repeat in turn."""

    ranks: int
    form_wall_s: float
    parts: Mapping[str, Sequence[float]]
    wall_s: Sequence[float]
    sent: Mapping[str, int]
    received: Mapping[str, int]
    lines_down: int
    bytes_up: int
    bytes_down: int
    base_kib: int
    peak_kib: int
    heartbeat_apart_s: float
    heartbeat_together_s: float
    tick_s: float
    world_line_bytes: int
    world_read_s: float
    world_kept_bytes: int

    def decision_s(self) -> Spread:
        return Spread(values=tuple(map(sum, zip(*self.parts.values(), strict=True))))

    def cores(self, heartbeat_s: float, period_s: float) -> float:
        """Processors that the coordinator needs in steady state."""
        return self.ranks * heartbeat_s / period_s + self.tick_s / TICK_S


def measure(ranks: int, *, repeats: int, per_node: int, heartbeats: int) -> Sample:
    """Start a job of stub workers, lose `repeats` of its ranks one after the other, then only let hearts beat."""
    walls: list[float] = []
    with StubJob(ranks, spares=repeats, per_node=per_node, heartbeats=heartbeats) as job:
        began = time.monotonic()
        job.form()
        formed_s = time.monotonic() - began
        walls += [job.lose(rank) for rank in victims(ranks, repeats)]
        sent, received = job.sent, job.received  # of the last recovery: each has its own
        job.beat(heartbeats, APART_S)
        job.beat(heartbeats, 0.0)
        report = job.finish()
    recoveries = report["recoveries"]
    return Sample(
        ranks=ranks,
        form_wall_s=formed_s,
        parts={part: [recovery[part] for recovery in recoveries] for part in PARTS},
        wall_s=walls,
        sent=dict(received.messages),
        received=dict(sent.messages),
        lines_down=received.lines.total(),
        bytes_up=sent.bytes.total(),
        bytes_down=received.bytes.total(),
        base_kib=report["base_kib"],
        peak_kib=max(recovery["peak_kib"] for recovery in recoveries),
        heartbeat_apart_s=report["heartbeat_s"][0],
        heartbeat_together_s=report["heartbeat_s"][1],
        tick_s=report["tick_s"],
        **world_at_a_rank(job.world_line, ranks),
    )


# ---------------------------------------------------------------- pure parts, at their worst


def split_offers(ranks: int, per_node: int) -> dict[int, Offer]:
    """Sharded ranks of which half have come one boundary further than the others when rank 0 dies."""
    offers = {}
    for rank in range(1, ranks):
        held = {owner_of(rank, ranks, per_node): (99, 100)}
        offers[rank] = Offer(live=100 + rank % 2, own=(99, 100), whole=True, held=held)
    return offers


def seconds_to_plan(ranks: int, per_node: int) -> float:
    offers = split_offers(ranks, per_node)
    began = time.process_time()
    plan = plan_restore(offers, ranks)
    assert plan.boundary == 100
    return time.process_time() - began


def seconds_to_blame(ranks: int) -> float:
    """All but the last rank wait for it in a collective, and nothing has moved for longer than anybody may take."""
    workers = [f"w{rank}" for rank in range(ranks)]
    seen = {w: (Progress(boundary=9, phase="backward", streams={"5f0c2a91": (10, 9)}), 0.0) for w in workers}
    seen[workers[-1]] = (Progress(boundary=9, phase="backward", streams={"5f0c2a91": (9, 9)}), 0.0)
    began = time.process_time()
    assert keeps_others_waiting(seen, workers, 1e6, Pace(Detection())) == workers[-1:]
    return time.process_time() - began


def world_at_a_rank(line: bytes, ranks: int) -> dict[str, Any]:
    """What the announcement of a whole world costs each rank: bytes on its line, seconds to read, bytes kept."""
    began = time.process_time()
    Call.from_message(decode(line))
    seconds = time.process_time() - began
    tracemalloc.start()
    call = Call.from_message(decode(line))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert call.world.size == ranks
    return {"world_line_bytes": len(line), "world_read_s": seconds, "world_kept_bytes": kept}


def pure_parts(ranks: int, per_node: int) -> dict[str, float]:
    return {"plan_s": seconds_to_plan(ranks, per_node), "blame_s": seconds_to_blame(ranks)}


def meshes() -> list[dict[str, Any]]:
    """Real gloo groups over the production store, in a process of its own since it loads torch."""
    command = [sys.executable, "-m", "benchmarks.rendezvous", *map(str, MESHES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise StubsFailed(f"the rendezvous of gloo groups could not be measured: {done.stderr.strip()[-300:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------- the page


def page(document: Mapping[str, Any], where: Mapping[str, object], command: str, period_s: float) -> str:
    """The Markdown page."""
    samples = [Sample(**sample) for sample in document["samples"]]
    skipped = ", ".join(f"{ranks:,}" for ranks in document["skipped"])
    text = heading("Recovery at scale", where, command)
    text += (
        "The production coordinator (membership, placement, wire, asyncio sockets), one connection a node, and stub "
        "workers that answer at once: no training, no groups, no state. Processor seconds of the coordinator's "
        "process, median (least-greatest).\n\n## The decision\n\n"
    )
    text += table(
        ["ranks", "exit to announced, ms", "to plan sent, ms", "to resume sent, ms", "sum, ms", "wall, ms"],
        [[f"{s.ranks:,}", *_parts(s), Spread(values=tuple(s.wall_s)).text(1000, 1)] for s in samples],
    )
    text += "\nWall time is that of a machine on which the stubs of all nodes share the processors.\n"
    goal = next((s for s in samples if s.ranks == GOAL_RANKS), None)
    if goal is not None:
        met = "met" if goal.decision_s().median < GOAL_S else "**missed**"
        text += f"\nGoal: under {GOAL_S:g} s at {GOAL_RANKS:,} ranks. It is {met}.\n"
    text += f"\nNot measured, since it would have taken too long: {skipped} ranks.\n" if skipped else ""
    text += "\n## Messages of one recovery\n\n" + table(
        ["ranks", "up", "down", "a rank", "lines down", "KB up", "KB down", "bytes down a rank"],
        [_message_row(s) for s in samples],
    )
    text += "\n## Memory\n\n" + table(
        ["ranks", "coordinator at start, MB", "peak, MB", "KB a rank", "world at a rank: line, KB", "kept, KB", "ms"],
        [_memory_row(s) for s in samples],
    )
    text += "\nThe peak is the process's; what waits in the kernel's socket buffers is not in it.\n\n" + PER_RANK
    text += f"\n## Steady state: a heartbeat of each rank every {period_s:g} s\n\n" + table(
        ["ranks", "us a heartbeat, read alone", "us, several read at once", "tick, ms", "cores", "cores, at once"],
        [_heartbeat_row(s, period_s) for s in samples],
    )
    text += (
        "\nCores include the ticks. Above one core the coordinator cannot keep up: it runs on one thread.\n"
        "\n## Pure parts at their worst\n\n"
        "The plan where half of all sharded ranks have come one boundary further; the blame where all but one rank "
        "wait for it. Processor seconds, once.\n\n"
    )
    text += table(
        ["ranks", "plan, ms", "blame, ms"],
        [[f"{int(n):,}", *(f"{1000 * pure[k]:.1f}" for k in ("plan_s", "blame_s"))] for n, pure in _pure(document)],
    )
    return text + "\n## Connecting a gloo group\n\n" + mesh_text(document["meshes"])


PER_RANK: Final = """\
A rank's own memory for resilience does not grow with the world, but for the world itself (above) and its sockets.
By analysis, not measured here:

| what | bytes a rank |
| --- | ---: |
| small states (DDP): 4 boundaries of its own, 4 of the rank it is holder of | 8 x s |
| whole states (sharded): 2 slots of its own, 2 of the rank it is holder of, none while one arrives | 4 x S |
| gloo sockets, for each group of m ranks | m - 1 descriptors |

s: pickled random state, data position and buffers, about 10 kB where the model has none of the last. S: parameters
and optimizer state of its shard; with AdamW in fp32 12 bytes a parameter, divided by the ranks it is sharded over.
"""


def _parts(sample: Sample) -> list[str]:
    spreads = [Spread(values=tuple(sample.parts[part])) for part in PARTS]
    return [spread.text(1000, 1) for spread in (*spreads, sample.decision_s())]


def _message_row(s: Sample) -> list[str]:
    up, down = sum(s.received.values()), sum(s.sent.values())
    volume = [f"{s.bytes_up / 1e3:,.0f}", f"{s.bytes_down / 1e3:,.0f}", f"{s.bytes_down / s.ranks:,.0f}"]
    return [f"{s.ranks:,}", f"{up:,}", f"{down:,}", f"{(up + down) / s.ranks:.2f}", f"{s.lines_down:,}", *volume]


def _memory_row(s: Sample) -> list[str]:
    grown = (s.peak_kib - s.base_kib) * 1.024
    own = [f"{s.base_kib * 1.024e-3:.1f}", f"{s.peak_kib * 1.024e-3:.1f}", f"{grown / s.ranks:.2f}"]
    world = [f"{s.world_line_bytes / 1e3:,.1f}", f"{s.world_kept_bytes / 1e3:,.1f}", f"{1000 * s.world_read_s:.2f}"]
    return [f"{s.ranks:,}", *own, *world]


def _heartbeat_row(s: Sample, period_s: float) -> list[str]:
    each = (s.heartbeat_apart_s, s.heartbeat_together_s)
    cores = [f"{s.cores(seconds, period_s):.3f}" for seconds in each]
    return [f"{s.ranks:,}", *(f"{1e6 * seconds:.0f}" for seconds in each), f"{1000 * s.tick_s:.2f}", *cores]


def _pure(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    return list(document["pure"].items())


def mesh_text(found: Sequence[Mapping[str, Any]]) -> str:
    """What was counted, and what follows for worlds that were not measured."""
    ops = sorted({op for mesh in found for op in mesh["requests"]})
    totals = [sum(mesh["requests"].values()) for mesh in found]
    rows = []
    for mesh, total in zip(found, totals, strict=True):
        n, counts = mesh["ranks"], [f"{mesh['requests'].get(op, 0):,}" for op in ops]
        times = [f"{1e6 * mesh['store_cpu_s'] / total:.0f}", f"{1000 * mesh['wall_s']:.0f}"]
        rows.append([str(n), *counts, f"{mesh['bytes'] / n**2:,.0f}", *times, f"{n * (n - 1) // 2:,}"])
    last, before = found[-1], found[-2]
    power = round(math.log(totals[-1] / totals[-2], last["ranks"] / before["ranks"]))
    factor, cost_s = totals[-1] / last["ranks"] ** power, last["store_cpu_s"] / totals[-1]
    text = "Measured: real gloo groups over the production store, all ranks threads of one process.\n\n"
    text += table(["ranks", *ops, "bytes a pair", "us a request", "wall, ms", "connections"], rows)
    text += (
        f"\nOne group of n ranks asks the store about {factor:.1f} n^{power} times and opens n(n-1)/2 connections, n-1 "
        "at each rank; all addresses are read by all, so the bytes grow with n^2 at the least. **Not measured, by that "
        f"formula alone:** requests, the processor time of the store at {1e6 * cost_s:.0f} us each:\n\n"
    )
    header = ["ranks", "requests", "processor seconds, at least", "connections", "at each rank"]
    return text + table(header, [_far_row(n, factor * n**power, cost_s) for n in SIZES])


def _far_row(n: int, requests: float, cost_s: float) -> list[str]:
    return [f"{n:,}", f"{requests:,.0f}", f"{requests * cost_s:,.1f}", f"{n * (n - 1) // 2:,}", f"{n - 1:,}"]


# ---------------------------------------------------------------- command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: measured; 1: a job of stubs failed; 2: usage."""
    options = parse_options(arguments)
    raise_descriptor_limit()
    where = circumstances()
    samples: list[Sample] = []
    pure: dict[str, dict[str, float]] = {}
    skipped: list[int] = []
    took = (1, 0.0)
    try:
        for ranks in sorted(options.ranks):
            if took[1] * (ranks / took[0]) ** 2 > options.budget:
                skipped.append(ranks)
                print(f"{ranks:,} ranks: skipped, may take over {options.budget:g} s (--budget)", flush=True)
                continue
            began = time.monotonic()
            shape = {"repeats": options.repeats, "per_node": options.per_node, "heartbeats": options.heartbeats}
            samples.append(measure(ranks, **shape))
            pure[str(ranks)] = pure_parts(ranks, options.per_node)
            # Starting takes a second whatever the size.
            took = (ranks, max(0.0, time.monotonic() - began - 1))
            print(f"{ranks:,} ranks: decided in {samples[-1].decision_s().text(1000, 1)} ms", flush=True)
        document = {**where, "samples": [asdict(s) for s in samples], "pure": pure, "skipped": skipped}
        document["meshes"] = meshes()
    except StubsFailed as error:
        print(f"benchmarks.scale: {error}", file=sys.stderr)
        return 1
    command = shlex.join(["python", "-m", "benchmarks.scale", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(document, where, command, Detection().heartbeat_s)
    print("\n" + text)
    print("written:", *publish("scale", document, text, options.out))
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES), help="sizes of the world")
    parser.add_argument("--repeats", type=int, default=3, help="ranks to lose, one after the other")
    parser.add_argument("--per-node", type=int, default=8, help="ranks on a node")
    parser.add_argument("--heartbeats", type=int, default=1000, help="heartbeats in each of two batches")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds that one size may take")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where scale.json and scale.md go")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 2 or not 1 <= options.repeats <= min(options.ranks):
        parser.error("a world has at least 2 ranks, and loses at least one of them, each at most once")
    if options.per_node < 1 or options.heartbeats < 1:
        parser.error("a node has at least 1 rank, and at least 1 heartbeat is measured")
    return options


if __name__ == "__main__":
    sys.exit(main())
