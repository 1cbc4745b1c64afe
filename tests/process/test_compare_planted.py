"""The gate over the real runtime: a sleep planted in one phase of recovery is found there, and only there.

About 20 minutes on two idle cores; on busy ones trials say less, so more of them are made.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from chaos.arms import Workshop
from chaos.compare.comparison import Comparison, compare, confirm
from chaos.compare.plan import BASE, HEAD, PILOT
from chaos.compare.rows import Side
from chaos.compare.samples import TrialSample
from chaos.conductor import SelfPipe
from chaos.git import Repository
from chaos.interleaved import Bench
from chaos.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 0.20
# Only a frozen process is found by this line; the other scenario goes through everything but it.
FILE, PHASE, PLACE = "phoenix_core/agent.py", "detect", r"( +)(self\._suspect\(process, \"stopped\")"
COMPARISONS, KILLS = 20, 5

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(1790)]


def planned(name: str, faults: Sequence[Mapping[str, Any]], *, steps: int = 60, spares: int = 1) -> dict[str, Any]:
    return {
        "name": name,
        "workload": "gpt-tiny",
        "steps": steps,
        "cluster": {"nodes": 2, "ranks_per_node": 1, "spares": spares},
        "faults": list(faults),
        "checks": ["fired", "recovered", "agreement", "no_leak"],
        "timeout_s": 120,
    }


def fault(kind: str, step: int, name: str = "fault") -> dict[str, Any]:
    return {"id": name, "kind": kind, "target": {"rank": 1}, "trigger": {"phase": "backward", "step": step}}


STOP, KILL = planned("stop", [fault("process_stop", 30)]), planned("kill", [fault("process_kill", 30)])
AGAIN = planned(
    "again", [fault("process_kill", 30 * n, f"kill-{n}") for n in range(1, KILLS + 1)], steps=200, spares=KILLS
)


def phoenix(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHOENIX_HOME": str(root / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "service.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def git(place: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", *who, *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    place = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", str(ROOT), str(place))
    return place


def usual_seconds(root: Path, scenario: Path) -> float:
    """What the phase takes here, of three trials."""
    seen = []
    for number in range(3):
        done = phoenix(root, "trial", str(scenario), "--dir", str(root / f"usual-{number}"), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        seen.append(float(json.loads(done.stdout)["recoveries"][0]["phases"][PHASE]))
    return median(seen)


def test_a_slow_down_of_a_fifth_is_found_in_its_scenario_and_phase_alone(tmp_path: Path, clone: Path) -> None:
    files = []
    for document in (STOP, KILL):
        files.append(tmp_path / f"{document['name']}.yaml")
        files[-1].write_text(json.dumps(document))
    base = git(clone, "rev-parse", "HEAD")
    seconds = SLOWER * usual_seconds(tmp_path, files[0])
    file = clone / FILE
    slower, places = re.subn(PLACE, rf"\1__import__('time').sleep({seconds})\n\1\2", file.read_text(), count=1)
    assert places == 1, "the place for the sleep has moved: say where the phase ends now"
    file.write_text(slower)
    git(clone, "commit", "--quiet", "--all", "--message", "slower")
    scenarios = [part for path in files for part in ("--scenario", str(path))]
    done = phoenix(tmp_path, "compare", base, "HEAD", "--ab", "--json", "--repo", str(clone), *scenarios)
    assert done.stdout, done.stderr
    print(done.stderr)
    found = json.loads(done.stdout)
    told = [(row["scenario"], row["metric"], row["ratio"], row["p"], row["reason"]) for row in found["rows"]]
    confirmed = {(row["scenario"], row["metric"]) for row in found["rows"] if row["confirmed"]}
    assert ("stop", PHASE) in confirmed, told
    assert confirmed <= {("stop", metric) for metric in (PHASE, "downtime", "recovery")}, told
    assert not [row for row in found["rows"] if row["verdict"] == "regression" and not row["confirmed"]], told
    assert done.returncode == 1


def test_twenty_comparisons_of_a_commit_with_itself_raise_at_most_one_screen(tmp_path: Path, clone: Path) -> None:
    """Of one pool of trials with several kills each: no recovery is part of two comparisons.

    What a comparison flags is confirmed, as ever, by trials that were not in it: all the others of the pool.
    """
    chunks = COMPARISONS // KILLS
    samples = pool(tmp_path, clone, Scenario.from_json(AGAIN), chunks * PILOT)
    alarms: list[Comparison] = []
    for name in (f"kill-{number}" for number in range(1, KILLS + 1)):
        for first in range(0, chunks * PILOT, PILOT):
            inside = slice(first, first + PILOT)
            screen = compare(*(side(name, samples[arm][inside], arm) for arm in (BASE, HEAD)))
            assert {row.fault for row in screen.rows if row.metric == "recovery"} == {name}, screen.to_json()
            if screen.screened:
                rest = (side(name, [s for s in samples[arm] if s not in samples[arm][inside]], arm) for arm in samples)
                alarms.append(confirm(screen, compare(*rest)))
    told = [(row.key, row.judgement.reason) for alarm in alarms for row in alarm.screened]
    print(f"{len(alarms)} of {COMPARISONS} comparisons were flagged: {told}")
    assert len(alarms) <= 1, told
    assert not [row for alarm in alarms for row in alarm.rows if row.confirmed], told


def pool(root: Path, clone: Path, scenario: Scenario, trials: int) -> dict[str, list[TrialSample]]:
    """Trials of both arms in turns, as `phoenix compare --ab HEAD HEAD` makes them."""
    with closing(SelfPipe()) as stop, Workshop(Repository.around(clone), root / "home", print) as workshop:
        base, head = workshop.arms("HEAD", "HEAD")
        bench = Bench(directory=root / "trials", session="pool", stop=stop, tell=print)
        return bench.turns(scenario, {BASE: base, HEAD: head}, trials)


def side(name: str, samples: Sequence[TrialSample], arm: str) -> Side:
    """Of these trials the times of one fault; one that could not be judged has none."""
    times = [{fault: time for fault, time in sample.times.items() if fault == name} for sample in samples]
    return Side(name=arm, samples=tuple(replace(one, times=time) for one, time in zip(samples, times, strict=True)))
