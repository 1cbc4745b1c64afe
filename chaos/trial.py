"""One trial: launch a runtime, break it as planned, run the same undisturbed, judge, write the result.

`run_trial` is the whole of it, and leaves nothing running however it ends:

    run     the runtime with its spares; faults are injected as the scenario and live requests say
    twin    the same workload, seed, steps and ranks without spares and faults (if the twin check is asked for)
    checks  what was recorded, judged
    done    result.json is written, and the pid file goes

`python -m chaos.trial run DIR` does so for a directory that holds a spec.json, e.g. one made by the service.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

from chaos.checks import judge_outcome, run_checks
from chaos.cluster.client import HandClient
from chaos.cluster.layout import NETWORK_FILE
from chaos.conductor import Conductor, Faults, Outcome, PartEnd, SelfPipe, Stop
from chaos.disk import SIZE_MB
from chaos.errors import ChaosError, TrialError
from chaos.evidence import Evidence, PartRecord, steps_committed
from chaos.failures import LAUNCHER_LOG, explain
from chaos.goodput import goodput
from chaos.injectors import INJECTORS, Injector
from chaos.injectors.gpu import GpuXid
from chaos.injectors.inside import inside_injectors
from chaos.injectors.network import network_injectors
from chaos.injectors.storage import storage_injectors
from chaos.kinds_gpu import GPU_XID
from chaos.launch import GRACE_S, Ended, Launch
from chaos.leaks import LeakReport, find_leaks, footprint
from chaos.record import Part, PartDirectory, Result, TrialDirectory, utc_now
from chaos.recoveries import recovery_record
from chaos.requests import FaultRequest, RequestTail
from chaos.runtimes import RUNTIMES, Command, Job, Runtime, runtime_for, with_extra
from chaos.scenario import Cluster, Scenario
from chaos.undisturbed import UndisturbedRuns
from chaos.verdict import CheckResult, Verdict, worst
from phoenix_core.events import Event, EventWriter, read_events

EXIT_CODES: Final[Mapping[Verdict, int]] = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 3}
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
INTERRUPTED: Final = "interrupted"

TrialObserver = Callable[[Part, Sequence[Event]], None]


def run_trial(
    directory: TrialDirectory,
    *,
    runtimes: Mapping[str, Runtime] = RUNTIMES,
    observer: TrialObserver | None = None,
    stop: Stop | None = None,
    grace_s: float = GRACE_S,
    undisturbed: UndisturbedRuns | None = None,
) -> Result:
    """Run the trial whose specification the directory holds, to its result.

    `observer` is called with the part and its new events as they come (for a live display); `stop` ends the trial from
    outside; `undisturbed` are the twins of trials before it, one of which may do for this as well. Raises
    InvalidScenario (Unsupported: because of this machine) where the scenario cannot be run here, TrialError where the
    directory cannot be used or the result cannot be written. Every other end is a Result.
    """
    scenario = directory.read_spec().scenario
    runtime = runtime_for(scenario, runtimes)
    if directory.result_file.exists():
        raise TrialError(f"{directory.path}: this trial is over; result.json is there")
    with directory.owned():
        trial = _Trial(directory, scenario, runtime, observer, stop, grace_s, undisturbed or UndisturbedRuns())
        result = trial.run()
        directory.write_result(result)
        return result


@dataclass(frozen=True, kw_only=True)
class _PartResult:
    end: PartEnd
    record: PartRecord
    leaks: LeakReport | None


class _Trial:
    def __init__(
        self,
        directory: TrialDirectory,
        scenario: Scenario,
        runtime: Runtime,
        observer: TrialObserver | None,
        stop: Stop | None,
        grace_s: float,
        undisturbed: UndisturbedRuns,
    ) -> None:
        self._undisturbed = undisturbed
        self._directory = directory
        self._scenario = scenario
        self._runtime = runtime
        self._observer = observer
        self._stop = stop
        self._grace_s = grace_s
        self._requests = RequestTail(directory.requests_file)
        # Asked for now, so that a scenario that this runtime refuses is refused before anything exists.
        self._commands = {
            Part.RUN: self._command(directory.run, scenario.cluster),
            Part.TWIN: self._command(directory.twin, replace(scenario.cluster, spares=0)),
        }

    def run(self) -> Result:
        try:
            writer = EventWriter(self._directory.run.events / "injector.jsonl")
        except OSError as error:
            raise TrialError(f"cannot write {self._directory.run.events}: {error.strerror}") from error
        try:
            with contextlib.ExitStack() as stack:
                return self._parts(writer, Faults(self._scenario, writer, self._injectors(stack)))
        except OSError as error:
            # A full disk, most likely. What was started has been ended on the way here; there is nothing to judge.
            return self._unjudged(f"the trial could not record what it did: {error.strerror or error}")
        finally:
            writer.close()

    def _injectors(self, stack: contextlib.ExitStack) -> Mapping[str, Injector]:
        run, seed = self._directory.run, self._scenario.seed
        injectors = {
            **INJECTORS,
            **inside_injectors(run, seed),
            **storage_injectors(run.checkpoints, seed),
            GPU_XID.kind: GpuXid(run.gpus, run.agents),
        }
        if not self._scenario.cluster.isolated:
            return injectors
        hand = stack.enter_context(HandClient(self._directory.run.path / NETWORK_FILE))
        return {**injectors, **network_injectors(hand)}

    def _parts(self, writer: EventWriter, faults: Faults) -> Result:
        self._enter(writer, Part.RUN)
        disturbed = self._launch(Part.RUN, self._directory.run, faults)
        undisturbed = None
        if "twin" in self._scenario.checks and disturbed.record.completed:
            undisturbed = self._twin(writer, faults)
        self._enter(writer, Part.CHECKS)
        result = self._judge(faults, disturbed, undisturbed)
        if self._turn_away(faults):
            # Asked for after the run, and so missed: no trial passes with a fault that never fired.
            result = self._judge(faults, disturbed, undisturbed)
        self._enter(writer, Part.DONE)
        return result

    def _twin(self, writer: EventWriter, faults: Faults) -> _PartResult:
        """The undisturbed run: that of an earlier trial of the same job, or one of its own."""
        directory = self._directory.twin
        if (source := self._undisturbed.lend(self._scenario, directory)) is not None:
            self._enter(writer, Part.TWIN, source=source)
            events = read_events(directory.events)
            end = PartEnd(outcome=Outcome.EXITED, detail="", ended=Ended(code=0, left=()))
            return _PartResult(end=end, record=PartRecord(events=events, completed=True), leaks=LeakReport())
        self._enter(writer, Part.TWIN)
        undisturbed = self._launch(Part.TWIN, directory, faults)
        if undisturbed.record.completed:
            self._undisturbed.keep(self._scenario, self._directory.path.name, directory)
        return undisturbed

    def _turn_away(self, faults: Faults) -> bool:
        """Answer what was requested since the last launch ended; whether that were faults."""
        before = len(faults.late)
        for request in self._requests.read():
            faults.note(request)
            if isinstance(request, FaultRequest):
                faults.request(request.fault, time.monotonic_ns())
        return len(faults.late) > before

    def _launch(self, part: Part, directory: PartDirectory, faults: Faults) -> _PartResult:
        directory.events.mkdir(parents=True, exist_ok=True)
        directory.logs.mkdir(parents=True, exist_ok=True)
        before = footprint()
        observer = self._observer
        token = f"{uuid.uuid4().hex}-{part.value}"
        log = directory.logs / LAUNCHER_LOG
        with Launch(self._commands[part], log=log, token=token, grace_s=self._grace_s) as launch:
            end = Conductor(
                launch=launch,
                directory=directory,
                requests=self._requests,
                faults=faults,
                timeout_s=self._scenario.timeout_s,
                stop=self._stop,
                observer=None if observer is None else lambda events: observer(part, events),
            ).run()
        events = read_events(directory.events)
        error = "" if _completed(end) else _why(end, directory, events)
        spawned = [int(str(event.data["pid"])) for event in events if event.kind == "worker_spawned"]
        pids = [*spawned, launch.keeper, os.getpid()]
        leaks = None  # whoever kept the job was killed: nobody could see what would have stayed
        if end.ended.code is not None:
            leaks = find_leaks(directory=directory.path, processes=end.ended.left, pids=pids, before=before)
        return _PartResult(
            end=end, record=PartRecord(events=events, completed=_completed(end), error=error), leaks=leaks
        )

    def _judge(self, faults: Faults, disturbed: _PartResult, undisturbed: _PartResult | None) -> Result:
        evidence = Evidence(
            scenario=self._scenario,
            asked=faults.asked,
            run=replace(disturbed.record, events=[*disturbed.record.events, *faults.late]),
            twin=undisturbed.record if undisturbed else None,
            leaks=_joined(disturbed, undisturbed),
        )
        checks = run_checks(evidence)
        error = disturbed.record.error or (undisturbed.record.error if undisturbed else "") or None
        verdict = worst(check.verdict for check in checks.values())
        if error is not None and verdict is Verdict.PASS:
            verdict = Verdict.UNKNOWN
        if any(part and _cut_short(part.end) for part in (disturbed, undisturbed)):
            # Somebody ended it, or its warden: whatever was not reached says nothing about the runtime.
            verdict = Verdict.UNKNOWN
        verdicts = {name: check.verdict for name, check in checks.items()}
        return Result(
            verdict=verdict,
            checks=checks,
            recoveries=tuple(
                recovery_record(outcome, {**verdicts, **judge_outcome(outcome, evidence)})
                for outcome in evidence.outcomes
            ),
            steps_committed=steps_committed(disturbed.record.events, self._scenario.cluster.world_size),
            error=error,
            finished_at=utc_now(),
            goodput=goodput(disturbed.record.events),
        )

    def _unjudged(self, error: str) -> Result:
        checks = {
            name: CheckResult(verdict=Verdict.UNKNOWN, detail="the trial did not get so far")
            for name in self._scenario.checks
        }
        return Result(
            verdict=Verdict.UNKNOWN,
            checks=checks,
            recoveries=(),
            steps_committed=0,
            error=error,
            finished_at=utc_now(),
        )

    def _command(self, directory: PartDirectory, cluster: Cluster) -> Command:
        scenario = self._scenario
        workload = scenario.job.arguments(steps=scenario.steps, seed=scenario.seed, options=scenario.options)
        return self._runtime.command(
            Job(
                workload=tuple(workload),
                steps=scenario.steps,
                seed=scenario.seed,
                cluster=cluster,
                directory=directory,
                checkpoint_every=scenario.checkpoint_every,
                restarting=scenario.job.restarting,
                disk_mb=SIZE_MB if any(fault.kind == "disk_full" for fault in scenario.faults) else None,
            )
        )

    def _enter(self, writer: EventWriter, part: Part, **told: object) -> None:
        event = writer.emit("trial_phase", part=part.value, **told)  # type: ignore[arg-type]
        if self._observer is not None:
            self._observer(part, [event])


_ENDED_BY_US: Final = (Outcome.CANCELLED, Outcome.INTERRUPTED)


def _cut_short(end: PartEnd) -> bool:
    return end.outcome in _ENDED_BY_US or (end.outcome is Outcome.EXITED and end.ended.code is None)


def _completed(end: PartEnd) -> bool:
    return end.outcome is Outcome.EXITED and end.ended.code == 0


def _why(end: PartEnd, directory: PartDirectory, events: Sequence[Event]) -> str:
    return end.detail if end.outcome is not Outcome.EXITED else explain(directory, events, end.ended.code)


def _joined(*parts: _PartResult | None) -> LeakReport | None:
    reports = [part.leaks for part in parts if part is not None]
    known = [report for report in reports if report is not None]
    if len(known) < len(reports):
        return None
    return reduce(or_, known, LeakReport())


@contextlib.contextmanager
def interruptible() -> Iterator[SelfPipe]:
    """Ctrl-C, SIGTERM and SIGHUP end the trial in an orderly way. For the main thread of a command-line program."""
    stop = SelfPipe()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop.set(INTERRUPTED)) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m chaos.trial run DIR [--json]`; exit code 0 PASS, 1 FAIL, 2 usage, 3 UNKNOWN, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m chaos.trial", description="Run a trial whose spec.json is there.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the trial of a directory")
    run.add_argument("directory", type=Path, help="the trial directory (holds spec.json)")
    run.add_argument("--json", action="store_true", help="print result.json instead of a summary")
    options = parser.parse_args(arguments)
    try:
        with interruptible() as stop:
            runtimes = with_extra(os.environ.get("PHOENIX_RUNTIMES", ""))
            result = run_trial(TrialDirectory(options.directory), runtimes=runtimes, stop=stop)
    except ChaosError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_CODES[Verdict.UNKNOWN] if isinstance(error, TrialError) else EXIT_USAGE
    print(json.dumps(result.to_json(), indent=1) if options.json else summary(result))
    if result.error == INTERRUPTED:
        print(f"{parser.prog}: {interruption(options.directory)}", file=sys.stderr)
    return exit_code(result)


def interruption(directory: Path) -> str:
    """What a command says that was ended by a Ctrl-C."""
    return f"interrupted; what was started has been ended, the result is in {directory}"


def exit_code(result: Result) -> int:
    """Of a command that ran a trial: its verdict, unless a Ctrl-C (SIGTERM, SIGHUP) ended it."""
    return EXIT_INTERRUPTED if result.error == INTERRUPTED else EXIT_CODES[result.verdict]


def summary(result: Result) -> str:
    """The result in a few lines for a terminal."""
    lines = [f"{result.verdict.value}  ({result.steps_committed} steps)"]
    lines += [f"  {name:<10} {check.verdict.value:<8} {check.detail}" for name, check in result.checks.items()]
    if result.error:
        lines.append(result.error)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
