"""Failure-free overhead: step time under PHOENIX over step time of the same loop on plain gloo DDP.

    python -m benchmarks.overhead               two sessions of 12 pairs of blocks of 12 steps
    python -m benchmarks.overhead --name overhead-fsdp2 -- --sharded     FSDP2 in place of DDP
    python -m benchmarks.overhead --against-itself     plain against plain: what the method cannot tell apart

In each session both jobs are alive and their blocks alternate (A B, B A, A B, ...), so that whatever else the machine
does hits both alike; the ratio is formed within each pair. The waiting job is not free: what CPU it uses
meanwhile is measured and reported beside the ratio, since it slows the other one down.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.gated import GatedJob, JobEnded, Snapshots
from benchmarks.report import RESULTS, circumstances, heading, publish, table
from benchmarks.stats import Ratio, Spread, paired_ratio
from chaos.runtimes import Command
from chaos.trial import EXIT_USAGE

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
WARM_UP_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Seconds and CPU seconds per step of one block each, and the CPU that a job used while the other ran (cores)."""

    session: int
    treated_s: float
    baseline_s: float
    treated_cpu_s: float
    baseline_cpu_s: float
    treated_idle_cores: float
    baseline_idle_cores: float
    snapshots: Snapshots | None
    """Of the treated job, where its state is kept in whole snapshots."""


def measure(session: int, directory: Path, options: argparse.Namespace) -> list[Pair]:
    """One session: both jobs started, warmed up, then blocks in turn. Raises JobEnded."""
    with ExitStack() as stack:
        baseline, treated = (
            stack.enter_context(
                GatedJob(
                    directory / name,
                    name="plain" if plain else "phoenix",
                    ranks=options.ranks,
                    command=partial(command_of, options, session, directory / name, plain),
                )
            )
            for name, plain in (("baseline", True), ("treated", options.against_itself))
        )
        return alternate(baseline, treated, session=session, options=options)


def command_of(options: argparse.Namespace, session: int, directory: Path, plain: bool, gate: Path) -> Command:
    """The workload behind this gate, on plain gloo under torchrun or under PHOENIX."""
    steps = WARM_UP_STEPS + options.pairs * options.block_steps
    workload = ["-m", "benchmarks.workloads.gpt", "--gate", str(gate), "--steps", str(steps)]
    workload += ["--seed", str(options.seed + session), *options.workload]
    if plain:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
        workload.append("--plain")
    else:
        shape = {"--nnodes": options.ranks, "--nproc-per-node": 1, "--spares": options.spares, "--run-dir": directory}
        launcher = ["phoenix_core", "run", *(str(part) for flag in shape.items() for part in flag)]
    # torchrun would set one thread per rank by itself, with a warning; both jobs get the same from us.
    environment = {"OMP_NUM_THREADS": "1", "PHOENIX_RUN_DIR": str(directory)}
    return Command(argv=(sys.executable, "-m", *launcher, *workload), environment=environment)


def alternate(baseline: GatedJob, treated: GatedJob, *, session: int, options: argparse.Namespace) -> list[Pair]:
    """Warm both up, then let them run in turn. `options`: pairs, block_steps, timeout. Raises JobEnded."""
    pairs = []
    for job in (baseline, treated):
        job.run(WARM_UP_STEPS, options.timeout)
    for number in range(options.pairs):
        order = (baseline, treated) if number % 2 == 0 else (treated, baseline)
        seconds, cpu, idle = {}, {}, {}
        for job, other in zip(order, reversed(order), strict=True):
            own_before, other_before = job.cpu_s(), other.cpu_s()
            seconds[job] = job.run(options.block_steps, options.timeout)
            cpu[job] = (job.cpu_s() - own_before) / options.block_steps
            idle[other] = (other.cpu_s() - other_before) / (seconds[job] * options.block_steps)
        pair = Pair(
            session=session,
            treated_s=seconds[treated],
            baseline_s=seconds[baseline],
            treated_cpu_s=cpu[treated],
            baseline_cpu_s=cpu[baseline],
            treated_idle_cores=idle[treated],
            baseline_idle_cores=idle[baseline],
            snapshots=treated.snapshots(),
        )
        pairs.append(pair)
        print(f"session {session} pair {number}: {pair.treated_s / pair.baseline_s:.3f}", flush=True)
    return pairs


def ratio_of(pairs: Sequence[Pair]) -> Ratio:
    return paired_ratio([pair.treated_s for pair in pairs], [pair.baseline_s for pair in pairs])


def hidden(pairs: Sequence[Pair]) -> float:
    """By how much the waiting PHOENIX job can have slowed the baseline, beyond what the baseline did to it.

    A fraction of the step time, on the assumption that every core was busy: CPU used by one is lost to the other.
    """
    excess = _median(pair.treated_idle_cores - pair.baseline_idle_cores for pair in pairs)
    return max(0.0, excess) / len(os.sched_getaffinity(0))


def page(pairs: Sequence[Pair], where: Mapping[str, object], command: str) -> str:
    """The Markdown page."""
    total, slowed = ratio_of(pairs), hidden(pairs)
    rows = []
    for session in sorted({pair.session for pair in pairs}):
        own = [pair for pair in pairs if pair.session == session]
        rows.append([f"session {session}", *_cells(own)])
    rows.append(["**all**", *_cells(pairs)])
    text = heading("Failure-free overhead", where, command)
    text += table(["", "pairs", "ratio", "95 % interval", "PHOENIX ms/step", "plain ms/step"], rows)
    waiting, idle = (
        _median(pair.treated_idle_cores for pair in pairs),
        _median(pair.baseline_idle_cores for pair in pairs),
    )
    charged = [f"{number * (1 + slowed):.3f}" for number in (total.value, total.low, total.high)]
    work = paired_ratio([pair.treated_cpu_s for pair in pairs], [pair.baseline_cpu_s for pair in pairs])
    text += (
        "\nStep time under PHOENIX over the same on plain gloo: "
        f"**{total.value:.3f}** ({total.low:.3f}-{total.high:.3f}), from pairs of "
        "neighbouring blocks, with a percentile bootstrap interval over the pairs.\n\n"
        f"CPU time of all processes per step, which other load hardly touches: {work.value:.3f} "
        f"({work.low:.3f}-{work.high:.3f}).\n\n"
        "While it waits, the PHOENIX job (spare, coordinator, agents, heartbeats) uses "
        f"{waiting:.3f} cores, the plain job {idle:.3f}. Charged in full to PHOENIX, "
        f"the ratio is {charged[0]} ({charged[1]}-{charged[2]}).\n"
    )
    if taken := [pair.snapshots for pair in pairs if pair.snapshots is not None]:
        stalls = [one.stall_share for one in taken]
        copied, sent = _median(one.copied for one in taken), _median(one.sent for one in taken)
        text += (
            "\nStall, in which the optimizer waited for its rank's snapshot to be safe at its holder: "
            f"{100 * _median(stalls):.2f} % of the step (median over the blocks, {100 * max(stalls):.2f} % at most). "
            f"Each rank copied {copied / 1e6:.1f} MB and sent {sent / 1e6:.1f} MB in a step.\n"
        )
    else:
        text += "\nNo rank has state that others have not: what is sent in a step is a small state of some kilobytes.\n"
    return text


def _median(values: Iterable[float]) -> float:
    return Spread(values=tuple(values)).median


def _cells(pairs: Sequence[Pair]) -> list[str]:
    ratio = ratio_of(pairs)
    treated = Spread(values=tuple(pair.treated_s for pair in pairs))
    baseline = Spread(values=tuple(pair.baseline_s for pair in pairs))
    interval = f"{ratio.low:.3f}-{ratio.high:.3f}"
    return [str(ratio.pairs), f"{ratio.value:.3f}", interval, treated.text(1000), baseline.text(1000)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: measured; 1: a job ended early; 2: usage; 130: interrupted."""
    options = parse_options(arguments)
    where = circumstances()
    pairs: list[Pair] = []
    try:
        with tempfile.TemporaryDirectory(prefix="phoenix-bench-") as scratch:
            for session in range(options.sessions):
                pairs += measure(session, Path(scratch) / str(session), options)
    except JobEnded as error:
        print(f"benchmarks.overhead: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("benchmarks.overhead: interrupted; nothing was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    command = shlex.join(["python", "-m", "benchmarks.overhead", *(sys.argv[1:] if arguments is None else arguments)])
    text = page(pairs, where, command)
    print("\n" + text)
    if options.against_itself:
        print("not written: plain against plain says something of the method, nothing of PHOENIX")
        return 0
    ratio = ratio_of(pairs)
    document = {
        **where,
        "ratio": {**ratio.__dict__, "hidden": hidden(pairs)},
        "pairs": [asdict(pair) for pair in pairs],
        "workload": options.workload,
    }
    print("written:", *publish(options.name, document, text, options.out))
    return 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2, help="fresh launches of both jobs")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks in a session (at least 2)")
    parser.add_argument("--block-steps", type=int, default=12, help="steps of a block (at least 2)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each block")
    parser.add_argument("--against-itself", action="store_true", help="plain against plain")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where NAME.json and NAME.md go")
    parser.add_argument("--name", default="overhead", help="of the published files")
    parser.add_argument("workload", nargs="*", help="options of the workload, after --")
    options = parser.parse_args(arguments)
    if min(options.pairs, options.block_steps) < 2 or min(options.sessions, options.ranks) < 1:
        parser.exit(EXIT_USAGE, f"{parser.prog}: needs at least 2 pairs, 2 steps a block, 1 session and 1 rank\n")
    return options


if __name__ == "__main__":
    sys.exit(main())
