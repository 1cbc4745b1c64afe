"""What the processes of a made-up trial would have written: events, and the result that checks would come to. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from chaos.reading import Event, Phase
from chaos.record import Result
from chaos.recoveries import outcomes, recovery_record
from chaos.verdict import CheckResult, Verdict, worst
from service.seeding.story import Night, Outcome, SeededTrial

S: Final = 1_000_000_000
START_S: Final = 11.4
"""From the first process to the first step."""
WELL: Final[Mapping[str, str]] = {
    "fired": "1 fault injected, as the receipts say",
    "recovered": "1 recovery of 1 whole",
    "twin": "160 recorded values and 4 final digests equal in every bit",
    "agreement": "the final digest of all 4 ranks is the same",
    "no_leak": "nothing of the trial is left on this machine",
    "gpu_health": "no GPU had an error of ours",
}


@dataclass(frozen=True, kw_only=True)
class SeededResult:
    """The events by the process that wrote them, and what was made of them."""

    events: Mapping[str, list[Event]]
    result: Result
    seconds: float


def play(night: Night, trial: SeededTrial) -> SeededResult:
    """One rank is hit at the step that the scenario says; what follows takes as long as the story says."""
    stage = _Stage(night, trial)
    stage.begin()
    if trial.outcome is Outcome.TOO_LATE:
        for step in range(trial.scenario.steps):
            stage.step(step, generation=1)
        fault = trial.scenario.faults[0]
        reason = f"rank {stage.target} had left the phase before it could be stopped"
        stage.emit("injector", "fault_missed", fault=fault.id, kind=fault.kind, reason=reason)
    else:
        stage.strike()
    stage.end()
    finished = trial.started + timedelta(seconds=stage.seconds)
    events = sorted((event for part in stage.files.values() for event in part), key=lambda event: event.at)
    return SeededResult(events=stage.files, result=_result(trial, events, finished.isoformat()), seconds=stage.seconds)


class _Stage:
    """The clock of one trial and what was written at its instants."""

    def __init__(self, night: Night, trial: SeededTrial) -> None:
        self._night, self._trial = night, trial
        self._drawn = random.Random(trial.draw)
        self.files: dict[str, list[Event]] = {}
        self._first = self.at = int((trial.started - night.started).total_seconds() * S) + 7200 * S
        cluster = trial.scenario.cluster
        self.world, self.spares = cluster.world_size, cluster.spares
        self.ranks = [f"w{rank}" for rank in range(self.world)]
        planned = trial.scenario.faults[0].target.to_json()
        rank = planned.get("rank")
        self.target = rank if isinstance(rank, int) else self._drawn.randrange(self.world)

    @property
    def seconds(self) -> float:
        return (self.at - self._first) / S

    def emit(self, file: str, kind: str, /, *, at: int | None = None, **fields: Any) -> None:
        named = {name: fields.pop(name) for name in ("node", "worker", "generation", "rank", "step") if name in fields}
        stamp = self.at if at is None else at
        event = Event(kind=kind, at=stamp, host=self._night.host, boot=self._night.boot, data=fields, **named)
        self.files.setdefault(file, []).append(event)

    def pass_s(self, seconds: float) -> None:
        self.at += int(seconds * S)

    def begin(self) -> None:
        self.emit("injector", "trial_phase", part="run")
        nodes = [f"n{index}" for index in range(self.world + self.spares)]
        self.emit("coordinator", "job_started", world_size=self.world, spares=self.spares, nodes=nodes)
        for number, node in enumerate(nodes):
            self.pass_s(0.004)
            pid = 20_000 + self._trial.draw % 9000 + number
            self.emit(f"agent-{node}", "worker_spawned", node=node, worker=f"w{number}", pid=pid, start_ticks=1)
        self.pass_s(START_S)
        spare = f"w{self.world}"
        self.emit(spare, "spare_parked", node=nodes[-1], worker=spare)
        self._form(1, [], spares=[spare])
        self.emit("coordinator", "generation_resumed", generation=1, step=0)

    def step(self, step: int, *, generation: int, seconds: float | None = None) -> None:
        """Every rank commits it, the last one at the end of the step's time."""
        length = self._trial.step_s * self._drawn.lognormvariate(0, 0.05) if seconds is None else seconds
        self.pass_s(length)
        loss = 2.3 + 3.2 * math.exp(-step / 9) + 0.05 * self._drawn.gauss(0, 1)
        for rank, worker in enumerate(self.ranks):
            at = self.at - int((self.world - 1 - rank) * 0.0011 * S)
            self.emit(
                worker, "step_committed", at=at, node=f"n{worker[1:]}", worker=worker, generation=generation, rank=rank,
                step=step, duration_ns=int(length * S), loss=loss + 0.01 * rank,
            )  # fmt: skip

    def strike(self) -> None:
        fault, steps = self._trial.scenario.faults[0], self._trial.scenario.steps
        trigger = fault.trigger.to_json()
        struck = trigger.get("at_step", trigger.get("step"))
        assert isinstance(struck, int)
        for step in range(struck):
            self.step(step, generation=1)
        for rank, worker in enumerate(self.ranks):
            where: dict[str, Any] = {"node": f"n{worker[1:]}", "worker": worker, "rank": rank, "generation": 1}
            self.emit(worker, "phase_entered", step=struck, phase="forward", **where)
        self.pass_s(0.4 * self._trial.step_s)
        victim, spare = self.ranks[self.target], f"w{self.world}"
        self._inject(victim, struck)
        self._recover(victim, spare, struck)
        if self._trial.outcome is Outcome.NOT_RECOVERED:
            self.pass_s(self._trial.scenario.timeout_s / 4)
            self.emit("coordinator", "job_finished", outcome="stopped", reason="no step was committed for too long")
            return
        for step in range(struck + 1, steps):
            self.step(step, generation=2)
        self.emit("coordinator", "job_finished", outcome="completed", reason="every rank executed its last step")

    def end(self) -> None:
        """The workers leave. The undisturbed twin takes as long as the run; of it only begin and end are told."""
        for worker in self.ranks:
            self.emit(f"agent-n{worker[1:]}", "worker_exited", node=f"n{worker[1:]}", worker=worker, pid=0, code=0)
        for part, seconds in (("twin", self.seconds), ("checks", 0.4), ("done", 0.0)):
            self.emit("injector", "trial_phase", part=part)
            self.pass_s(seconds)

    def _inject(self, victim: str, step: int) -> None:
        fault = self._trial.scenario.faults[0]
        phase = str(fault.trigger.to_json().get("phase", "forward"))
        place: dict[str, Any] = {"node": f"n{victim[1:]}", "worker": victim, "rank": self.target}
        self.emit(victim, "phase_entered", at=self.at - 1_000_000, generation=1, step=step, phase=phase, **place)
        pid = 20_000 + self._trial.draw % 9000 + int(victim[1:])
        self.emit(
            "injector", "fault_injected", fault=fault.id, kind=fault.kind, pid=pid, fidelity="real",
            trigger=fault.trigger.to_json(), params=dict(fault.params), **place,
        )  # fmt: skip

    def _recover(self, victim: str, spare: str, step: int) -> None:
        """Each phase ends with its own instant, so that the timeline has the lengths of the story."""
        phases = self._trial.phases
        new: dict[str, Any] = {"generation": 2}
        stopped = self._trial.scenario.faults[0].kind == "process_stop"
        self.pass_s(phases[Phase.DETECT])
        cause = "stopped" if stopped else "exit"
        node = f"n{victim[1:]}"
        self.emit("coordinator", "failure_detected", node=node, worker=victim, rank=self.target, cause=cause, **new)
        self.emit("coordinator", "spare_assigned", worker=spare, rank=self.target, **new)
        self.emit(f"agent-{node}", "worker_exited", node=node, worker=victim, pid=20_000, code=-9)
        if stopped:
            fault = self._trial.scenario.faults[0]
            over: dict[str, Any] = {
                "fault": fault.id,
                "kind": fault.kind,
                "alive": False,
                "reason": "the process has ended",
            }
            self.emit("injector", "fault_reverted", worker=victim, rank=self.target, **over)
        survivors = [(rank, worker) for rank, worker in enumerate(self.ranks) if worker != victim]
        self.ranks[self.target] = spare
        self._form(2, [self.target], spares=[])
        self._each("worker_quiesced", phases[Phase.QUIESCE], survivors, boundary=step)
        self.pass_s(phases[Phase.REPLACE])
        self.emit(spare, "model_built", node=f"n{spare[1:]}", worker=spare, rank=self.target, **new)
        if self._trial.outcome is Outcome.NOT_RECOVERED:
            return
        everybody = list(enumerate(self.ranks))
        self._each("communicator_ready", phases[Phase.RECONSTRUCT], everybody, groups=1)
        self._each("state_restored", phases[Phase.RESTORE], everybody, boundary=step, source="twin", bytes=0)
        self.emit("coordinator", "generation_resumed", step=step, **new)
        self.step(step, generation=2, seconds=phases[Phase.RECOMPUTE])

    def _each(self, kind: str, length: float, who: list[tuple[int, str]], **data: Any) -> None:
        """One after another within the phase, the last one at its end."""
        start = self.at
        self.pass_s(length)
        for index, (rank, worker) in enumerate(who, start=1):
            at = start + int((0.55 + 0.45 * index / len(who)) * (self.at - start))
            place: dict[str, Any] = {"node": f"n{worker[1:]}", "worker": worker, "generation": 2, "rank": rank}
            self.emit(worker, kind, at=at, **place, **data)

    def _form(self, generation: int, joining: list[int], *, spares: list[str]) -> None:
        self.emit(
            "coordinator", "world_formed", generation=generation, ranks=list(self.ranks), spares=spares, joining=joining
        )


def _result(trial: SeededTrial, events: list[Event], finished: str) -> Result:
    checks = {
        name: CheckResult(verdict=Verdict.PASS, detail=WELL.get(name, "as it should be"))
        for name in trial.scenario.checks
    }
    checks |= {name: check for name, check in _found(trial).items() if name in checks}
    verdicts = {name: check.verdict for name, check in checks.items()}
    committed = {event.step for event in events if event.kind == "step_committed"}
    return Result(
        verdict=worst(verdicts.values()),
        checks=checks,
        recoveries=tuple(recovery_record(outcome, verdicts) for outcome in outcomes(events)),
        steps_committed=len(committed),
        error=None,
        finished_at=finished,
    )


def _found(trial: SeededTrial) -> dict[str, CheckResult]:
    """What the checks say where it is not just that all is well."""
    if trial.outcome is Outcome.WRONG_TWIN:
        detail = "step 16 of rank 2: 3.204117774963379 here, 3.204118251800537 in the twin"
        return {"twin": CheckResult(verdict=Verdict.FAIL, detail=detail)}
    if trial.outcome is Outcome.NOT_RECOVERED:
        open_phase = "the reconstruct phase of generation 2 never ended"
        failed = CheckResult(verdict=Verdict.FAIL, detail=open_phase)
        unknown = CheckResult(verdict=Verdict.UNKNOWN, detail="the run did not come to its end")
        return {"recovered": failed, "twin": unknown, "agreement": unknown}
    if trial.outcome is Outcome.TOO_LATE:
        missed = f"{trial.scenario.faults[0].id} was missed: the rank had left the phase before it could be stopped"
        return {"fired": CheckResult(verdict=Verdict.UNKNOWN, detail=missed)}
    return {}
