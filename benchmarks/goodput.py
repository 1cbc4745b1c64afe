"""What recovery time is worth: simulated months of training at 1,024 to 131,072 GPUs, for each runtime.

    python -m benchmarks.goodput                      into benchmarks/results/goodput.{md,json}
    python -m benchmarks.goodput --mtbf-hours 20000 --spares 0.002

Failures come at random (Poisson) with the rate and the mix that the Llama 3 report tells of; what each costs was
measured on one small machine and is not scaled up. The page says which numbers are measured, recorded and assumed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, Final

from benchmarks.costs import MEASURED, Costs, peers, phoenix
from benchmarks.report import RESULTS, circumstances, heading, publish, table
from chaos.mixes import LLAMA3

SCALES: Final = (1024, 16_384, 131_072)
MONTH_S: Final = 30 * 86_400.0
# The mix was counted in 54 days on 16,384 GPUs.
MTBF_GPU_HOURS: Final = 54 * 24 * 16_384 / sum(cause.seen for cause in LLAMA3)
# After these a new process on the same node will do; after the others the node is out until it is repaired.
SOFT: Final = frozenset({"software bug", "dependency", "NCCL watchdog timeout", "network switch or cable"})


@dataclass(frozen=True, kw_only=True)
class World:
    """The assumptions that all runtimes share. `spares`: share of the nodes of 8 GPUs that stand by, at least one."""

    gpus: int
    mtbf_gpu_hours: float = MTBF_GPU_HOURS
    spares: float = 0.01
    step_s: float = 6.0
    repair_s: float = 4 * 3600.0
    rewarm_s: float = 10.0

    @property
    def nodes(self) -> int:
        return self.gpus // 8

    @property
    def spare_nodes(self) -> int:
        return max(1, round(self.nodes * self.spares))

    @property
    def mtbf_s(self) -> float:
        return self.mtbf_gpu_hours * 3600 / self.gpus


@dataclass(frozen=True, kw_only=True)
class Month:
    """`goodput`: useful steps over those of a month without failures and protection, the spares' GPUs counted in."""

    goodput: float
    failures: int
    waited_s: float


def interval_of(costs: Costs, world: World) -> float:
    """Seconds between checkpoints: Young's optimum, not under a step; without end where none is needed."""
    if costs.lost_steps is not None:
        return math.inf
    return max(world.step_s, math.sqrt(2 * costs.save_s * world.mtbf_s))


def month(costs: Costs, world: World, seed: int) -> Month:
    """One month. A failure in the middle of a recovery begins it anew; without a spare training waits for a repair."""
    draw = random.Random(seed)
    weights = [cause.seen for cause in LLAMA3]
    interval = interval_of(costs, world)
    returning = [0.0] * world.spare_nodes  # when each spare is there again
    heapq.heapify(returning)
    now = useful = waited = 0.0
    failures = 0
    while True:
        until = min(MONTH_S, now + draw.expovariate(1 / world.mtbf_s))
        worked = until - now
        paid = worked / (1 + costs.save_s / interval) / costs.overhead
        useful += paid
        if until >= MONTH_S:
            break
        failures += 1
        lost = draw.uniform(0, min(interval, worked)) if costs.lost_steps is None else costs.lost_steps * world.step_s
        useful -= min(paid, lost)
        now = until
        while True:
            cause = draw.choices(LLAMA3, weights)[0]
            available = max(now, heapq.heappop(returning))
            heapq.heappush(returning, available + (world.rewarm_s if cause.name in SOFT else world.repair_s))
            waited += available - now
            ready = available + (costs.ended_s if cause.kind == "process_kill" else costs.silent_s)
            again = available + draw.expovariate(1 / world.mtbf_s)  # a job that waits for a spare cannot fail
            if again >= ready or ready >= MONTH_S:
                now = ready
                break
            failures, now = failures + 1, again
        if now >= MONTH_S:
            break
    share = world.nodes / (world.nodes + world.spare_nodes)
    return Month(goodput=max(0.0, useful) / MONTH_S * share, failures=failures, waited_s=waited)


def simulate(runtimes: Sequence[Costs], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for costs in runtimes:
        for gpus in SCALES:
            world = World(
                gpus=gpus, mtbf_gpu_hours=options.mtbf_hours, spares=options.spares, step_s=options.step,
                repair_s=options.repair_hours * 3600,
            )  # fmt: skip
            months = [month(costs, world, seed) for seed in range(options.months)]
            goods = [each.goodput for each in months]
            low, *_, high = quantiles(goods, n=20)
            rows.append(
                {
                    "runtime": costs.name,
                    "gpus": gpus,
                    "goodput": median(goods),
                    "low": low,
                    "high": high,
                    "failures": fmean(each.failures for each in months),
                    "waited_h": fmean(each.waited_s for each in months) / 3600,
                    "checkpoint_every_s": None if costs.lost_steps is not None else interval_of(costs, world),
                    "lost_gpu_hours": (1 - median(goods)) * MONTH_S / 3600 * gpus,
                }
            )
    return rows


ABOUT: Final = """\
**Simulated, not measured at these sizes.** Goodput is the share of a month's GPU time, spares included, that went into
steps that stayed; median and 5-95 % range over simulated months.
"""
METHOD: Final = """\
## Method

- Failures are Poisson with one in {mtbf_gpu_hours:,.0f} hours of a GPU, and of the kinds that the Llama 3 report counts
  (419 in 54 days on 16,384 GPUs, less 12 of silent corruption and of heat). What the mix of `chaos.mixes` takes for a
  freeze or a partition (network, GPU system processor, watchdog) is silent and costs what a SIGSTOP cost; the others
  cost what a SIGKILL cost.
- {spares:.1%} of the nodes (of 8 GPUs, at least one) are spares for every runtime, and count as GPUs that do no work.
  Broken hardware is back after {repair_h:.0f} h; a spare whose process died after {rewarm_s:.0f} s. Without a spare the
  job waits.
- A step takes {step_s:.0f} s. A runtime that restarts from checkpoints saves at Young's optimum of the interval for its
  measured cost of a save, and loses a uniform share of the interval.
- A failure during a recovery begins it anew.

## Costs

Measured beside PHOENIX by `make bench-peers`: {beside} of the other runtimes. Of the rest the source says where the
numbers are from.

"""
LIMITS: Final = """
## Limits

- Each cost was measured with 4 ranks of a 10 M parameter model on one machine and is used unchanged. At scale process
  start, file systems, NCCL and state of many gigabytes cost everybody more; the published restart of 8,192 GPUs shows
  by how much for one kind of runtime. The order of the rows is worth more than the digits.
- Overhead is paired step time, of every runtime. What its launchers and monitors use while training waits for its turn
  is not in it, since a GPU's host has cores to spare for that; the row "as processor time" charges all of PHOENIX's
  as if it had not.
- Up to some thousand GPUs failures are so rare that overhead and the cost of a save decide, not the recovery.
- Detection of silent failures is that of a stopped process. A rank that computes wrong results is found by nobody.
- Stragglers, planned maintenance, evaluation, correlated failures and data loading are left out.
- torchft goes on with fewer replicas and drops the samples of the lost one; that is not charged.
"""


def page(document: Mapping[str, Any], where: Mapping[str, object], command: str) -> str:
    rows, assumed = document["rows"], document["assumed"]
    names = list(dict.fromkeys(row["runtime"] for row in rows))
    cells = {(row["runtime"], row["gpus"]): row for row in rows}
    goodput = table(
        ["runtime", *(f"{gpus:,} GPUs" for gpus in SCALES), f"GPU hours lost at {SCALES[1]:,}"],
        [
            [name, *(_cell(cells[name, gpus]) for gpus in SCALES), f"{cells[name, SCALES[1]]['lost_gpu_hours']:,.0f}"]
            for name in names
        ],
    )
    failures = ", ".join(f"{cells[names[0], gpus]['failures']:,.0f} at {gpus:,}" for gpus in SCALES)
    costs = table(
        ["runtime", "process ended, s", "silent, s", "overhead", "lost", "save, s", "source"],
        [_costs_row(costs) for costs in document["costs"]],
    )
    title = heading("Goodput of a simulated month", where, command)
    method = METHOD.format(
        **assumed,
        repair_h=assumed["repair_s"] / 3600,
        beside=sum(costs["source"].startswith(MEASURED) for costs in document["costs"]),
    )
    return f"{title}{ABOUT}\n{goodput}\nFailures in a month: {failures} GPUs.\n\n{method}{costs}{LIMITS}"


def _cell(row: Mapping[str, Any]) -> str:
    return f"{row['goodput']:.2%} ({row['low']:.2%}-{row['high']:.2%})"


def _costs_row(costs: Mapping[str, Any]) -> list[str]:
    lost = "since the checkpoint" if costs["lost_steps"] is None else f"{costs['lost_steps']:.1f} steps"
    numbers = [f"{costs[name]:.2f}" for name in ("ended_s", "silent_s", "overhead")]
    return [costs["name"], *numbers, lost, f"{costs['save_s']:.2f}", costs["source"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for usage and where the measurements are missing."""
    options = parse_options(arguments)
    try:
        ours = phoenix(options.out)
    except (OSError, KeyError, ValueError) as error:
        print(f"benchmarks.goodput: needs recovery.json and overhead.json (`make bench`): {error}", file=sys.stderr)
        return 2
    runtimes = (*ours, *peers(options.out))
    world = World(
        gpus=8, mtbf_gpu_hours=options.mtbf_hours, spares=options.spares, step_s=options.step,
        repair_s=options.repair_hours * 3600,
    )  # fmt: skip
    assumed = {name: value for name, value in asdict(world).items() if name != "gpus"}
    where = circumstances()
    document = {
        **where,
        "assumed": {**assumed, "months": options.months},
        "mix": {cause.name: cause.seen for cause in LLAMA3},
        "costs": [asdict(costs) for costs in runtimes],
        "rows": simulate(runtimes, options),
    }
    command = shlex.join(["python", "-m", "benchmarks.goodput", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(document, where, command)
    print(text)
    print("written:", *publish("goodput", document, text, options.out))
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.goodput", description=__doc__.splitlines()[0])
    parser.add_argument("--mtbf-hours", type=float, default=MTBF_GPU_HOURS, help="hours of one GPU between failures")
    parser.add_argument("--spares", type=float, default=0.01, help="share of the nodes that stand by")
    parser.add_argument("--step", type=float, default=6.0, help="seconds of a step")
    parser.add_argument("--repair-hours", type=float, default=4.0, help="until broken hardware is a spare again")
    parser.add_argument("--months", type=int, default=100, help="simulated months for each runtime and size")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the measurements are and goodput.* goes")
    options = parser.parse_args(arguments)
    positive = (options.mtbf_hours, options.step, options.repair_hours)
    if min(positive) <= 0 or options.months < 2 or not 0 < options.spares < 1:
        parser.error("hours and seconds must be above 0, months at least 2, spares between 0 and 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
