"""For tests of comparisons: trials written by hand, and a scratch repository whose `phoenix trial` draws its times."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from chaos.compare.rows import Side
from chaos.compare.samples import PHASES, Code, TrialSample, digest_of
from service.cli import app

MACHINE = {"cpu": "Test CPU", "cores": 2, "memory_gib": 8, "system": "Linux"}
SHAPE = {"name": "kill-one", "steps": 10}
# Seconds that the phases of a recovery take.
USUAL = {"detect": 0.005, "quiesce": 0.02, "replace": 0.1, "reconstruct": 0.01, "restore": 0.03, "recompute": 0.25}


@dataclass(frozen=True, kw_only=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str, **environment: str) -> Done:
    """`phoenix` in this process: a new one would need a second to import what it needs."""
    ended = CliRunner().invoke(app, list(arguments), env=environment)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return Done(returncode=ended.exit_code, stdout=ended.stdout, stderr=ended.stderr)


def times(factor: float = 1.0, **phases: float) -> dict[str, float]:
    """All metrics of one recovery; named phases take that many seconds instead."""
    lengths = {name: phases.get(name, length * factor) for name, length in USUAL.items()}
    total = sum(lengths.values())
    return {"recovery": total, "downtime": total - lengths["recompute"], **lengths}


def sample(number: int = 0, /, *, factor: float = 1.0, **changes: Any) -> TrialSample:
    shape = changes.pop("shape", SHAPE)
    values: dict[str, Any] = {
        "trial": f"t{number}",
        "scenario": "kill-one",
        "shape": shape,
        "version": digest_of(shape),
        "code": Code(commit="a" * 40),
        "machine": MACHINE,
        "versions": {"torch": "2.13.0"},
        "session": "boot-2026-11-29",
        "seed": number,
        "at": f"2026-11-29T{number // 60 % 24:02}:{number % 60:02}:00.000Z",
        "judged": True,
        "succeeded": changes.get("judged", True),
        "times": {"kill": times(factor)},
        **changes,
    }
    return TrialSample(**values)


def side(name: str, factors: Sequence[float], **changes: Any) -> Side:
    commit = (name[0] if name[0] in "0123456789abcdef" else "e") * 40
    changes = {"code": Code(commit=commit), **changes}
    return Side(name=name, samples=tuple(sample(i, factor=factor, **changes) for i, factor in enumerate(factors)))


# --- a repository whose trials take milliseconds ----------------------------------------------------------------------

TRIAL = '''
"""Stands for `phoenix trial`: draws the phases of a recovery around their usual lengths, writes two documents."""
import json, os, pathlib, random, sys, time

import plan

scenario = json.loads(pathlib.Path(sys.argv[2]).read_text())
directory = pathlib.Path(sys.argv[sys.argv.index("--dir") + 1])
if plan.REFUSES:
    print("phoenix: this commit knows no such scenario", file=sys.stderr)
    sys.exit(2)
directory.mkdir(parents=True)
while plan.HANGS:
    (directory / "hangs").touch()
    time.sleep(0.01)
random.seed(f"{directory.name.partition('-')[0]} {os.environ.get('FAKE_SEED', '')}")
phases = {name: length * random.lognormvariate(0, plan.NOISE) for name, length in plan.PHASES.items()}
recovered = random.random() >= plan.FAILS
verdict = "PASS" if recovered else "FAIL"
total = sum(phases.values())
record = {
    "fault": {"id": scenario["faults"][0]["id"], "kind": "process_kill"}, "target": {"rank": 1, "worker": "w1"},
    "blamed": None, "recovery_s": total if recovered else None,
    "downtime_s": total - phases["recompute"] if recovered else None,
    "phases": phases if recovered else dict.fromkeys(phases), "lost_steps": 1, "generation": 1, "resume_step": 2,
    "replacement": None, "checks": {},
}
spec = {"trial": directory.name, "scenario": scenario, "seed": scenario["seed"], "commit": None, "dirty": None,
        "versions": {}, "created_at": "2026-11-29T12:00:00.000Z"}
result = {"verdict": verdict, "checks": {}, "recoveries": [record], "steps_committed": 40, "error": None,
          "finished_at": "2026-11-29T12:00:01.000Z"}
(directory / "spec.json").write_text(json.dumps(spec))
(directory / "result.json").write_text(json.dumps(result))
'''
SCENARIO = """name: kill-one
workload: gpt
steps: 40
faults:
  - {id: kill, kind: process_kill, target: {rank: 1}, trigger: {at_step: 20}}
"""


class Scratch:
    """A git repository with a history of such trials; `commit` adds one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "service").mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.scenario = root / "kill-one.yaml"
        self.scenario.write_text(SCENARIO)
        (root / "service" / "__init__.py").touch()  # or a package of that name that is installed would win
        (root / "service" / "cli.py").write_text(TRIAL)
        (root / "constraints.txt").write_text("")
        (root / ".gitignore").write_text("__pycache__/\n")

    def commit(
        self,
        message: str,
        *,
        slower: Mapping[str, float] | None = None,
        noise: float = 0.04,
        fails: float = 0.0,
        refuses: bool = False,
        hangs: bool = False,
    ) -> str:
        """`slower`: factors by phase. Returns the commit's full name."""
        phases = {name: USUAL[name] * (slower or {}).get(name, 1.0) for name in PHASES}
        settings = f"PHASES = {phases!r}\nNOISE = {noise}\nFAILS = {fails}\nREFUSES = {refuses}\nHANGS = {hangs}\n"
        (self.root / "plan.py").write_text(settings)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        who = {f"GIT_{role}_{part}": "test@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout.strip()
