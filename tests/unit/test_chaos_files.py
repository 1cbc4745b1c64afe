"""A data file that cannot be trained on is refused before anything starts, by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.errors import InvalidScenario
from chaos.files import check_files
from chaos.record import TrialDirectory
from chaos.runtimes import runtime_for
from chaos.scenario import Scenario
from chaos.trial import run_trial
from chaos.workloads import GPT, GPT_TINY

BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "there is no file"),
    "empty": (lambda path: path.touch(), "holds 0 bytes; at least 33 are needed"),
    "short": (lambda path: path.write_bytes(b"x" * 32), "holds 32 bytes; at least 33 are needed"),
    "directory": (lambda path: path.mkdir(), "is a directory"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "loop": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
}


def scenario(data: Path) -> Scenario:
    return Scenario.from_json({"name": "x", "workload": "gpt-tiny", "steps": 3, "options": {"data": str(data)}})


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    make, said = BAD[name]
    path = tmp_path / name
    make(path)
    with pytest.raises(InvalidScenario) as caught:
        runtime_for(scenario(path))
    assert str(path) in str(caught.value) and said in str(caught.value)
    assert caught.value.field == "options.data"


def test_a_trial_is_refused_before_anything_starts(tmp_path: Path) -> None:
    trial = TrialDirectory.create(tmp_path / "trial", scenario(tmp_path / "missing.txt"))
    with pytest.raises(InvalidScenario, match=r"missing\.txt"):
        run_trial(trial)
    assert [path.name for path in trial.path.iterdir()] == ["spec.json"]


def test_how_much_is_needed_depends_on_the_other_options(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"x" * 65)
    check_files(GPT, {"data": str(text)})
    check_files(GPT_TINY, {"data": str(text), "block": 64})
    with pytest.raises(InvalidScenario, match="at least 66"):
        check_files(GPT, {"data": str(text), "block": 65})
    check_files(GPT, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_others_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 100)
    path.chmod(0)
    with pytest.raises(InvalidScenario, match="Permission denied"):
        runtime_for(scenario(path))
