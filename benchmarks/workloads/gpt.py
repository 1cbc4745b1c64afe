"""Train a byte-level GPT with data parallelism on CPU, under PHOENIX or (`--plain`, `--restart`) under torchrun.

    phoenix run --nproc-per-node 4 --spares 1 -m benchmarks.workloads.gpt --steps 100
    torchrun --standalone --nproc-per-node 4 -m benchmarks.workloads.gpt --plain --steps 100

Everything that does not need the rank (text, initial weights) is made before the session: a spare
has then done it long before its turn comes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads.corpus import Bytes, CorpusError, load_corpus
from benchmarks.workloads.model import GPT, VOCABULARY, Shape
from benchmarks.workloads.sampler import Sampler

GATE_POLL_S: Final = 0.02
ALIVE_POLLS: Final = 25


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # ranks share the cores of one machine
    try:
        shape = Shape(layers=options.layers, heads=options.heads, width=options.width, block=options.block)
        text = load_corpus(options.data, at_least=options.block + 1)
    except (CorpusError, ValueError) as error:
        print(f"gpt: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    torch.manual_seed(options.seed)  # the same initial weights on every rank
    model = GPT(shape)
    with open_session(options) as ft:
        train(ft, model, text, options)


def train(ft: Any, model: GPT, text: Bytes, options: argparse.Namespace) -> None:
    """The whole training; `ft` is a session of PHOENIX or one with the same interface."""
    torch.manual_seed(options.seed + 1000 * (ft.rank + 1))  # every rank has dropout masks of its own
    wrapped = sharded(model) if options.sharded else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=options.lr)
    sampler = Sampler(text, seed=options.seed, rank=ft.rank, batch=options.batch, block=options.block)
    ft.protect(model=wrapped, optimizer=optimizer, data=sampler)
    for step in ft.steps(options.steps):
        wait_for_gate(options.gate, step.index)
        with step:
            used = sampler.position
            inputs, targets = sampler.next()
            loss = F.cross_entropy(wrapped(inputs).view(-1, VOCABULARY), targets.reshape(-1))
            # Before the backward pass, with which it is kept for whoever takes over.
            step.record(loss=loss.item(), data=used)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ft.digest()


def sharded(model: GPT) -> torch.nn.Module:
    """FSDP2: each rank holds a part of every parameter that no other rank has."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def open_session(options: argparse.Namespace) -> Any:
    """The runtime under test; imported here, so that a baseline loads nothing of PHOENIX's runtime."""
    if options.restart:
        from benchmarks.workloads.restart import restart_session

        return restart_session()
    if options.plain:
        from benchmarks.workloads.plain import plain_session

        return plain_session()
    import phoenix_core

    return phoenix_core.session()


def wait_for_gate(gate: Path | None, step: int, alive: Callable[[], object] | None = None) -> None:
    """Benchmarks that interleave two jobs let one of them run at a time: up to the step that the file names.

    `alive` is called twice a second meanwhile, for a runtime that takes a rank which stands still for one that hangs.
    """
    polls = 0
    while gate is not None and step >= int(gate.read_text() or 0):
        time.sleep(GATE_POLL_S)
        polls += 1
        if alive is not None and polls % ALIVE_POLLS == 0:
            alive()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpt", description="Train a byte-level GPT on CPU with data parallelism.")
    parser.add_argument("--steps", type=positive, default=100, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and dropout")
    parser.add_argument("--data", type=Path, help="text file (default: the source of the standard library)")
    parser.add_argument("--batch", type=positive, default=2, help="samples per rank and step")
    parser.add_argument("--block", type=positive, default=64, help="bytes per sample")
    parser.add_argument("--layers", type=positive, default=6)
    parser.add_argument("--heads", type=positive, default=6)
    parser.add_argument("--width", type=positive, default=384)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--plain", action="store_true", help="plain gloo under torchrun, without PHOENIX")
    parser.add_argument("--restart", action="store_true", help="the same, with checkpoints on disk to begin anew from")
    parser.add_argument("--gate", type=Path, help="file with the number of steps allowed so far (for benchmarks)")
    return parser.parse_args()


def positive(text: str) -> int:
    """An argument of the command line that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, is {value}")
    return value


if __name__ == "__main__":
    main()
