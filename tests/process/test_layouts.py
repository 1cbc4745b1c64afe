"""Every layout of state over ranks, a rank killed at every instant of a step: the run is bitwise the undisturbed one.

`make test` runs one cell, `make soak` the whole matrix.
"""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from phoenix_core.kept import SLACK
from tests.process.job import Finished, Strike, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LAYOUT_SCRIPT = Path(__file__).parent / "scripts" / "layouts.py"
KEEPING_SCRIPT = LAYOUT_SCRIPT.with_name("keeping.py")
STRUCK_AT = 8
STEPS = STRUCK_AT + 22

INSTANTS = ("forward", "backward", "gradient_sync", "optimizer", "snapshot_copy", "replica_send", "between")
OWN_STATE = ("keeps_shards", "fsdp", "bf16", "hsdp", "tensor", "zero", "pipeline", "gpipe", "interleaved")
"""Layouts in which ranks keep whole snapshots: the others never enter the last two phases."""
TWINS = {"hsdp": (2, 3, 0, 1), **dict.fromkeys(("pipeline", "gpipe", "interleaved"), (1, 0, 3, 2))}
"""Those of them in which each rank has a twin: only the rest of a snapshot travels, and the twin is the holder."""
QUICK = {("fsdp", "backward")}
REPLICAS = (
    "ddp", "buffers", "accumulation", "recompute", "recounting", "alternate", "habits", "keeps", "compiled", "outside",
)  # fmt: skip
LAYOUTS = (*REPLICAS, *OWN_STATE)


def script_of(layout: str) -> Path:
    return KEEPING_SCRIPT if layout.startswith("keeps") else LAYOUT_SCRIPT


def cells() -> list[ParameterSet]:
    found = []
    for layout in LAYOUTS:
        for number, instant in enumerate(INSTANTS):
            if instant in ("snapshot_copy", "replica_send") and layout not in OWN_STATE:
                continue
            quick = (layout, instant) in QUICK
            marks = [] if quick else [pytest.mark.soak]
            found.append(pytest.param(layout, instant, number % 4, marks=marks, id=f"{layout}-{instant}"))
    return found


@cache
def twin(layout: str, directory: Path) -> Finished:
    flags = ("--nnodes", "4", "--spares", "0")
    finished = run(directory / layout, "--layout", layout, "--steps", str(STEPS), flags=flags, script=script_of(layout))
    assert finished.code == 0, finished.stderr
    if layout in OWN_STATE:
        assert len(set(finished.digests.values())) > 1, "some rank has state of its own"
    return finished


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twins")


@pytest.mark.parametrize(("layout", "instant", "rank"), cells())
def test_the_run_goes_on_as_if_nothing_had_happened(
    run_dir: Path, twins: Path, layout: str, instant: str, rank: int
) -> None:
    undisturbed = twin(layout, twins)
    strike = Strike(rank, STRUCK_AT, instant, signal.SIGKILL, parked=True)
    finished = run(run_dir, "--layout", layout, "--steps", str(STEPS), strikes=[strike], script=script_of(layout))
    assert finished.code == 0, finished.stderr
    assert finished.losses == undisturbed.losses
    assert finished.digests == undisturbed.digests and finished.buffers == undisturbed.buffers
    (recovery,) = finished.recoveries
    assert [failure.rank for failure in recovery.failures] == [rank]
    assert recovery.complete and recovery.lost_steps <= 2
    if layout in OWN_STATE:
        assert_two_states_at_most(finished, layout)
    if layout in TWINS:
        sent = [int(str(event.data["sent_bytes"])) for event in finished.events if "sent_bytes" in event.data]
        assert 0 < max(sent) < 50_000, "no tensors travel"


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["alternate", "recounting"])
def test_the_second_recovery_knows_what_the_first_one_came_too_early_for(
    run_dir: Path, twins: Path, layout: str
) -> None:
    """The first comes before the second module has settled on its buckets, or before ranks that were to agree have."""
    undisturbed = twin(layout, twins)
    strikes = [Strike(1, 1 if layout == "alternate" else 0, "backward"), Strike(2, 6, "gradient_sync")]
    flags = ("--nnodes", "4", "--spares", "2")
    finished = run(
        run_dir, "--layout", layout, "--steps", str(STEPS), strikes=strikes, flags=flags, script=LAYOUT_SCRIPT
    )
    assert finished.code == 0, finished.stderr
    assert len(finished.recoveries) == 2 and all(recovery.complete for recovery in finished.recoveries)
    assert finished.losses == undisturbed.losses
    assert finished.digests == undisturbed.digests and finished.buffers == undisturbed.buffers


def assert_two_states_at_most(finished: Finished, layout: str) -> None:
    """Of its own state and of the one that it holds no rank ever had a third copy, not even during the recovery."""
    # A room is as large as the first state in it, whose head may have been longer than that of any step's.
    state = 256 + max(int(str(e.data["copied_bytes"])) for e in finished.events if "copied_bytes" in e.data)
    reports = [event for event in finished.events if event.kind == "memory_reported"]
    assert {event.rank for event in reports} == set(range(4))
    for event in reports:
        assert event.rank is not None and event.data["held_of"] == [TWINS.get(layout, (3, 0, 1, 2))[event.rank]]
        for most in ("own_most", "held_most"):
            assert 0 < int(str(event.data[most])) <= 2 * (1 + 1 / SLACK) * state


@pytest.mark.soak
def test_training_waits_for_a_limit_that_is_too_low_and_says_what_it_needs(run_dir: Path, twins: Path) -> None:
    flags = ("--nnodes", "4", "--spares", "0", "--replica-bandwidth", "500kB/s")
    finished = run(run_dir, "--layout", "fsdp", "--steps", "5", flags=flags, script=LAYOUT_SCRIPT)
    assert finished.code == 0, finished.stderr
    undisturbed = twin("fsdp", twins).losses
    assert finished.losses == {key: loss for key, loss in undisturbed.items() if key[1] < 5}
    log = (run_dir / "logs" / "w0.log").read_text()
    assert log.count("--replica-bandwidth 500 kB/s is too low for this job") == 1 and "B/s is needed" in log
    (last,) = [e for e in finished.events if e.kind == "step_committed" and (e.rank, e.step) == (0, 4)]
    stall, sent = (int(str(last.data[name])) for name in ("stall_ns", "sent_bytes"))
    # The bucket began full with a twentieth of a second's bytes, and the step's own computing takes time too.
    assert sent > 300_000 and stall > 0.5 * sent / 500_000 * 1e9


@pytest.mark.soak
@pytest.mark.parametrize(("layout", "rotten"), [("fsdp", 1), ("hsdp", 3)])
def test_a_state_that_rots_where_it_is_kept_is_never_restored(
    run_dir: Path, tmp_path: Path, twins: Path, layout: str, rotten: int
) -> None:
    """Rank 1 dies, so the holder's copy, or the tensors in the snapshot of its twin, rank 3, are all that memory has of
    that step: the one before serves where all still keep it, else the disk."""
    undisturbed = twin(layout, twins)
    flags = ("--nnodes", "4", "--spares", "1", "--checkpoint-dir", str(tmp_path / "disk"), "--checkpoint-every", "4")
    script = LAYOUT_SCRIPT.with_name("rot.py")
    finished = run(run_dir, "--layout", layout, "--steps", str(STEPS), flags=flags, script=script)
    assert finished.code == 0, finished.stderr
    (failed,) = [event for event in finished.events if event.kind == "restore_failed"]
    assert f"the state of rank {rotten} at step 12 was damaged where it was kept" in str(failed.data["reason"])
    restored = {
        (event.data["boundary"], event.data["source"] == "disk")
        for event in finished.events
        if event.kind == "state_restored" and event.rank == 1
    }
    assert restored <= {(11, False), (8, True), (12, True)}
    assert finished.losses == undisturbed.losses and finished.digests == undisturbed.digests


@pytest.mark.soak
def test_a_stage_that_sends_nothing_is_blamed(run_dir: Path, twins: Path) -> None:
    """The next stage waits for its message, its data-parallel twin for its gradients, and so does everybody."""
    undisturbed = twin("pipeline", twins)
    script = LAYOUT_SCRIPT.with_name("stuck.py")
    finished = run(run_dir, "--layout", "pipeline", "--steps", str(STEPS), script=script)
    assert finished.code == 0, finished.stderr
    (recovery,) = finished.recoveries
    assert [(failure.rank, failure.cause) for failure in recovery.failures] == [(0, "no_progress")]
    assert finished.losses == undisturbed.losses and finished.digests == undisturbed.digests
