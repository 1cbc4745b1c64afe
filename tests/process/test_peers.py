"""Other runtimes, broken for real: one kill of each, where their environments have been made (`make bench-peers`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.cells import name_of
from benchmarks.peers.entries import CONTENDERS
from benchmarks.peers.environments import existing

pytestmark = [pytest.mark.process, pytest.mark.soak]
BY_KEY = {contender.key: contender for contender in CONTENDERS}
SMALL = ["--layers", "2", "--heads", "2", "--width", "64"]


@pytest.mark.parametrize(
    ("key", "lost"),
    [("phoenix/default", 1), ("torchrun-sync-10/tuned", 10), ("torchft/tuned", 1), ("nvrx-inprocess/tuned", 10)],
)
def test_a_killed_rank_comes_back(tmp_path: Path, key: str, lost: int) -> None:
    contender = BY_KEY[key]
    if contender.environment is not None and existing(contender.environment) is None:
        pytest.skip(f"its environment has not been made: python -m benchmarks.peers --only {contender.peer}")
    arguments = ["--only", key, "--metrics", "kill", "--trials", "1", "--out", str(tmp_path)]
    assert command.main([*arguments, "--", *SMALL]) == 0
    cell = command.kept(tmp_path / "peers.json")[name_of(contender, "kill")]
    (sample,) = cell.samples
    assert sample.recovery_s is not None, sample.why
    assert sample.lost_steps is not None
    assert sample.lost_steps <= lost
    assert sample.phases["detect"] is not None
    assert "never" not in (tmp_path / "peers.md").read_text()
