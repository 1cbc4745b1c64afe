"""Fills one cell: the jobs that it takes, and what their events say."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.gated import GatedJob, JobEnded
from benchmarks.overhead import WARM_UP_STEPS, alternate, hidden, ratio_of
from benchmarks.peers.cells import Cell
from benchmarks.peers.contenders import Contender
from benchmarks.peers.drive import RANKS, Record, Setup, Stand, disturbed, orders, undisturbed
from benchmarks.peers.entries import PLAIN, WHOLE_NODES
from benchmarks.peers.environments import Environment, EnvironmentMissing, ensure, own
from benchmarks.peers.observed import Sample, twin_verdict
from chaos.cluster.abilities import abilities
from chaos.errors import ChaosError
from chaos.provenance import provenance
from chaos.record import PartDirectory
from chaos.runtimes import Command, Job
from chaos.scenario import Cluster
from phoenix_core.events import Event

TWIN_STEPS: Final = 60
SESSION: Final = 0
_WORST: Final = ("FAIL", "UNKNOWN", "PASS")


class Bench:
    """What one invocation knows: environments, twins that it has run, and where raw data goes."""

    def __init__(self, options: argparse.Namespace, scratch: Path, tell: Callable[[str], None]) -> None:
        self._options = options
        self._scratch = scratch
        self._tell = tell
        self._environments: dict[str | None, Environment | EnvironmentMissing] = {None: own()}
        self._undisturbed: dict[str, Record] = {}
        self._jobs = 0

    def environment(self, contender: Contender) -> Environment:
        """Raises EnvironmentMissing, also for one that could not be made before: it is tried once in a run."""
        name = contender.environment
        if name not in self._environments:
            assert name is not None
            try:
                self._environments[name] = ensure(name, self._tell)
            except EnvironmentMissing as error:
                self._environments[name] = error
        found = self._environments[name]
        if isinstance(found, EnvironmentMissing):
            raise found
        return found

    def stamp(self, contender: Contender) -> dict[str, Any]:
        """Which code and versions a cell of this contender would be of now."""
        try:
            versions = dict(self.environment(contender).versions)
        except EnvironmentMissing:
            versions = {}
        return {"code": code_stamp(), "versions": versions, "workload": list(self._options.workload)}

    def measure(self, contender: Contender, metric: str) -> Cell:
        """A value, or the reason for which there is none."""
        wanted = wanted_samples(self._options)[metric]
        stamped: dict[str, Any] = {"stamp": self.stamp(contender), "wanted": wanted}
        try:
            environment = self.environment(contender)
            if metric == "cost":
                return Cell(**self._cost(contender, environment), **stamped)
            if metric == "overhead":
                return Cell(**self._overhead(contender, environment), **stamped)
            return Cell(**self._faults(contender, environment, metric, wanted), **stamped)
        except (EnvironmentMissing, ChaosError, JobEnded, OSError) as error:
            return Cell(reason=str(error), **stamped)

    # --- the three kinds of cells -------------------------------------------------------------------------------------

    def _cost(self, contender: Contender, environment: Environment) -> dict[str, Any]:
        twin, bare = self._twin(contender, environment), self._twin(PLAIN, own())
        if twin.cost is None or bare.cost is None:
            return {"reason": twin.trouble or bare.trouble}
        return {"value": {**twin.cost.to_json(), "plain": bare.cost.to_json(), "spares": contender.spares}}

    def _overhead(self, contender: Contender, environment: Environment) -> dict[str, Any]:
        options = argparse.Namespace(
            pairs=self._options.pairs, block_steps=self._options.block_steps, timeout=self._options.patience
        )
        directory = self._directory(contender, "overhead")
        with ExitStack() as stack:
            baseline, treated = (
                stack.enter_context(
                    GatedJob(
                        directory / name,
                        name=who.title,
                        ranks=RANKS,
                        command=partial(self._gated, who, where, directory / name),
                    )
                )
                for name, who, where in (("plain", PLAIN, own()), ("treated", contender, environment))
            )
            pairs = alternate(baseline, treated, session=SESSION, options=options)
        step_s = median(pair.baseline_s for pair in pairs)
        return {"value": {"ratio": ratio_of(pairs).__dict__, "hidden": hidden(pairs), "step_s": step_s}}

    def _gated(self, who: Contender, environment: Environment, directory: Path, gate: Path) -> Command:
        steps = WARM_UP_STEPS + self._options.pairs * self._options.block_steps
        workload = ("--gate", str(gate), "--steps", str(steps), "--seed", str(self._options.seed))
        cluster = Cluster(nodes=RANKS, ranks_per_node=1, spares=who.spares)
        job = Job(
            workload=(*workload, *self._options.workload),
            steps=steps,
            seed=self._options.seed,
            cluster=cluster,
            directory=PartDirectory(path=directory),
        )
        return who.command(job, environment)

    def _faults(self, contender: Contender, environment: Environment, kind: str, wanted: int) -> dict[str, Any]:
        isolated = kind in WHOLE_NODES
        if isolated and (trouble := abilities().isolation):
            return {"reason": trouble}
        samples: list[Sample] = []
        verdicts: list[tuple[str, str]] = []
        until = time.monotonic() + self._options.cell_seconds
        while len(samples) < wanted and (not samples or time.monotonic() < until):
            planned = orders(kind, wanted, self._options.seed)[len(samples) :]
            job = planned[:1] if kind in contender.single else planned
            with self._stand(contender, environment, kind, isolated=isolated) as stand:
                record = disturbed(stand, job, until)
            if not record.samples:
                return {"reason": f"it did not come to train: {record.trouble}"}
            samples += record.samples
            if any(sample.goes_on_s is not None for sample in record.samples):
                verdicts.append(self._compared(contender, environment, record.events))
        return {"samples": tuple(samples), "twin": worst_twin(verdicts)}

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _compared(self, contender: Contender, environment: Environment, events: Sequence[Event]) -> tuple[str, str]:
        fault = next(event for event in events if event.kind == "fault_injected")
        twin = self._twin(contender, environment)
        return ("UNKNOWN", twin.trouble) if twin.trouble else twin_verdict(events, twin.events, fault.at)

    def _twin(self, contender: Contender, environment: Environment) -> Record:
        """The undisturbed run of this peer, whatever its timeouts; run when it is first asked for."""
        if contender.peer not in self._undisturbed:
            self._tell(f"  {contender.title}: the undisturbed run")
            with self._stand(contender, environment, "undisturbed", isolated=False) as stand:
                self._undisturbed[contender.peer] = undisturbed(stand, TWIN_STEPS)
        return self._undisturbed[contender.peer]

    def _stand(self, contender: Contender, environment: Environment, what: str, *, isolated: bool) -> Stand:
        setup = Setup(seed=self._options.seed, options=tuple(self._options.workload))
        return Stand(contender, environment, self._directory(contender, what), setup, isolated=isolated)

    def _directory(self, contender: Contender, what: str) -> Path:
        self._jobs += 1
        directory = self._scratch / f"{self._jobs:03}-{contender.key.replace('/', '-')}-{what}"
        directory.mkdir(parents=True)
        return directory


def wanted_samples(options: argparse.Namespace) -> dict[str, int]:
    return {
        "cost": 1,
        "overhead": int(options.pairs),
        "kill": int(options.trials),
        "hang": int(options.trials),
        "node": int(options.node_trials),
        "partition": int(options.node_trials),
    }


def worst_twin(verdicts: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    return min(verdicts, key=lambda verdict: _WORST.index(verdict[0]), default=None)


def code_stamp() -> str:
    """The commit, and a hash of what was changed since, but for results and pages: writing those changes no code."""
    commit = provenance().commit or "unknown commit"
    root = Path(__file__).resolve().parents[2]
    command = ["git", "diff", "HEAD", "--", ".", ":(exclude)benchmarks/results", ":(exclude)*.md"]
    changed = subprocess.run(command, cwd=root, capture_output=True, check=False).stdout
    return f"{commit}+{hashlib.sha256(changed).hexdigest()[:12]}" if changed else commit
