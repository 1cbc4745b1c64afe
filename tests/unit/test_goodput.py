"""The simulated month: exact where nothing is random, ordered where it must be, and honest on its page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import goodput
from benchmarks.costs import RECORDED, SLOW_SAVE, Costs, measured, peers
from benchmarks.goodput import MONTH_S, SCALES, SOFT, World, interval_of, month
from benchmarks.peers.cells import Cell
from benchmarks.peers.observed import Sample
from benchmarks.report import RESULTS
from chaos.mixes import LLAMA3

FREE = Costs(name="x", ended_s=0.0, silent_s=0.0, overhead=1.0, lost_steps=0.0, save_s=0.0, source="")
WORLD = World(gpus=16_384)


def good(costs: Costs, world: World = WORLD) -> float:
    return sum(month(costs, world, seed).goodput for seed in range(20)) / 20


def test_a_runtime_that_costs_nothing_loses_only_its_spares() -> None:
    assert good(FREE) == pytest.approx(2048 / (2048 + 20), rel=1e-9)


def test_without_failures_only_overhead_and_saves_are_paid() -> None:
    never = replace(WORLD, mtbf_gpu_hours=1e15)
    share = 2048 / 2068
    assert good(replace(FREE, overhead=1.25), never) == pytest.approx(share / 1.25)
    saving = replace(FREE, lost_steps=None, save_s=2.0)
    assert good(saving, never) == pytest.approx(share, rel=1e-4)  # saves become ever rarer


def test_each_failure_costs_its_recovery_and_its_lost_steps() -> None:
    costly = replace(FREE, ended_s=60.0, silent_s=60.0, lost_steps=2.0)
    seen = month(costly, WORLD, 1)
    expected = (1 - seen.failures * (60 + 2 * WORLD.step_s) / MONTH_S) * 2048 / 2068
    assert seen.waited_s == 0
    assert seen.goodput == pytest.approx(expected, rel=1e-3)


def test_failures_come_as_often_as_reported() -> None:
    assert {cause.name for cause in LLAMA3} > SOFT
    expected = MONTH_S / WORLD.mtbf_s
    seen = sum(month(FREE, WORLD, seed).failures for seed in range(50)) / 50
    assert seen == pytest.approx(expected, abs=4 * math.sqrt(expected / 50))


def test_more_gpus_slower_recovery_and_fewer_spares_are_worse() -> None:
    restart = RECORDED[0]
    by_scale = [good(restart, replace(WORLD, gpus=gpus)) for gpus in SCALES[1:]]
    assert by_scale == sorted(by_scale, reverse=True)
    assert good(replace(restart, ended_s=600.0)) < good(restart)
    starved = month(FREE, replace(WORLD, gpus=131_072, spares=0.0001, repair_s=1e6), 1)
    assert starved.waited_s > 0
    assert starved.goodput < 0.5


def test_the_interval_between_checkpoints_is_youngs() -> None:
    costs = replace(FREE, lost_steps=None, save_s=8.0)
    assert interval_of(costs, WORLD) == pytest.approx(math.sqrt(2 * 8.0 * WORLD.mtbf_s))
    assert interval_of(FREE, WORLD) == math.inf


def test_the_page_says_what_is_measured_and_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("recovery", "overhead"):
        (tmp_path / f"{name}.json").write_text((RESULTS / f"{name}.json").read_text())
    assert goodput.main(["--months", "2", "--out", str(tmp_path)]) == 0
    said = (tmp_path / "goodput.md").read_text()
    assert "not measured at these sizes" in said and "## Limits" in said
    assert all(costs.name in said for costs in peers(tmp_path))
    assert "by `make bench-peers`: 0 of the other runtimes" in said
    rows = json.loads((tmp_path / "goodput.json").read_text())["rows"]
    assert len(rows) == (2 + len(peers(tmp_path))) * len(SCALES)
    assert "PHOENIX" in capsys.readouterr().out


def test_missing_measurements_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert goodput.main(["--out", str(tmp_path)]) == 2
    assert "make bench" in capsys.readouterr().err


# --- what the others cost ---------------------------------------------------------------------------------------------


def hit(kind: str, recovery_s: float | None, **phases: float) -> Sample:
    return Sample(kind=kind, rank=1, goes_on_s=2.0, recovery_s=recovery_s, phases=phases, lost_steps=3)


def cells_for(key: str, *, hang: Sample | None = None, ratio: float = 1.1) -> dict[str, Cell]:
    value = {"ratio": {"value": ratio}, "hidden": 0.0, "step_s": 0.3}
    return {
        f"{key}/kill": Cell(samples=(hit("kill", 8.0, restore=0.5, recompute=2.0),)),
        f"{key}/hang": Cell(samples=(hang or hit("hang", 40.0),)),
        f"{key.partition('/')[0]}/tuned/overhead": Cell(value=value),
    }


def by_key(key: str) -> Costs:
    return next(costs for costs in RECORDED if costs.key == key)


def test_a_measured_restart_pays_its_saves_and_is_not_charged_twice_for_lost_steps() -> None:
    disk = measured(RECORDED[0], cells_for(RECORDED[0].key), "peers.json of today")
    assert (disk.ended_s, disk.silent_s) == (6.0, 40.0)  # nothing told when the state was there after the stop
    assert (disk.overhead, disk.lost_steps) == (1.0, None)
    assert disk.save_s == pytest.approx(0.1 * 10 * 0.3)
    assert disk.source.startswith("peers.json of today")


def test_who_keeps_its_state_elsewhere_pays_with_every_step_and_may_go_on_alone() -> None:
    torchft = by_key("torchft/documented")
    found = measured(torchft, cells_for(torchft.key, hang=hit("hang", None)), "peers.json")
    assert (found.silent_s, found.overhead, found.lost_steps, found.save_s) == (2.0, 1.1, 3.0, 0.0)


def test_what_was_not_measured_or_did_not_recover_stays_as_recorded() -> None:
    injob = by_key("nvrx-injob/tuned")
    cells = cells_for(injob.key)
    assert measured(injob, cells, "peers.json") != injob
    assert measured(injob, {**cells, f"{injob.key}/hang": Cell(samples=(hit("hang", None),))}, "peers.json") == injob
    for missing in cells:
        assert measured(injob, {name: cell for name, cell in cells.items() if name != missing}, "peers.json") == injob


def test_the_page_says_whose_costs_were_measured_beside_phoenix(tmp_path: Path) -> None:
    for name in ("recovery", "overhead"):
        (tmp_path / f"{name}.json").write_text((RESULTS / f"{name}.json").read_text())
    cells = {name: cell.to_json() for name, cell in cells_for(RECORDED[0].key).items()}
    (tmp_path / "peers.json").write_text(json.dumps({"at": "2026-12-01T00:00:00.000Z", "cells": cells}))
    disk, slow, *others = peers(tmp_path)
    assert disk.source.startswith("peers.json of 2026-12-01")
    assert (slow.name, slow.ended_s, slow.save_s) == (SLOW_SAVE, disk.ended_s, 5.0)
    assert others == list(RECORDED[1:])
    assert goodput.main(["--months", "2", "--out", str(tmp_path)]) == 0
    assert "by `make bench-peers`: 1 of the other runtimes" in (tmp_path / "goodput.md").read_text()
    (tmp_path / "peers.json").write_text("[1]")
    assert peers(tmp_path)[0] == RECORDED[0]
