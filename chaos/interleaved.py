"""Two codes measured in turns on this machine: each trial by its own code, as `phoenix trial` of that commit."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chaos.arms import Arm
from chaos.collect import read_sample
from chaos.compare.comparison import Comparison, compare, confirm
from chaos.compare.plan import BASE, HEAD, PILOT, Effort, order, screen_size
from chaos.compare.ranks import holm
from chaos.compare.rows import Row, Side
from chaos.compare.rule import RULE, Outcome, Rule, confirmed
from chaos.compare.samples import REPLACEMENT, SUCCESS, TOTAL, Code, TrialSample, digest_of, shape_of
from chaos.conductor import SelfPipe
from chaos.errors import ChaosError
from chaos.provenance import machine
from chaos.record import TrialDirectory, utc_now
from chaos.scenario import Scenario

_PR_SET_PDEATHSIG: Final = 1
# A trial that is told to end may take as long as its own grace for what it started.
_GRACE_S: Final = 60.0
_USAGE: Final = 2


class Interrupted(ChaosError):
    """Somebody ended the comparison; no trial is left running."""


class CannotRun(ChaosError):
    """A commit refuses the scenario, with its own words."""


@dataclass(kw_only=True)
class Bench:
    """Runs trials of several arms below `directory`, one at a time, and keeps their samples.

    `session` marks them all: they were measured together. Trials carry the arm's code and this machine, whatever their
    commit knows to record.
    """

    directory: Path
    session: str
    stop: SelfPipe
    tell: Callable[[str], None]
    twin: bool = False
    seed: int = 0
    _count: int = field(default=0, init=False)

    def turns(self, scenario: Scenario, arms: dict[str, Arm], trials: int) -> dict[str, list[TrialSample]]:
        """`trials` of each of the two arms in blocks of ABBA; both arms use the same seeds.

        Raises Interrupted, CannotRun, and ArmError where a working tree was changed meanwhile.
        """
        samples: dict[str, list[TrialSample]] = {name: [] for name in arms}
        for turn in order(trials, self.seed + self._count):
            number = len(samples[turn]) + 1
            sample = self._trial(replace(scenario, seed=scenario.seed + number - 1), arms[turn])
            samples[turn].append(sample)
            self.tell(f"{scenario.name}: {turn} {number} of {trials}: {_said(sample)}")
        return samples

    def _trial(self, scenario: Scenario, arm: Arm) -> TrialSample:
        self._count += 1
        place = self.directory / f"{self._count:04d}-{arm.code.short}"
        self.directory.mkdir(parents=True, exist_ok=True)
        checks = tuple(check for check in scenario.checks if self.twin or check != "twin")
        asked = replace(scenario, checks=checks)
        file = self.directory / f"{place.name}.scenario.json"
        file.write_text(json.dumps(asked.to_json(), indent=1) + "\n")
        log = self.directory / f"{place.name}.log"
        code = self._run([arm.python, "-m", "service.cli", "trial", str(file), "--dir", str(place), "--json"], arm, log)
        if self.stop.reason is not None:
            raise Interrupted(f"{self.stop.reason}; the trials so far are in {self.directory}")
        arm.check_unchanged()
        found = read_sample(TrialDirectory(place))
        if not isinstance(found, TrialSample):
            if code == _USAGE:
                raise CannotRun(f"{arm.name} ({arm.code.short}) cannot run {scenario.name}: {_last_line(log)}")
            self.tell(f"{arm.name} ({arm.code.short}) left no result: {_last_line(log)} (all of it: {log})")
            return self._as_measured(_unjudged(place.name, asked), asked, arm)
        return self._as_measured(found, asked, arm)

    def _as_measured(self, sample: TrialSample, scenario: Scenario, arm: Arm) -> TrialSample:
        shape, here = shape_of(scenario), machine()
        return replace(sample, code=arm.code, machine=here, session=self.session, shape=shape, version=digest_of(shape))

    def _run(self, command: Sequence[str], arm: Arm, log: Path) -> int:
        """The exit code. A stop ends the trial in its orderly way; so does the death of this process."""
        environment = {**os.environ, "PYTHONPATH": str(arm.root)}
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                cwd=arm.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            ended = os.pidfd_open(child.pid)
            try:
                select.select([ended, self.stop.fileno()], [], [])
                if child.poll() is None:
                    child.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_GRACE_S)
                return child.wait()
            finally:
                os.close(ended)
                if child.poll() is None:
                    child.kill()
                    child.wait()


def measure(
    bench: Bench, base: Arm, head: Arm, scenarios: Sequence[Scenario], effort: Effort, rule: Rule = RULE
) -> Comparison:
    """Screen, then confirm what the screen flagged with trials made for it alone. Raises as `Bench.turns`."""
    arms = {BASE: base, HEAD: head}
    sides: dict[str, list[TrialSample]] = {BASE: [], HEAD: []}
    for scenario in scenarios:
        _add(sides, _screen(bench, scenario, arms, effort, rule))
    screen = compare(_side(base, sides[BASE]), _side(head, sides[HEAD]), rule=rule)
    flagged = {row.scenario for row in screen.screened}
    if not flagged:
        return screen
    fresh: dict[str, list[TrialSample]] = {BASE: [], HEAD: []}
    for scenario in scenarios:
        if scenario.name in flagged:
            bench.tell(f"{scenario.name}: flagged; confirming with {effort.confirming} fresh trials of each")
            _add(fresh, bench.turns(scenario, arms, effort.confirming))
    again = compare(_side(base, fresh[BASE]), _side(head, fresh[HEAD]), rule=rule)
    return confirm(screen, again, rule)


def is_slower(
    bench: Bench, good: Arm, other: Arm, scenario: Scenario, keys: Sequence[tuple[str, str, str]], effort: Effort
) -> bool | None:
    """Whether fresh trials confirm for `other` what was found before in these rows; None where they cannot tell."""
    try:
        samples = bench.turns(scenario, {BASE: good, HEAD: other}, effort.confirming)
    except CannotRun as error:
        bench.tell(str(error))
        return None
    found = compare(_side(good, samples[BASE]), _side(other, samples[HEAD]))
    rows = [row for row in found.rows if row.key in keys]
    if not rows or any(_says_nothing(row) for row in rows):
        return None
    adjusted = holm([1.0 if row.judgement.p is None else row.judgement.p for row in rows])
    return any(confirmed(row.judgement, p) for row, p in zip(rows, adjusted, strict=True))


def new_directory(trials: Path) -> Path:
    """Where a comparison keeps its trials: among all others, so that they become part of the history."""
    stamp = utc_now().replace(":", "").replace("-", "").replace(".", "")
    return trials / f"ab-{stamp}-{os.getpid()}"


def _screen(
    bench: Bench, scenario: Scenario, arms: dict[str, Arm], effort: Effort, rule: Rule
) -> dict[str, list[TrialSample]]:
    samples = bench.turns(scenario, arms, PILOT)
    size = screen_size(_totals(samples[BASE]), _totals(samples[HEAD]), effort, rule)
    if size > PILOT:
        bench.tell(f"{scenario.name}: as noisy as it is, {effort.effect:.0%} take {size} trials of each")
        _add(samples, bench.turns(scenario, arms, size - PILOT))
    return samples


def _totals(samples: Sequence[TrialSample]) -> list[float]:
    return [
        time[metric] for s in samples for time in s.times.values() for metric in (TOTAL, REPLACEMENT) if metric in time
    ]


def _add(to: dict[str, list[TrialSample]], more: dict[str, list[TrialSample]]) -> None:
    for name, samples in more.items():
        to[name] += samples


def _says_nothing(row: Row) -> bool:
    """Also where too many trials did not recover: their code is broken, which is neither slower nor as fast."""
    timed = row.metric != SUCCESS
    return row.outcome in (Outcome.INSUFFICIENT, Outcome.NOT_COMPARABLE) or (timed and row.judgement.ratio is None)


def _side(arm: Arm, samples: Sequence[TrialSample]) -> Side:
    return Side(name=arm.name, samples=tuple(samples))


def _unjudged(trial: str, scenario: Scenario) -> TrialSample:
    """A trial that left no result: it is counted, and says nothing else."""
    return TrialSample(
        trial=trial,
        scenario=scenario.name,
        version="",
        shape={},
        code=Code(commit="unknown"),
        machine={},
        versions={},
        session="",
        seed=scenario.seed,
        at=utc_now(),
        judged=False,
        succeeded=False,
    )


def _said(sample: TrialSample) -> str:
    if not sample.judged:
        return "could not be judged"
    totals = [f"{time:.3f} s" for time in _totals([sample])]
    return f"{'passed' if sample.succeeded else 'failed'}, {', '.join(totals) or 'no fault'}"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end_with_parent() -> None:
    """Runs in the child: if this process is killed the trial gets a SIGTERM, and ends what it started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
