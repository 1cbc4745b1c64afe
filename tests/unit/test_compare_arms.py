"""Codes made ready to run: a working tree that is edited meanwhile, and worktrees whose maker lives or does not."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.arms import WORKING_TREE, Arm, ArmError, Workshop, sweep
from chaos.compare.plan import Effort
from chaos.compare.samples import TrialSample
from chaos.errors import ChaosError
from chaos.git import GitError, Repository
from chaos.interleaved import Bench, is_slower
from chaos.procfs import start_ticks
from chaos.scenario import Scenario, parse_scenario
from tests.comparing import SCENARIO, Scratch, side


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "repo")


def test_a_working_tree_that_is_edited_while_it_is_measured_is_refused(scratch: Scratch, tmp_path: Path) -> None:
    scratch.commit("one")
    said: list[str] = []
    with Workshop(Repository(root=scratch.root), tmp_path / "home", said.append) as workshop:
        clean, tree = workshop.arms("HEAD", WORKING_TREE)
        assert (clean.code, clean.root == scratch.root) == (tree.code, False)
        tree.check_unchanged()
        (scratch.root / "plan.py").write_text("edited = True\n")
        clean.check_unchanged()
        with pytest.raises(ArmError, match="was changed while it was measured"):
            tree.check_unchanged()
        assert clean.root.exists()
    assert not clean.root.exists()
    assert scratch.root.exists()
    assert len(said) == 1
    assert "all commits have the same dependencies" in said[0]


def test_only_worktrees_of_processes_that_are_no_more_are_removed(scratch: Scratch, tmp_path: Path) -> None:
    commit = scratch.commit("one")
    repository = Repository(root=scratch.root)
    mine = tmp_path / "worktrees" / f"{os.getpid()}-{start_ticks(os.getpid())}"
    gone = tmp_path / "worktrees" / f"{os.getpid()}-1"
    for place in (mine, gone):
        place.mkdir(parents=True)
        repository.add_worktree(place / "tree", commit)
    (gone / "half").mkdir()  # killed in the middle of making it
    assert sweep(tmp_path) == [gone]
    assert mine.exists() and not gone.exists()
    assert scratch.git("worktree", "list").count("\n") == 1
    assert sweep(tmp_path / "nothing") == []


def test_a_directory_that_cannot_be_used_is_named(scratch: Scratch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    workshop = Workshop(Repository(root=scratch.root), tmp_path / "file", print)
    with pytest.raises(ArmError, match=r"cannot use .*/file/worktrees"):
        workshop.__enter__()


@pytest.mark.parametrize("revision", ["--help", "a..b", "", "x" * 201, "a b", "a\nb", "HEAD:file", "-"])
def test_what_git_could_take_for_something_else_is_no_revision(scratch: Scratch, revision: str) -> None:
    scratch.commit("one")
    with pytest.raises(GitError):
        Repository(root=scratch.root).commit(revision)


def test_a_place_without_git_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="is in no git checkout"):
        Repository.around(tmp_path)
    with pytest.raises(ChaosError, match="there is no directory"):
        Repository.around(tmp_path / "nothing")


def test_one_commit_is_nothing_to_bisect(scratch: Scratch) -> None:
    commit = scratch.commit("one", slower={})
    with pytest.raises(GitError, match="is both"):
        Repository(root=scratch.root).between(commit, commit)


class Measured(Bench):
    """Has run its trials already."""

    def __init__(self, **samples: tuple[TrialSample, ...]) -> None:
        self._samples = {name: list(found) for name, found in samples.items()}

    def turns(self, scenario: Scenario, arms: dict[str, Arm], trials: int) -> dict[str, list[TrialSample]]:
        return self._samples


@pytest.mark.parametrize(
    ("factor", "lost", "said"), [(1.5, 0, True), (1.0, 0, False), (1.5, 4, None), (1.0, 4, None), (1.0, 10, None)]
)
def test_a_commit_that_does_not_recover_is_neither_good_nor_bad(factor: float, lost: int, said: bool | None) -> None:
    """It would be told as not slower, and a later commit be blamed."""
    spread = [1 + number / 100 for number in range(10)]
    good, other = side("good", spread), side("other", [each * factor for each in spread])
    broken = [
        replace(each, succeeded=False, times={"kill": dict.fromkeys(each.times["kill"], math.inf)})
        for each in other.samples[:lost]
    ]
    bench = Measured(base=good.samples, head=(*broken, *other.samples[lost:]))
    base, head = (Arm(name=each.name, code=each.samples[0].code, root=Path(), python="") for each in (good, other))
    keys = [("kill-one", "kill", "recovery"), ("kill-one", "kill", "downtime")]
    scenario = parse_scenario(SCENARIO)
    assert is_slower(bench, base, head, scenario, keys, Effort(confirming=10)) is said
