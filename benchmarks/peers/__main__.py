"""Recovery, overhead and cost of PHOENIX and of other runtimes, in one run on one machine.

    python -m benchmarks.peers                                   all of it: about 75 minutes
    python -m benchmarks.peers --only phoenix nvrx-inprocess --metrics kill --trials 2
    python -m benchmarks.peers --list                            who is compared, and in which settings
    python -m benchmarks.peers --pages                           measure nothing; write the pages of what is known anew

Each peer has a virtual environment of its own, which the first run makes. What the same code has measured with the same
versions is kept, so that a run which was broken off goes on where it was (`--fresh` begins anew).
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.cells import METRICS, Cell, cells_of, name_of, plan, time_text
from benchmarks.peers.contenders import Contender
from benchmarks.peers.entries import CONTENDERS
from benchmarks.peers.measure import Bench, wanted_samples
from benchmarks.peers.page import page, plot, readme, sections
from benchmarks.report import RESULTS, circumstances, fill, publish
from chaos.trial import EXIT_USAGE

EXIT_INTERRUPTED = 130
README = RESULTS.parents[1] / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: every cell has a value or a reason; 2: usage; 130: interrupted (what is known is written)."""
    options = parse_options(arguments)
    chosen = [contender for contender in CONTENDERS if not options.only or set(options.only) & _names(contender)]
    if options.list:
        print(*(f"{c.key:28} {c.title}, {c.setting}: {c.note}" for c in CONTENDERS), sep="\n")
        return 0
    if options.pages:
        return rewrite(options.out)
    cells = {} if options.fresh else kept(options.out / "peers.json")
    command = shlex.join(["python", "-m", "benchmarks.peers", *(sys.argv[1:] if arguments is None else arguments)])
    where = circumstances()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended in the same orderly way
    with tempfile.TemporaryDirectory(prefix="phoenix-peers-") as scratch:
        bench = Bench(options, options.raw or Path(scratch), _tell)
        stamps = {contender.key: bench.stamp(contender) for contender in chosen}
        left = [step for step in plan(chosen, cells, stamps, wanted_samples(options)) if step[1] in options.metrics]
        _tell(f"{len(left)} cells to measure, {len(cells)} known")
        try:
            for number, (contender, metric) in enumerate(left, 1):
                began = time.monotonic()
                cell = bench.measure(contender, metric)
                cells[name_of(contender, metric)] = cell
                took = time.monotonic() - began
                _tell(f"[{number}/{len(left)}] {name_of(contender, metric)}: {told(cell)} ({took:.0f} s)")
                write(cells, where, command, options.out)
        except KeyboardInterrupt:
            _tell("interrupted; what was measured is written, and the next run goes on from there")
            return EXIT_INTERRUPTED
    _tell(f"written: {write(cells, where, command, options.out)}")
    tell_readme(cells, options.out)
    return 0


def rewrite(directory: Path) -> int:
    """The pages of what was measured before, with the circumstances of that time."""
    try:
        document = json.loads((directory / "peers.json").read_text())
        cells = cells_of(document)
        where = {name: value for name, value in document.items() if name not in ("command", "cells", "sections")}
        _tell(f"written: {write(cells, where, document['command'], directory)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"benchmarks.peers: {directory / 'peers.json'} cannot be used: {error}", file=sys.stderr)
        return EXIT_USAGE
    tell_readme(cells, directory)
    return 0


def tell_readme(cells: Mapping[str, Cell], directory: Path, page: Path = README) -> None:
    """The README shows what is published, and nothing else."""
    if directory.resolve() == RESULTS:
        fill(page, "peers", readme(CONTENDERS, cells))


def told(cell: Cell) -> str:
    """A cell in a few words, for whoever watches."""
    if cell.samples:
        return f"{time_text(cell)}; twin {cell.twin[0] if cell.twin else '-'}"
    return cell.reason or json.dumps(cell.value)


def kept(path: Path) -> dict[str, Cell]:
    """The cells of an earlier run; none where there is no file, or one that this version does not understand."""
    try:
        return cells_of(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write(cells: Mapping[str, Cell], where: Mapping[str, Any], command: str, directory: Path) -> str:
    """JSON, page and plot; returns where they are."""
    told = [asdict(section) for section in sections(CONTENDERS, cells)]
    measured = {name: cell.to_json() for name, cell in sorted(cells.items())}
    document = {**where, "command": command, "sections": told, "cells": measured}
    data, text = publish("peers", document, page(CONTENDERS, cells, where, command), directory)
    picture = directory / "peers.svg"
    picture.write_text(plot(CONTENDERS, cells))
    return f"{data} {text} {picture}"


def _names(contender: Contender) -> set[str]:
    """A contender is chosen by its key, its peer, or the first word of that."""
    return {contender.key, contender.peer, contender.peer.partition("-")[0]}


def _tell(text: str) -> None:
    print(text, flush=True)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    known = sorted({name for contender in CONTENDERS for name in _names(contender)})
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=known, metavar="PEER", help=f"of: {', '.join(known)}")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--trials", type=int, default=5, help="kills, and hangs, of each contender")
    parser.add_argument("--node-trials", type=int, default=2, help="lost nodes, and partitions, of each contender")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of blocks for the overhead (at least 2)")
    parser.add_argument("--block-steps", type=int, default=11, help="steps of a block; one checkpoint lies in 10")
    parser.add_argument("--cell-seconds", type=float, default=35.0, help="no further fault is begun after this time")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for a block of steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="keep nothing of an earlier run")
    parser.add_argument("--pages", action="store_true", help="measure nothing; write the pages of what is known anew")
    parser.add_argument("--list", action="store_true", help="list the contenders and end")
    parser.add_argument("--raw", type=Path, help="keep the raw directories here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where peers.json, peers.md and peers.svg go")
    parser.add_argument("workload", nargs="*", help="options of the workload, after --")
    options = parser.parse_args(arguments)
    if min(options.trials, options.node_trials) < 1 or min(options.pairs, options.block_steps) < 2:
        parser.exit(EXIT_USAGE, f"{parser.prog}: needs at least 1 trial, 2 pairs and 2 steps a block\n")
    return options


if __name__ == "__main__":
    sys.exit(main())
