"""The gate over the real runtime: a sleep planted in one phase of recovery is found there, and only there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """name: planted
workload: gpt-tiny
steps: 60
cluster: {nodes: 2, ranks_per_node: 1, spares: 1}
faults:
  - {id: kill, kind: process_kill, target: {rank: 1}, trigger: {phase: backward, step: 30}}
checks: [fired, recovered, agreement, no_leak]
timeout_s: 120
"""
PHASE, PLACE = "restore", r"( +)(self\._emit\(\"state_restored\")"
SLOWER = 0.20

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(1790)]


def phoenix(root: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHOENIX_HOME": str(root / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "service.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


def git(place: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", *who, *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def usual_seconds(root: Path, scenario: Path) -> float:
    """What the phase takes here, of three trials."""
    seen = []
    for number in range(3):
        done = phoenix(root, "trial", str(scenario), "--dir", str(root / f"usual-{number}"), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        seen.append(float(json.loads(done.stdout)["recoveries"][0]["phases"][PHASE]))
    return median(seen)


def compare(root: Path, clone: Path, scenario: Path, base: str, head: str) -> tuple[int, dict[str, Any]]:
    done = phoenix(root, "compare", base, head, "--ab", "--json", "--scenario", str(scenario), "--repo", str(clone))
    assert done.stdout, done.stderr
    print(done.stderr)
    return done.returncode, json.loads(done.stdout)


def test_a_slow_down_of_a_fifth_is_found_in_its_phase(tmp_path: Path) -> None:
    clone, scenario = tmp_path / "clone", tmp_path / "planted.yaml"
    scenario.write_text(SCENARIO)
    git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
    base = git(clone, "rev-parse", "HEAD")
    seconds = SLOWER * usual_seconds(tmp_path, scenario)
    file = clone / "phoenix_core" / "recovery.py"
    planted, places = re.subn(PLACE, rf"\1__import__('time').sleep({seconds})\n\1\2", file.read_text(), count=1)
    assert places == 1, "the place for the sleep has moved: say where the phase ends now"
    file.write_text(planted)
    git(clone, "commit", "--quiet", "--all", "--message", "slower")
    code, found = compare(tmp_path, clone, scenario, base, "HEAD")
    confirmed = {row["metric"] for row in found["rows"] if row["confirmed"]}
    assert PHASE in confirmed, [(row["metric"], row["ratio"], row["p"], row["reason"]) for row in found["rows"]]
    assert confirmed <= {PHASE, "downtime", "recovery"}, confirmed
    assert code == 1


def test_the_same_commit_is_not_slower_than_itself(tmp_path: Path) -> None:
    clone, scenario = tmp_path / "clone", tmp_path / "planted.yaml"
    scenario.write_text(SCENARIO)
    git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
    code, found = compare(tmp_path, clone, scenario, "HEAD", "HEAD")
    assert code == 0, [(row["metric"], row["ratio"], row["p"], row["reason"]) for row in found["rows"]]
    assert not any(row["confirmed"] for row in found["rows"])
