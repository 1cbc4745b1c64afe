"""Runs of a revision: the code is that of the repository at that moment, and the same for all trials of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.git import GitError
from service import lifeline
from service.checkouts import KEPT, Checkouts
from service.settings import Settings
from tests.service.helpers import TINY, Harness, Script, harness, problem
from tests.support import wait_until

pytestmark = pytest.mark.process

# A trial that says from where it runs.
SAYS = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "where").write_text(os.getcwd() + " " + os.environ["PYTHONPATH"])
"""


def git(place: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(command, cwd=place, env={**os.environ, **names}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(place: Path, text: str) -> str:
    (place / "file").write_text(text)
    git(place, "add", "file")
    git(place, "commit", "-q", "-m", text)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "-q")
    committed(tmp_path / "upstream", "first")
    return tmp_path / "upstream"


async def a_trial(api: Harness, run: str, number: int) -> tuple[str, str]:
    """The commit of the next trial of a run, and what it said; it ends then."""
    api.tick()
    trial = (await api.get(f"/runs/{run}/trials"))["items"][number]
    directory = Path(trial["directory"])
    wait_until(lambda: not lifeline.lives(directory), "the end of the trial's process")
    Script(directory).result()
    api.tick()
    return trial["commit"], (directory / "where").read_text()


async def test_a_nightly_of_head_is_of_what_was_pushed(settings: Settings, upstream: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(upstream), "clone")
    with_code = replace(settings, repository=tmp_path / "clone", trial_command=(sys.executable, "-c", SAYS))
    async with harness(with_code) as api:
        second = committed(upstream, "second")
        run = (await api.post("/runs", {"scenario": TINY, "revision": "HEAD", "trials": 2})).json()
        assert run["revision"] == "HEAD" and run["commit"] is None
        commit, where = await a_trial(api, run["id"], 0)
        checkout = settings.directory / "checkouts" / second
        assert (
            commit == second
            and where.startswith(f"{checkout} {checkout}")
            and (checkout / "file").read_text() == "second"
        )
        third = committed(upstream, "third")
        assert (await a_trial(api, run["id"], 1))[0] == second, "the same for all trials of a run"
        later = (await api.post("/runs", {"scenario": TINY, "revision": "main"})).json()
        assert (await a_trial(api, later["id"], 0))[0] == third
        assert (await api.get(f"/runs/{later['id']}"))["commit"] == third
        gone = (await api.post("/runs", {"scenario": TINY, "revision": "nix"})).json()
        api.tick()
        ended = await api.get(f"/runs/{gone['id']}")
        assert ended["state"] == "ABANDONED" and "no commit 'nix'" in ended["error"]


async def test_a_revision_needs_a_repository(api: Harness) -> None:
    assert "--repository" in problem(await api.post("/runs", {"scenario": TINY, "revision": "HEAD"}), 422)["detail"]
    for revision in ("--upload-pack=x", "-x", "a b", ""):
        problem(await api.post("/runs", {"scenario": TINY, "revision": revision}), 422)


def test_old_checkouts_go_and_those_in_use_stay(upstream: Path, tmp_path: Path) -> None:
    checkouts = Checkouts(upstream, tmp_path / "checkouts")
    commits = [committed(upstream, str(number)) for number in range(KEPT + 3)]
    for age, commit in enumerate(reversed(commits)):
        path = checkouts.at(commit, in_use=[commits[-1]])
        os.utime(path, (1e9 - age, 1e9 - age))
    left = {path.name for path in (tmp_path / "checkouts").iterdir()}
    assert commits[0] in left and commits[-1] in left and len(left) == KEPT + 2
    with pytest.raises(GitError):
        checkouts.commit("nix")
