"""FSDP2 with real processes: shards come back from their holders, and the run is bitwise the undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.job import Finished, Strike, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SHARDED = Path(__file__).parent / "scripts" / "sharded.py"
STEPS = 40


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    flags = ["--nnodes", "4", "--spares", "0"]
    finished = run(tmp_path_factory.mktemp("twin"), "--steps", str(STEPS), flags=flags, script=SHARDED)
    assert finished.code == 0, finished.stderr
    assert len(set(finished.digests.values())) == 4, "every rank has a shard of its own"
    return finished


@pytest.mark.parametrize(
    ("rank", "phase", "sig"),
    [
        (1, "forward", signal.SIGKILL),
        (2, "backward", signal.SIGKILL),
        (0, "gradient_sync", signal.SIGKILL),
        (3, "optimizer", signal.SIGKILL),
        (1, "snapshot_copy", signal.SIGKILL),
        (2, "replica_send", signal.SIGKILL),
        (3, "backward", signal.SIGSTOP),
    ],
)
def test_a_lost_shard_comes_back_from_its_holder(
    run_dir: Path, twin: Finished, rank: int, phase: str, sig: signal.Signals
) -> None:
    finished = run(run_dir, "--steps", str(STEPS), strikes=[Strike(rank, 10, phase, sig)], script=SHARDED)
    assert finished.code == 0, finished.stderr
    assert finished.losses == twin.losses and finished.digests == twin.digests
    (recovery,) = finished.recoveries
    assert [failure.rank for failure in recovery.failures] == [rank]
    assert recovery.complete and recovery.lost_steps <= 2
