"""The workload under torchrun with plain gloo (the baseline of the benchmarks) and under PHOENIX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phoenix_core.events import Event, read_events

TINY = ["--layers", "2", "--heads", "2", "--width", "64", "--block", "32", "--batch", "2"]


PLAIN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(directory: Path, launcher: list[str], *options: str) -> list[Event]:
    """Five steps on two ranks; returns the events."""
    command = [sys.executable, "-m", *launcher, "-m", "benchmarks.workloads.gpt", "--steps", "5", *TINY, *options]
    environment = {**os.environ, "PHOENIX_RUN_DIR": str(directory), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_events(directory / "events")


def losses(events: list[Event]) -> dict[tuple[int | None, int | None], object]:
    return {(one.rank, one.step): one.data["loss"] for one in events if one.kind == "step_committed"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """One run of the baseline, which both tests compare with."""
    return train(tmp_path_factory.mktemp("plain"), PLAIN, "--plain")


@pytest.mark.process
@pytest.mark.soak
def test_two_runs_of_a_seed_are_equal_bit_for_bit(plain: list[Event], tmp_path: Path) -> None:
    """What every twin check rests on: without a failure, losses and digest are a function of the seed."""
    again = train(tmp_path, PLAIN, "--plain")
    assert set(losses(plain)) == {(rank, step) for rank in range(2) for step in range(5)}
    assert losses(again) == losses(plain)
    digests = {one.data["digest"] for one in plain + again if one.kind == "state_digest"}
    assert len(digests) == 1


@pytest.mark.process
def test_phoenix_computes_what_plain_gloo_computes(plain: list[Event], tmp_path: Path) -> None:
    """The runtime under test and its baseline are the same training, or a ratio of their step times means nothing."""
    launcher = ["phoenix_core", "run", "--nproc-per-node", "2", "--spares", "0", "--run-dir", str(tmp_path)]
    protected = train(tmp_path, launcher)
    assert losses(protected) == losses(plain)
