"""`phoenix compare --ab` and `bisect` over a repository whose trials draw their times: what is planted is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comparing import Done, Scratch, command
from tests.support import wait_until

CLI = [sys.executable, "-m", "service.cli"]


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "repo")


def phoenix(scratch: Scratch, *arguments: str, seed: str = "0") -> Done:
    home = str(scratch.root.parent / "home")
    return command(*arguments, "--repo", str(scratch.root), PHOENIX_HOME=home, FAKE_SEED=seed)


def ab(scratch: Scratch, base: str, head: str, *options: str, seed: str = "0") -> tuple[int, dict[str, Any]]:
    done = phoenix(
        scratch, "compare", base, head, "--ab", "--scenario", str(scratch.scenario), "--json", *options, seed=seed
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def worktrees(scratch: Scratch) -> list[str]:
    return scratch.git("worktree", "list", "--porcelain").split("\n\n")


def test_a_phase_that_became_a_fifth_slower_is_found_and_no_other(scratch: Scratch) -> None:
    base = scratch.commit("fast")
    head = scratch.commit("slow", slower={"replace": 1.2})
    code, found = ab(scratch, base, head)
    confirmed = {row["metric"]: row for row in found["rows"] if row["confirmed"]}
    phases = set(confirmed) - {"recovery", "downtime"}  # the sums that contain the phase
    assert phases == {"replace"}, found
    assert code == found["exit_code"] == 1
    assert found["verdict"] == "regression"
    replace = confirmed["replace"]
    assert replace["low"] < 1.2 < replace["high"]
    again = f"compare --ab {base} {head} --scenario {scratch.scenario} --repo {scratch.root}"
    assert replace["reproduce"] == f"phoenix {again}"
    assert (replace["base"]["n"], replace["head"]["n"]) == (20, 20)
    assert not any(row["verdict"] == "regression" for row in found["rows"] if not row["confirmed"])
    assert len(worktrees(scratch)) == 1


@pytest.mark.soak
def test_the_same_code_raises_no_confirmed_alarm(scratch: Scratch) -> None:
    base = scratch.commit("one")
    head = scratch.commit("the same")
    code, found = ab(scratch, base, head)
    assert (code, found["exit_code"]) == (0, 0)
    assert not any(row["confirmed"] for row in found["rows"])


@pytest.mark.soak
def test_twenty_comparisons_of_the_same_code_raise_at_most_one_screen(scratch: Scratch) -> None:
    base = scratch.commit("one", noise=0.1)
    head = scratch.commit("the same", noise=0.1)
    found = [ab(scratch, base, head, seed=f"aa {seed}")[1] for seed in range(20)]
    assert sum(any(row["screened"] for row in each["rows"]) for each in found) <= 1
    assert not any(row["confirmed"] for each in found for row in each["rows"])


def test_failures_are_a_regression_of_their_own(scratch: Scratch) -> None:
    base = scratch.commit("sound")
    head = scratch.commit("broken", fails=1.0)
    code, found = ab(scratch, base, head, "--trials", "6", "--confirming", "6")
    assert code == 1
    assert found["verdict"] == "reliability regression"
    (success,) = [row for row in found["rows"] if row["metric"] == "success"]
    assert (success["base"]["succeeded"], success["head"]["succeeded"]) == (6, 0)


@pytest.mark.soak
def test_commits_with_other_dependencies_get_an_environment_of_their_own(scratch: Scratch) -> None:
    base = scratch.commit("one")
    (scratch.root / "constraints.txt").write_text("# nothing is pinned\n")
    head = scratch.commit("other constraints", refuses=True)
    done = phoenix(scratch, "compare", base, head, "--ab", "--scenario", str(scratch.scenario))
    assert "knows no such scenario" in done.stderr
    made = list((scratch.root.parent / "home" / "environments").iterdir())
    assert len(made) == 2, done.stderr
    assert "the running one" not in done.stderr
    again = phoenix(scratch, "compare", head, head, "--ab", "--scenario", str(scratch.scenario))
    assert "all commits have the same dependencies" in again.stderr
    assert f"{head} and {head} are the same code" in again.stderr


@pytest.mark.soak
def test_a_working_tree_is_measured_as_it_is(scratch: Scratch) -> None:
    base = scratch.commit("clean")
    with (scratch.root / "plan.py").open("a") as file:
        file.write("PHASES['replace'] *= 3\n")
    code, found = ab(scratch, base, ".", "--trials", "6", "--confirming", "6")
    assert code == 1
    assert found["head"]["dirty"]
    assert any("uncommitted changes" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("nonsense", "there is no commit 'nonsense'"),
        ("a..b", "cannot be the name of a revision|there is no commit 'a..b'"),
    ],
)
def test_what_cannot_be_compared_is_said(scratch: Scratch, base: str, said: str) -> None:
    scratch.commit("one")
    done = phoenix(scratch, "compare", base, "HEAD", "--ab", "--scenario", str(scratch.scenario))
    assert done.returncode == 2
    assert any(part in done.stderr for part in said.split("|")), done.stderr
    assert "Traceback" not in done.stderr


def test_a_scenario_is_a_file_or_a_shipped_one(scratch: Scratch) -> None:
    refuses = scratch.commit("one", refuses=True)
    by_name = phoenix(scratch, "compare", refuses, refuses, "--ab", "--scenario", "kill-one")
    assert "cannot run kill-one" in by_name.stderr
    neither = phoenix(scratch, "compare", refuses, refuses, "--ab", "--scenario", "nothing")
    assert neither.returncode == 2
    assert "neither a file nor a shipped scenario" in neither.stderr


def test_a_shallow_clone_is_named_as_the_reason(scratch: Scratch) -> None:
    first = scratch.commit("one")
    scratch.commit("two")
    shallow = scratch.root.parent / "shallow"
    scratch.git("clone", "--quiet", "--depth=1", f"file://{scratch.root}", str(shallow))
    options = ["--ab", "--scenario", str(scratch.scenario), "--repo", str(shallow)]
    done = command("compare", first, "HEAD", *options, PHOENIX_HOME=str(scratch.root.parent / "home"))
    assert done.returncode == 2
    assert "shallow clone" in done.stderr and "git fetch --unshallow" in done.stderr


def test_a_commit_that_refuses_the_scenario_is_named(scratch: Scratch) -> None:
    base = scratch.commit("old", refuses=True)
    scratch.git("commit", "--quiet", "--allow-empty", "--message", "x")
    done = phoenix(scratch, "compare", base, "HEAD", "--ab", "--scenario", str(scratch.scenario))
    assert done.returncode in (2, 3)
    assert "knows no such scenario" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worktree_outlives_a_comparison_that_is_ended(scratch: Scratch, number: signal.Signals) -> None:
    """After Ctrl-C they go at once; after a kill at the start of the next comparison."""
    base = scratch.commit("one", hangs=True)
    home = scratch.root.parent / "home"
    environment = {**os.environ, "PHOENIX_HOME": str(home)}
    options = ["--ab", "--scenario", str(scratch.scenario), "--repo", str(scratch.root)]
    process = subprocess.Popen(
        [*CLI, "compare", base, base, *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: any(home.glob("trials/*/*/hangs")), "a trial", deadline_s=30)
        process.send_signal(number)
        assert process.wait(30) == (130 if number is signal.SIGINT else -number)
    finally:
        process.kill()
        process.wait()
    if number is signal.SIGKILL:
        assert len(worktrees(scratch)) == 2
        sound = scratch.commit("sound")
        done = phoenix(scratch, "compare", sound, sound, *options[:3], "--trials", "6")
        assert "removed the worktrees of a comparison that was killed" in done.stderr
    assert len(worktrees(scratch)) == 1
    assert list((home / "worktrees").iterdir()) == []


@pytest.mark.soak
def test_bisecting_finds_the_commit_that_became_slower(scratch: Scratch) -> None:
    good = scratch.commit("good")
    scratch.commit("harmless")
    scratch.commit("broken on the way", refuses=True)
    culprit = scratch.commit("the culprit", slower={"restore": 1.5})
    scratch.commit("later", slower={"restore": 1.5})
    bad = scratch.commit("bad", slower={"restore": 1.5})
    done = phoenix(scratch, "bisect", good, bad, "--scenario", str(scratch.scenario), "--confirming", "10", "--json")
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)
    assert found["suspects"][-1] == culprit
    assert set(found["suspects"]) <= {culprit, scratch.git("rev-parse", f"{culprit}~1")}
    assert any(name.endswith("restore") for name in found["rows"])


def test_nothing_slower_leaves_nothing_to_bisect(scratch: Scratch) -> None:
    good, bad = scratch.commit("good", noise=0.001), scratch.commit("no worse", noise=0.001)
    done = phoenix(scratch, "bisect", good, bad, "--scenario", str(scratch.scenario), "--trials", "6")
    assert done.returncode == 3
    assert "nothing to bisect" in done.stderr
    backwards = phoenix(scratch, "bisect", bad, good, "--scenario", str(scratch.scenario))
    assert backwards.returncode == 2
    assert "is no ancestor of" in backwards.stderr
