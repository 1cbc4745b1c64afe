"""Checks and measures, on one GPU and in under eight minutes, what the runtime does with it.

    python -m benchmarks.gpu_check                       a GPT of a billion parameters in bf16
    python -m benchmarks.gpu_check --device cpu --tiny   the same logic without a GPU: its numbers mean nothing

Each part ends with PASS, FAIL, or ABSENT with the reason: the time was up, or the part itself broke.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.gpu_parts import ABSENT, FAIL, PARTS, Outcome, Place
from benchmarks.report import RESULTS, circumstances, heading, publish, table
from chaos.trial import EXIT_USAGE

EXIT_FAILED = 1
EXIT_UNKNOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: every part passed; 1: one failed; 2: there is no GPU, or usage; 3: one could not be judged."""
    options = parse_options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: torch sees no CUDA device; --device cpu --tiny tries the logic without one", file=sys.stderr)
        return EXIT_USAGE
    prepare()
    where = circumstances()
    place = Place.of(options.device, tiny=options.tiny)
    deadline = time.monotonic() + options.seconds
    outcomes = []
    for part in PARTS:
        outcomes.append(judged(part, place, deadline))
        print(f"{outcomes[-1].verdict:7}{outcomes[-1].part}  {outcomes[-1].reason}", flush=True)
    command = shlex.join(["python", "-m", "benchmarks.gpu_check", *(sys.argv[1:] if arguments is None else arguments)])
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none: the numbers mean nothing"
    document = {**where, "gpu": gpu, "parts": [outcome.__dict__ for outcome in outcomes]}
    text = f"{heading('One GPU', where, command)}GPU: {gpu}\n\n{page(outcomes)}"
    print("\n" + text)
    if options.out is not None:
        print("written:", *publish("gpu", document, text, options.out))
    verdicts = {outcome.verdict for outcome in outcomes}
    return EXIT_FAILED if FAIL in verdicts else EXIT_UNKNOWN if ABSENT in verdicts else 0


def prepare() -> None:
    """Two runs of the same step must be equal in every bit, else no comparison says anything."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def judged(part: Callable[[Place], Outcome], place: Place, deadline: float) -> Outcome:
    """One part's outcome, whatever becomes of it."""
    if time.monotonic() > deadline:
        return Outcome(part=part.__name__, verdict=ABSENT, reason="the time was up")
    try:
        return part(place)
    except Exception as error:
        return Outcome(part=part.__name__, verdict=ABSENT, reason=f"{type(error).__name__}: {error}")
    finally:
        if place.device.type == "cuda":
            torch.cuda.empty_cache()  # a part leaves nothing to the next


def page(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        rows.append([outcome.part, outcome.verdict, outcome.reason])
        rows += [[f"— {name}", shown(value), ""] for name, value in outcome.measured.items() if name != "step_s"]
    return table(["part", "", "why"], rows)


def shown(value: object) -> str:
    if isinstance(value, dict) and "low" in value:
        return f"{value['value']:.3f} ({value['low']:.3f}-{value['high']:.3f})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand parameters")
    parser.add_argument("--seconds", type=float, default=420.0, help="after which no further part begins")
    parser.add_argument("--out", type=Path, default=None, help=f"where gpu.json and gpu.md go, such as {RESULTS}")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu needs --tiny: a billion parameters take a CPU hours")
    return options


if __name__ == "__main__":
    sys.exit(main())
