"""Whole trials with the torch-free runtime: faults, requests, every way to end, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.conductor import SelfPipe
from chaos.errors import InvalidScenario, TrialError
from chaos.record import Part, Result, TrialDirectory
from chaos.scenario import Scenario
from chaos.trial import run_trial
from chaos.verdict import Verdict
from phoenix_core.events import Event, read_events
from tests.contract.fake_runtime import FakeRuntime

pytestmark = pytest.mark.process

KILL = {"id": "kill", "kind": "process_kill", "target": {"rank": 2}, "trigger": {"at_step": 10}}
STOP = {"id": "stop", "kind": "process_stop", "target": {"random_rank": True}, "trigger": {"at_step": 20}}


def scenario(**changes: Any) -> Scenario:
    document = {"name": "x", "workload": "gpt-tiny", "steps": 40, "runtime": "fake", "timeout_s": 20, **changes}
    return Scenario.from_json(document)


class Trial:
    """One trial in a directory; `on` is called with each new event of the disturbed run."""

    def __init__(self, run_dir: Path, plan: Scenario, runtime: FakeRuntime | None = None) -> None:
        self.directory = TrialDirectory.create(run_dir / "trial", plan)
        self.runtime = runtime or FakeRuntime()

    def run(self, on: Callable[[Event], None] | None = None, stop: SelfPipe | None = None) -> Result:
        def observe(part: Part, events: Sequence[Event]) -> None:
            for event in events if on else ():
                assert on is not None
                on(event)

        return run_trial(
            self.directory, runtimes={"fake": self.runtime}, observer=observe if on else None, stop=stop, grace_s=1.0
        )

    def events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.directory.run.events) if event.kind == kind]


def verdicts(result: Result) -> dict[str, str]:
    return {name: check.verdict.value for name, check in result.checks.items()}


def at_step(step: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """Act once, when any rank has committed this step."""
    done: list[bool] = []

    def on(event: Event) -> None:
        if event.kind == "step_committed" and event.step == step and not done:
            done.append(True)
            act()

    return on


def test_a_kill_and_a_freeze_pass_all_checks(run_dir: Path) -> None:
    # The second spare is ready long before: the first recovery ends ten steps before the freeze.
    trial = Trial(run_dir, scenario(faults=[KILL, STOP], cluster={"spares": 2}))
    result = trial.run()
    assert result.verdict is Verdict.PASS, result.to_json()
    assert result.steps_committed == 40
    assert result.error is None
    kill, stop = result.recoveries
    assert kill.target == {"rank": 2, "worker": "w2"}
    assert kill.blamed == {"rank": 2, "worker": "w2", "cause": "exit"}
    assert stop.blamed == {**stop.target, "cause": "hang"}
    assert stop.recovery_s is not None and 0.4 <= stop.recovery_s < 2.0
    assert trial.directory.read_result() == result
    assert not trial.directory.pid_file.exists()


@pytest.mark.parametrize("phase", ["forward", "backward", "gradient_sync"])
def test_a_phase_is_hit_while_it_lasts(run_dir: Path, phase: str) -> None:
    in_phase = KILL | {"trigger": {"phase": phase, "step": 2}}
    trial = Trial(run_dir, scenario(faults=[in_phase], steps=4, checks=["fired", "recovered"]), FakeRuntime(step_s=0.6))
    result = trial.run()
    assert result.verdict is Verdict.PASS, result.to_json()
    (receipt,) = trial.events("fault_injected")
    assert (receipt.worker, receipt.rank, receipt.node) == ("w2", 2, "n2")
    (record,) = result.recoveries
    assert record.fault is not None and record.fault["hit"] == {"phase": phase, "step": 2}
    (exited,) = [event for event in trial.events("worker_exited") if event.worker == "w2"]
    assert exited.at > receipt.at
    assert exited.data["code"] == -9


def test_the_parts_are_told_in_order(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(steps=5))
    trial.run()
    assert [event.data["part"] for event in trial.events("trial_phase")] == ["run", "twin", "checks", "done"]
    assert read_events(trial.directory.twin.events)


def test_without_the_twin_check_there_is_no_twin(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(steps=5, checks=["agreement", "no_leak"]))
    assert verdicts(trial.run()) == {"agreement": "PASS", "no_leak": "PASS"}
    assert not trial.directory.twin.path.exists()


def test_a_random_rank_is_the_same_in_every_trial_of_a_seed(run_dir: Path) -> None:
    ranks = set()
    for index in range(2):
        trial = Trial(
            run_dir / str(index), scenario(faults=[STOP | {"kind": "process_kill"}], checks=["fired"], seed=5)
        )
        trial.run()
        ranks |= {event.rank for event in trial.events("fault_injected")}
    assert len(ranks) == 1


def test_a_live_request_is_injected_once(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario())
    request = {"fault": "live", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"now": True}, "params": {}}

    def ask() -> None:
        trial.directory.request_fault(request)
        trial.directory.request_fault(request)  # the client was not sure whether it had said so

    result = trial.run(at_step(5, ask))
    assert result.verdict is Verdict.PASS, result.to_json()
    assert [event.data["fault"] for event in trial.events("fault_injected")] == ["live"]
    assert [record.target["rank"] for record in result.recoveries] == [1]


def test_bad_requests_are_answered_and_do_no_harm(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(checks=["recovered"]))

    def ask() -> None:
        trial.directory.request_fault({"fault": "bad", "kind": "meteor", "target": {"rank": 0}})
        trial.directory.request_fault(
            {"fault": "old", "kind": "process_kill", "target": {"rank": 0}, "trigger": {"at_step": 1}}
        )
        trial.directory.request_fault({"fault": "far", "kind": "process_kill", "target": {"rank": 9}})

    trial.run(at_step(5, ask))
    missed = {event.data["fault"]: str(event.data["reason"]) for event in trial.events("fault_missed")}
    assert set(missed) == {"bad", "old", "far"}
    assert "unknown fault kind" in missed["bad"]
    assert "before the request came" in missed["old"]
    assert "rank 9" in missed["far"]
    assert trial.events("fault_injected") == []


def test_a_request_during_the_twin_comes_too_late(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario())

    def on(event: Event) -> None:
        if event.kind == "trial_phase" and event.data["part"] == "twin":
            trial.directory.request_fault({"fault": "late", "kind": "process_kill", "target": {"rank": 0}})

    result = trial.run(on)
    assert result.verdict is Verdict.UNKNOWN
    assert result.checks["fired"].detail == "late was missed: the run was over when the request came"
    (missed,) = trial.events("fault_missed")
    assert missed.data["reason"] == "the run was over when the request came"


def test_a_request_after_the_judgement_is_judged_as_well(run_dir: Path) -> None:
    """The last instant at which a request is heard: it is answered, and the trial does not pass."""
    trial = Trial(run_dir, scenario(steps=5, checks=["fired", "agreement"]))

    def on(event: Event) -> None:
        if event.kind == "trial_phase" and event.data["part"] == "checks":
            trial.directory.request_fault({"fault": "late", "kind": "process_kill", "target": {"rank": 0}})

    result = trial.run(on)
    assert (result.verdict, verdicts(result)["fired"]) == (Verdict.UNKNOWN, "UNKNOWN")
    assert [event.data["fault"] for event in trial.events("fault_missed")] == ["late"]


def test_a_request_that_never_was_a_fault_changes_no_verdict(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario())
    bad = {"fault": "bad", "kind": "meteor", "target": {"rank": 0}}
    result = trial.run(at_step(5, lambda: trial.directory.request_fault(bad)))
    assert result.verdict is Verdict.PASS, result.to_json()
    assert [event.data["fault"] for event in trial.events("fault_missed")] == ["bad"]


def test_a_killed_spare_is_replaced_and_nothing_is_recovered(run_dir: Path) -> None:
    kill = {"id": "kill", "kind": "process_kill", "target": {"spare": True}, "trigger": {"at_step": 5}}
    result = Trial(run_dir, scenario(faults=[kill]), FakeRuntime(replaces_spares=True)).run()
    assert result.verdict is Verdict.PASS, result.to_json()
    assert result.checks["recovered"].detail == "1 lost spare replaced"
    (record,) = result.recoveries
    assert (record.target, record.recovery_s, record.generation) == ({"rank": None, "worker": "w4"}, None, None)
    assert record.replacement is not None and record.replacement["worker"] == "w5"


def test_a_trigger_that_never_came_is_missed(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(faults=[KILL | {"trigger": {"after_s": 3600}}]))
    result = trial.run()
    assert result.verdict is Verdict.UNKNOWN
    assert verdicts(result)["fired"] == "UNKNOWN"
    (missed,) = trial.events("fault_missed")
    assert missed.data["reason"] == "the run was over before its trigger came"


def test_a_target_that_is_gone_is_missed(run_dir: Path) -> None:
    spare = {"kind": "process_kill", "target": {"spare": True}}
    faults = [spare | {"id": "first", "trigger": {"at_step": 5}}, spare | {"id": "second", "trigger": {"at_step": 9}}]
    trial = Trial(run_dir, scenario(faults=faults, cluster={"spares": 1}))
    result = trial.run()
    assert [event.data["fault"] for event in trial.events("fault_injected")] == ["first"]
    (missed,) = trial.events("fault_missed")
    assert missed.data["fault"] == "second"
    assert result.checks["fired"].verdict is Verdict.UNKNOWN
    assert result.verdict is Verdict.UNKNOWN
    assert [(record.target["worker"], record.recovery_s) for record in result.recoveries] == [("w4", None)]


def test_no_spare_left_fails(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(faults=[KILL], cluster={"spares": 0}))
    result = trial.run()
    assert result.verdict is Verdict.FAIL
    assert verdicts(result) | {"twin": "UNKNOWN", "agreement": "UNKNOWN", "recovered": "FAIL"} == verdicts(result)
    assert result.error is not None and "no spare can come" in result.error


def test_a_freeze_is_taken_back_after_its_time(run_dir: Path) -> None:
    stop = STOP | {"params": {"ttl_s": 0.2}}
    trial = Trial(run_dir, scenario(faults=[stop]), FakeRuntime(hang_s=10.0))
    result = trial.run()
    assert result.verdict is Verdict.PASS, result.to_json()
    (injected,), (reverted,) = trial.events("fault_injected"), trial.events("fault_reverted")
    assert reverted.data["alive"] is True
    assert 0.2 <= (reverted.at - injected.at) / 1e9 < 1.0
    assert [record.generation for record in result.recoveries] == [None]


def test_a_freeze_can_be_taken_back_by_request(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(faults=[STOP]), FakeRuntime(hang_s=10.0))

    def on(event: Event) -> None:
        if event.kind == "fault_injected":
            trial.directory.requests_file.write_text('{"revert": "stop", "reason": "enough"}\n')

    assert trial.run(on).verdict is Verdict.PASS
    assert [event.data["reason"] for event in trial.events("fault_reverted")] == ["asked for"]


def test_a_halt_thaws_what_is_frozen_and_keeps_the_next_fault_from_happening(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(faults=[STOP, KILL | {"trigger": {"at_step": 30}}]), FakeRuntime(hang_s=10.0))

    def on(event: Event) -> None:
        if event.kind == "fault_injected":
            trial.directory.requests_file.write_text('{"halt": true, "reason": "the rack smokes"}\n')

    result = trial.run(on)
    assert (result.verdict, result.steps_committed) == (Verdict.UNKNOWN, 40)
    (reverted,), (missed,) = trial.events("fault_reverted"), trial.events("fault_missed")
    assert (reverted.data["alive"], reverted.data["reason"]) == (True, "halted: the rack smokes")
    assert (missed.data["fault"], missed.data["reason"]) == ("kill", "halted: the rack smokes")
    assert [event.data["request"] for event in trial.events("request_taken")] == ["halt"]


def test_a_fault_in_the_recovery_from_another(run_dir: Path) -> None:
    again = {"id": "again", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"recovery_phase": "quiesce"}}
    trial = Trial(run_dir, scenario(faults=[KILL, again], cluster={"spares": 2}))
    result = trial.run()
    assert [event.data["fault"] for event in trial.events("fault_injected")] == ["kill", "again"]
    assert verdicts(result)["recovered"] == "PASS", result.to_json()


def test_cancel(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(steps=100_000))
    result = trial.run(at_step(5, lambda: trial.directory.request_cancel("lunch")))
    assert result.verdict is Verdict.UNKNOWN
    assert result.error == "cancelled: lunch"
    assert result.steps_committed >= 5


def test_interrupted(run_dir: Path) -> None:
    trial, stop = Trial(run_dir, scenario(steps=100_000, faults=[STOP]), FakeRuntime(hang_s=60.0)), SelfPipe()

    def on(event: Event) -> None:
        if event.kind == "fault_injected":
            stop.set("interrupted")

    result = trial.run(on, stop)
    stop.close()
    assert (result.verdict, result.error) == (Verdict.UNKNOWN, "interrupted")
    assert [event.data["alive"] for event in trial.events("fault_reverted")] == [True]


@pytest.mark.parametrize(("frozen", "verdict"), [(True, "FAIL"), (False, "UNKNOWN")])
def test_timeout(run_dir: Path, frozen: bool, verdict: str) -> None:
    faults = [STOP | {"trigger": {"now": True}}] if frozen else []
    trial = Trial(run_dir, scenario(steps=100_000, faults=faults, timeout_s=4.0), FakeRuntime(hang_s=60.0))
    result = trial.run()
    assert result.error == "not finished after 4 s (timeout_s)"
    assert result.checks["recovered"].verdict.value == verdict
    assert result.verdict.value == verdict


def test_a_runtime_that_ignores_sigterm_is_ended_all_the_same(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(steps=100_000, timeout_s=0.5), FakeRuntime(flaw="deaf"))
    assert trial.run().error == "not finished after 0.5 s (timeout_s)"


def test_a_workload_that_crashes_at_start_is_quoted(run_dir: Path) -> None:
    result = Trial(run_dir, scenario(faults=[KILL]), FakeRuntime(flaw="crash")).run()
    assert result.verdict is Verdict.UNKNOWN
    assert result.error is not None
    assert "exit code 1" in result.error
    assert "FileNotFoundError: no such text: /missing.txt" in result.error


@pytest.mark.parametrize(
    ("flaw", "check", "verdict"),
    [
        ("wrong", "twin", "FAIL"),
        ("wrong", "agreement", "FAIL"),
        ("leak", "no_leak", "FAIL"),
        ("amnesia", "twin", "UNKNOWN"),
        ("again", "data_once", "FAIL"),
    ],
)
def test_a_planted_violation_is_found(run_dir: Path, flaw: str, check: str, verdict: str) -> None:
    result = Trial(run_dir, scenario(faults=[KILL]), FakeRuntime(flaw=flaw)).run()
    assert result.checks[check].verdict.value == verdict
    assert result.verdict.value == verdict


def test_a_full_disk_is_told_and_ends_everything(run_dir: Path) -> None:
    trial = Trial(run_dir, scenario(faults=[KILL], steps=100_000))
    trial.directory.run.events.mkdir(parents=True)
    (trial.directory.run.events / "injector.jsonl").symlink_to("/dev/full")
    result = trial.run()
    assert result.verdict is Verdict.UNKNOWN
    assert result.error is not None and "No space left on device" in result.error
    assert set(verdicts(result).values()) == {"UNKNOWN"}


def test_what_cannot_be_run_is_refused_before_anything_starts(run_dir: Path) -> None:
    with pytest.raises(InvalidScenario, match="unknown runtime 'other'"):
        Trial(run_dir / "a", scenario(runtime="other")).run()
    trial = Trial(run_dir / "b", scenario(steps=3, checks=["fired"]))
    trial.run()
    with pytest.raises(TrialError, match="this trial is over"):
        trial.run()
    nowhere = TrialDirectory.create(run_dir / "c", scenario())
    nowhere.run.path.write_text("a file where a directory should be")
    with pytest.raises(TrialError, match="cannot write"):
        run_trial(nowhere, runtimes={"fake": FakeRuntime()})
    assert not nowhere.pid_file.exists()


def test_it_runs_in_any_thread(run_dir: Path) -> None:
    trial, results = Trial(run_dir, scenario(steps=5, checks=["agreement"])), list[Result]()
    thread = threading.Thread(target=lambda: results.append(trial.run()))
    thread.start()
    thread.join(20)
    assert [result.verdict for result in results] == [Verdict.PASS]
