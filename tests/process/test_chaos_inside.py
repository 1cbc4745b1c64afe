"""Whole trials with faults that a process makes in itself, on nodes, in checkpoints, and on plain torchrun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.faults import Rank
from chaos.record import Result, TrialDirectory
from chaos.scenario import load_scenario
from chaos.trial import run_trial
from chaos.verdict import Verdict
from phoenix_core.events import read_events

pytestmark = pytest.mark.process

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
HEALED = (
    "exception", "crashes", "hangs", "straggler", "collective-hang", "collective-skip",
    "preempt", "lose-a-node", "lose-the-coordinator", "out-of-memory", "throttle",
    "disk-full", "disk-slow", "snapshot-bitflip",
)  # fmt: skip


def trial(run_dir: Path, name: str, **changes: object) -> Result:
    scenario = replace(load_scenario(SCENARIOS / f"{name}.yaml"), **changes)  # type: ignore[arg-type]
    return run_trial(TrialDirectory.create(run_dir / "trial", scenario))


@pytest.mark.soak
def test_who_does_not_come_to_a_collective_is_found_and_replaced(run_dir: Path) -> None:
    whole = load_scenario(SCENARIOS / "collective-hang.yaml")
    cluster = replace(whole.cluster, nodes=2)
    faults = tuple(replace(fault, target=Rank(rank=1)) for fault in whole.faults)
    result = trial(run_dir, "collective-hang", cluster=cluster, faults=faults, checks=("fired", "recovered", "no_leak"))
    assert result.verdict is Verdict.PASS, result.to_json()
    (recovery,) = result.recoveries
    assert recovery.blamed is not None and (recovery.blamed["rank"], recovery.blamed["cause"]) == (1, "no_progress")


@pytest.mark.soak
@pytest.mark.parametrize("name", HEALED)
def test_what_the_runtime_heals_passes_every_check(run_dir: Path, name: str) -> None:
    result = trial(run_dir, name)
    assert result.verdict is Verdict.PASS, result.to_json()


@pytest.mark.soak
def test_a_checkpoint_that_was_cut_short_is_not_taken_for_the_latest(run_dir: Path) -> None:
    result = trial(run_dir, "kill-in-a-save")
    assert result.verdict is Verdict.PASS, result.to_json()
    assert result.recoveries[-1].resume_step == 40  # that of step 60 was being written, and was written again


@pytest.mark.soak
@pytest.mark.parametrize("damage", ["corrupt", "truncate", "move"])
def test_a_job_that_lost_all_goes_on_from_the_last_checkpoint_that_is_whole(run_dir: Path, damage: str) -> None:
    result = trial(run_dir, f"{damage}-checkpoint")
    assert result.verdict is Verdict.PASS, result.to_json()
    assert [recovery.resume_step for recovery in result.recoveries if recovery.resume_step is not None] == [40]
    assert [path.name for path in run_dir.rglob("moved-by-chaos*")] == []


@pytest.mark.soak
def test_a_rank_whose_collective_ends_with_an_error_is_not_replaced(run_dir: Path) -> None:
    """The others wait for it for longer than a hang may last; nobody has failed, so the same ranks meet anew."""
    result = trial(run_dir, "collective-fail")
    assert result.verdict is Verdict.PASS, result.to_json()
    (recovery,) = result.recoveries
    assert recovery.blamed is None
    events = read_events(run_dir / "trial" / "run" / "events")
    assert [event.rank for event in events if event.kind == "collective_broken"] == [2]
    assert not [event for event in events if event.kind == "failure_detected"]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["gradient-bitflip", "parameter-bitflip", "gradient-nan"])
def test_a_wrong_number_that_nobody_notices_does_not_pass_for_a_good_run(run_dir: Path, name: str) -> None:
    result = trial(run_dir, name)
    assert result.checks["fired"].verdict is Verdict.PASS
    assert result.verdict is Verdict.FAIL and result.checks["twin"].verdict is Verdict.FAIL
    assert name == "gradient-nan" or result.checks["agreement"].verdict is Verdict.FAIL


@pytest.mark.soak
def test_a_job_whose_store_is_lost_ends_at_once_and_leaves_nothing(run_dir: Path) -> None:
    result = trial(run_dir, "lose-the-store")
    assert [check.verdict for check in result.checks.values()] == [Verdict.PASS, Verdict.PASS]
    assert result.error is not None


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "runtime", "resumed"),
    [("torchrun-kill", "torchrun", 30), ("torchrun-kill", "torchrun-async", 30), ("torchrun-partial", "torchrun", 20)],
)
def test_plain_torchrun_begins_again_from_its_last_whole_checkpoint(
    run_dir: Path, name: str, runtime: str, resumed: int
) -> None:
    result = trial(run_dir, name, runtime=runtime, checks=("fired", "recovered", "agreement", "no_leak"))
    assert result.verdict is Verdict.PASS, result.to_json()
    recovery = result.recoveries[-1]
    assert recovery.resume_step == resumed and recovery.lost_steps is not None and recovery.lost_steps >= 6
