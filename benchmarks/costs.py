"""What a failure, and the protection from it, costs each runtime: measured where it was, else recorded or assumed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.peers.cells import Cell, Cells, cells_of
from benchmarks.peers.contenders import Contender
from benchmarks.peers.entries import CONTENDERS
from benchmarks.peers.observed import Sample
from benchmarks.report import RESULTS


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one runtime pays. Seconds from the fault to the first new step, without the work that is done again.

    `lost_steps`: steps done again; None: everything since the last checkpoint. `save_s`: how long a checkpoint stops
    training. `source`: where the numbers are from. `key`: the contender of `benchmarks.peers` that measures them.
    """

    name: str
    ended_s: float
    silent_s: float
    overhead: float
    lost_steps: float | None
    save_s: float
    source: str
    key: str = ""


MEASURED: Final = "peers.json"
"""How the source of what was measured begins."""
_EARLIER: Final = "recorded earlier, 4 ranks on 2 cores"
_DISK: Final = Costs(
    name="torchrun restart, checkpoint on disk", ended_s=7.8 - 1.93, silent_s=48.9 - 1.93, overhead=1.0,
    lost_steps=None, save_s=0.07 * 10 * 0.29, key="torchrun-async-10/tuned",
    source=f"{_EARLIER}: 7.8 s (SIGKILL), 48.9 s (SIGSTOP, 10 s gloo timeout), less 1.93 s recomputing",
)  # fmt: skip
RECORDED: Final = (
    _DISK,
    Costs(name="torchft, timeouts of its example", ended_s=5.38, silent_s=5.25, overhead=1.06, lost_steps=1, save_s=0.0,
          key="torchft/documented",
          source=f"{_EARLIER}, nightly 2026.10.26: survivors' next step; the samples of the lost group are dropped"),
    Costs(name="torchft, tuned", ended_s=1.16, silent_s=5.25, overhead=1.06, lost_steps=1, save_s=0.0,
          key="torchft/tuned",
          source=f"{_EARLIER}; for a stop only the example's timeouts were measured"),
    Costs(name="NVRx in-process restart, tuned", ended_s=5.35, silent_s=8.2, overhead=1.0, lost_steps=None, save_s=0.26,
          key="nvrx-inprocess/tuned",
          source=f"{_EARLIER}, 0.7.0 with 2 s gloo timeout; its local checkpoint stops training for 0.26 s"),
    Costs(name="NVRx ft_launcher", ended_s=9.7, silent_s=36.0, overhead=1.0, lost_steps=None, save_s=0.26,
          key="nvrx-injob/tuned", source=f"{_EARLIER}, 0.7.0"),
    Costs(name="Megatron restart, as published for 8,192 GPUs", ended_s=388.0, silent_s=988.0, overhead=1.0,
          lost_steps=None, save_s=0.26,
          source="published: 6.47 min to stop, reschedule, load, connect, warm up; a hang adds a 10 min timeout"),
)  # fmt: skip
SLOW_SAVE: Final = "the same, if a save stops training for 5 s"


def phoenix(results: Path = RESULTS) -> tuple[Costs, Costs]:
    """From the published measurements of this repository: overhead as step time, and (dearer) as processor time.

    The second charges all that the job's other processes use; neither is taken for less than none. Raises OSError or
    KeyError where the measurements are not there.
    """
    recovery = json.loads((results / "recovery.json").read_text())
    overhead = json.loads((results / "overhead.json").read_text())
    downtime = {
        kind: median(s["downtime_s"] for s in recovery["samples"] if s["fault"]["kind"] == kind and s["downtime_s"])
        for kind in ("process_kill", "process_stop")
    }
    processor = fmean(pair["treated_cpu_s"] / pair["baseline_cpu_s"] for pair in overhead["pairs"])
    ours = Costs(
        name="PHOENIX",
        ended_s=downtime["process_kill"],
        silent_s=downtime["process_stop"],
        overhead=max(1.0, overhead["ratio"]["value"]),
        lost_steps=fmean(sample["lost_steps"] for sample in recovery["samples"]),
        save_s=0.0,
        source=f"recovery.json and overhead.json of {recovery['at'][:10]}: median downtime, paired step time",
    )
    dearer = replace(ours, name="PHOENIX, overhead as processor time", overhead=max(1.0, processor))
    return ours, dearer


def peers(results: Path = RESULTS) -> tuple[Costs, ...]:
    """Of the others: what `make bench-peers` has measured, and what was recorded for those that it tells nothing of."""
    try:
        document = json.loads((results / MEASURED).read_text())
        cells, source = cells_of(document), f"{MEASURED} of {document['at'][:10]}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        cells, source = {}, ""
    disk, *others = (measured(costs, cells, source) for costs in RECORDED)
    return disk, replace(disk, name=SLOW_SAVE, save_s=5.0, source="assumed: a save as larger states have it"), *others


def measured(recorded: Costs, cells: Cells, source: str) -> Costs:
    """The same runtime as these cells tell of it; what was recorded where one is missing, or nobody recovered in it."""
    contender = next((each for each in CONTENDERS if each.key == recorded.key), None)
    if contender is None:
        return recorded
    ended_s, silent_s = (_seconds(contender, kind, cells) for kind in ("kill", "hang"))
    protection = cells.get(f"{contender.peer}/tuned/overhead")  # on which no timeout has an influence
    if ended_s is None or silent_s is None or protection is None or "step_s" not in protection.value:
        return recorded
    value = protection.value
    ratio = max(1.0, value["ratio"]["value"])
    every = contender.settings.get("every")
    said = f"{source}: medians of a kill and a stop, less what is done again; paired step time"
    common = replace(recorded, ended_s=ended_s, silent_s=silent_s, source=said)
    if every is None:  # it keeps its state elsewhere, and pays with each step
        lost = fmean(sample.lost_steps or 0 for sample in cells[f"{contender.key}/kill"].samples)
        return replace(common, overhead=ratio, lost_steps=lost, save_s=0.0)
    return replace(common, overhead=1.0, lost_steps=None, save_s=(ratio - 1) * every * value["step_s"])


def _seconds(contender: Contender, kind: str, cells: Cells) -> float | None:
    """Median seconds until it goes on, without what is done again; None where it was not measured or is for ever."""
    cell = cells.get(f"{contender.key}/{kind}", Cell())
    values = [_first_new(sample, alone=kind in contender.alone) for sample in cell.samples]
    found = median(values) if values else math.inf
    return None if math.isinf(found) else found


def _first_new(sample: Sample, *, alone: bool) -> float:
    """`alone`: the world is never whole again, and it counts when the survivors go on."""
    if alone:
        return math.inf if sample.goes_on_s is None else sample.goes_on_s
    if sample.recovery_s is None:
        return math.inf
    # Where nothing tells when the state was there, recomputing has no beginning of its own.
    again = sample.phases.get("recompute") if sample.phases.get("restore") is not None else None
    return sample.recovery_s - (again or 0.0)
