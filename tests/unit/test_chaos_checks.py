"""Each check passes on a good record, fails on a planted violation, and is UNKNOWN where something is missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos import checks
from chaos.checks import Evidence, PartRecord, run_checks, steps_committed
from chaos.leaks import LeakReport
from chaos.recoveries import RecoveryRecord, recovery_record, recovery_records
from chaos.scenario import Cluster, Scenario
from chaos.verdict import CheckResult, Verdict, worst
from phoenix_core.events import Event

MS = 1_000_000
STEPS = 4
Events = list[Event]


def event(name: str, at_ms: float, /, **fields: Any) -> Event:
    named = {field: fields.pop(field) for field in ("worker", "rank", "generation", "step", "node") if field in fields}
    return Event(kind=name, at=round(at_ms * MS), **named, data=fields)


def loss(rank: int, step: int) -> float:
    return 1.0 / (1 + rank + 10 * step)


def step_of(worker: str, rank: int, generation: int, step: int, at_ms: float) -> Events:
    who: dict[str, Any] = {"worker": worker, "rank": rank, "generation": generation, "step": step}
    return [
        event("phase_entered", at_ms, **who, phase="forward"),
        event("step_committed", at_ms + 5, **who, duration_ns=5 * MS, loss=loss(rank, step)),
    ]


def undisturbed() -> Events:
    events = [event("world_formed", 0, generation=0, ranks=["w0", "w1"], spares=[])]
    for rank in (0, 1):
        for step in range(STEPS):
            events += step_of(f"w{rank}", rank, 0, step, 10 + 10 * step)
        events.append(event("state_digest", 100, worker=f"w{rank}", rank=rank, generation=0, digest="d" * 64))
    return events


def disturbed() -> Events:
    """Rank 1 is killed in step 2, which rank 0 commits all the same; w2 takes its place and goes on with step 3."""
    events = [event("world_formed", 0, generation=0, ranks=["w0", "w1"], spares=["w2"])]
    for step in range(2):
        events += step_of("w0", 0, 0, step, 10 + 10 * step) + step_of("w1", 1, 0, step, 10 + 10 * step)
    events += step_of("w0", 0, 0, 2, 30)
    receipt = {"fault": "f", "kind": "process_kill", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    events += [
        event("fault_injected", 31, worker="w1", rank=1, **receipt),
        event("worker_exited", 32, worker="w1", pid=7, code=-9),
        event("failure_detected", 33, worker="w1", rank=1, generation=1, cause="exit", detail=""),
        event("spare_assigned", 33, worker="w2", rank=1, generation=1),
        event("world_formed", 34, generation=1, ranks=["w0", "w2"], spares=[], joining=[1]),
        event("worker_quiesced", 36, worker="w0", rank=0, generation=1, boundary=3),
        event("model_built", 40, worker="w2", rank=1, generation=1),
        event("communicator_ready", 41, worker="w0", rank=0, generation=1),
        event("communicator_ready", 42, worker="w2", rank=1, generation=1),
        event("state_restored", 45, worker="w2", rank=1, generation=1, boundary=3),
        event("generation_resumed", 46, generation=1, step=3),
    ]
    events += step_of("w0", 0, 1, 3, 50) + step_of("w2", 1, 1, 3, 50)
    for rank, worker in enumerate(("w0", "w2")):
        events.append(event("state_digest", 100, worker=worker, rank=rank, generation=1, digest="d" * 64))
    return events


def scenario(**changes: Any) -> Scenario:
    faults = [{"id": "f", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 2}}]
    document = {"name": "x", "workload": "gpt-tiny", "steps": STEPS, "faults": faults, **changes}
    return replace(Scenario.from_json(document), cluster=Cluster(nodes=2, ranks_per_node=1, spares=1))


def evidence(events: Events | None = None, **changes: Any) -> Evidence:
    plan = changes.pop("scenario", scenario())
    values: dict[str, Any] = {
        "scenario": plan,
        "asked": plan.faults,
        "run": PartRecord(events=disturbed() if events is None else events, completed=True),
        "twin": PartRecord(events=undisturbed(), completed=True),
        "leaks": LeakReport(),
        **changes,
    }
    return Evidence(**values)


def without(events: Events, unwanted: Callable[[Event], bool]) -> Events:
    return [one for one in events if not unwanted(one)]


def changed(events: Events, which: Callable[[Event], bool], **data: Any) -> Events:
    """The first event that fits, with other data."""
    index = next(index for index, one in enumerate(events) if which(one))
    altered = replace(events[index], data={**events[index].data, **data})
    return [*events[:index], altered, *events[index + 1 :]]


def is_commit(rank: int, step: int) -> Callable[[Event], bool]:
    return lambda one: one.kind == "step_committed" and (one.rank, one.step) == (rank, step)


def kind(name: str) -> Callable[[Event], bool]:
    return lambda one: one.kind == name


def test_a_good_record_passes_all() -> None:
    results = run_checks(evidence())
    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(scenario().checks, Verdict.PASS)
    assert all(result.detail for result in results.values())


def test_the_order_of_the_events_of_one_instant_changes_nothing() -> None:
    shuffled = disturbed()
    random.Random(3).shuffle(shuffled)
    ordered = sorted(shuffled, key=lambda one: one.at)
    assert all(result.verdict is Verdict.PASS for result in run_checks(evidence(ordered)).values())


# --- fired ---


def test_fired_is_unknown_without_a_receipt_or_when_missed() -> None:
    silent = without(disturbed(), kind("fault_injected"))
    assert checks.fired(evidence(silent)).verdict is Verdict.UNKNOWN
    missed = [*silent, event("fault_missed", 90, fault="f", kind="process_kill", reason="rank 1 has ended")]
    result = checks.fired(evidence(missed))
    assert (result.verdict, "rank 1 has ended" in result.detail) == (Verdict.UNKNOWN, True)


def test_fired_fails_when_the_dead_go_on_working() -> None:
    ghost = [*disturbed(), *step_of("w1", 1, 0, 2, 31 + 1500)]
    result = checks.fired(evidence(ghost))
    assert result.verdict is Verdict.FAIL
    assert "w1" in result.detail


@pytest.mark.parametrize(("meant", "verdict"), [("forward", Verdict.PASS), ("optimizer", Verdict.UNKNOWN)])
def test_fired_is_unknown_when_another_phase_was_hit(meant: str, verdict: Verdict) -> None:
    events = changed(disturbed(), kind("fault_injected"), trigger={"phase": meant, "step": 1, "occurrence": 1})
    result = checks.fired(evidence(events))
    assert result.verdict is verdict
    assert verdict is Verdict.PASS or "hit w1 in forward of step 1" in result.detail


def test_a_frozen_process_may_work_after_it_was_resumed() -> None:
    frozen = changed(disturbed(), kind("fault_injected"), kind="process_stop")
    late = step_of("w1", 1, 0, 2, 31 + 1500)
    assert checks.fired(evidence(frozen + late)).verdict is Verdict.FAIL
    resumed = event("fault_reverted", 31 + 1400, worker="w1", fault="f", kind="process_stop", alive=True)
    assert checks.fired(evidence([*frozen, resumed, *late])).verdict is Verdict.PASS


def test_a_run_without_faults_has_nothing_to_fire() -> None:
    quiet = evidence(undisturbed(), scenario=scenario(faults=[]))
    assert all(result.verdict is Verdict.PASS for result in run_checks(quiet).values())


# --- recovered ---


@pytest.mark.parametrize("missing", ["state_restored", "worker_quiesced", "generation_resumed"])
def test_recovered_fails_where_the_recovery_did_not_end(missing: str) -> None:
    cut = [one for one in disturbed() if one.at < 46 * MS and one.kind != missing]
    failed = PartRecord(events=cut, completed=False, error="not finished after 300 s")
    result = checks.recovered(evidence(run=failed))
    assert result.verdict is Verdict.FAIL
    assert "not finished after 300 s" in result.detail


def test_recovered_fails_where_nobody_noticed() -> None:
    unnoticed = [one for one in disturbed() if one.at < 32 * MS]
    result = checks.recovered(evidence(run=PartRecord(events=unnoticed, completed=False)))
    assert (result.verdict, "nobody noticed" in result.detail) == (Verdict.FAIL, True)


def test_recovered_fails_where_steps_are_missing_at_the_end() -> None:
    short = without(disturbed(), lambda one: one.kind == "step_committed" and one.step == 3)
    resumed_only = evidence(short)
    assert checks.recovered(resumed_only).verdict is not Verdict.PASS


def test_a_superseded_recovery_is_finished_by_the_next() -> None:
    """w2 is killed while it restores; w3 comes, and the record tells of both faults."""
    events = [one for one in disturbed() if one.at < 45 * MS]
    receipt = {"fault": "g", "kind": "process_kill", "pid": 8, "fidelity": "real", "trigger": {"now": True}}
    events += [
        event("fault_injected", 45, worker="w2", rank=1, **receipt),
        event("failure_detected", 46, worker="w2", rank=1, generation=2, cause="exit", detail=""),
        event("world_formed", 46, generation=2, ranks=["w0", "w3"], spares=[], joining=[1]),
        event("worker_quiesced", 47, worker="w0", rank=0, generation=2, boundary=3),
        event("model_built", 48, worker="w3", rank=1, generation=2),
        event("communicator_ready", 49, worker="w3", rank=1, generation=2),
        event("state_restored", 50, worker="w3", rank=1, generation=2, boundary=3),
        event("generation_resumed", 51, generation=2, step=3),
        *step_of("w0", 0, 2, 3, 60),
        *step_of("w3", 1, 2, 3, 60),
        event("state_digest", 100, worker="w0", rank=0, generation=2, digest="d" * 64),
        event("state_digest", 100, worker="w3", rank=1, generation=2, digest="d" * 64),
    ]
    plan = scenario(
        faults=[
            {"id": "f", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 2}},
            {"id": "g", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"now": True}},
        ]
    )
    both = evidence(events, scenario=plan)
    assert [outcome.fault.data["fault"] for outcome in both.outcomes if outcome.fault] == ["f", "g"]
    assert checks.recovered(both).verdict is Verdict.PASS


def test_two_faults_that_end_one_generation_share_its_recovery() -> None:
    events = disturbed()
    receipt = {"fault": "g", "kind": "process_kill", "pid": 6, "fidelity": "real", "trigger": {"at_step": 2}}
    at = next(index for index, one in enumerate(events) if one.kind == "spare_assigned")
    events[at:at] = [
        event("fault_injected", 31.5, worker="w0", rank=0, **receipt),
        event("failure_detected", 33, worker="w0", rank=0, generation=1, cause="exit", detail=""),
    ]
    records = recovery_records(events)
    assert [record.fault and record.fault["id"] for record in records] == ["f", "g"]
    assert [record.generation for record in records] == [1, 1]
    assert [record.blamed and record.blamed["worker"] for record in records] == ["w1", "w0"]


def test_a_job_that_never_started_says_nothing_about_recovery() -> None:
    broken = PartRecord(events=[], completed=False, error="the job failed (exit code 2): no such file")
    result = checks.recovered(evidence(run=broken))
    assert (result.verdict, "no such file" in result.detail) == (Verdict.UNKNOWN, True)


def test_the_loss_of_a_spare_must_be_noticed() -> None:
    events = undisturbed()
    receipt = {"fault": "f", "kind": "process_kill", "pid": 7, "fidelity": "real", "trigger": {"now": True}}
    events.append(event("fault_injected", 31, worker="w2", **receipt))
    assert checks.recovered(evidence(events)).verdict is Verdict.UNKNOWN
    events.append(event("failure_detected", 40, worker="w2", generation=0, cause="exit", detail=""))
    assert checks.recovered(evidence(events)).verdict is Verdict.PASS


def test_a_freeze_shorter_than_the_detector_needs_no_recovery() -> None:
    receipt = {"fault": "f", "kind": "process_stop", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    events = [*undisturbed(), event("fault_injected", 31, worker="w1", rank=1, **receipt)]
    assert checks.recovered(evidence(events)).verdict is Verdict.FAIL
    events.append(event("fault_reverted", 60, worker="w1", fault="f", kind="process_stop", alive=True))
    assert checks.recovered(evidence(events)).verdict is Verdict.PASS


# --- twin ---


@pytest.mark.parametrize("other", [loss(0, 3) * (1 + 2**-52), float("nan"), -0.0, "text"])
def test_twin_fails_on_one_differing_bit(other: object) -> None:
    result = checks.twin(evidence(changed(disturbed(), is_commit(0, 3), loss=other)))
    assert result.verdict is Verdict.FAIL
    assert "loss of rank 0 at step 3" in result.detail


def test_twin_takes_nan_for_equal_to_itself() -> None:
    ours = changed(disturbed(), is_commit(0, 3), loss=float("nan"))
    theirs = PartRecord(events=changed(undisturbed(), is_commit(0, 3), loss=float("nan")), completed=True)
    assert checks.twin(evidence(ours, twin=theirs)).verdict is Verdict.PASS


def test_twin_fails_on_another_digest() -> None:
    events = changed(disturbed(), kind("state_digest"), digest="e" * 64)
    assert checks.twin(evidence(events)).verdict is Verdict.FAIL


def test_twin_fails_when_a_step_done_twice_disagrees_with_itself() -> None:
    twice = disturbed()
    at = next(index for index, one in enumerate(twice) if is_commit(1, 1)(one))
    twice.insert(at, replace(twice[at], data={**twice[at].data, "loss": 0.5}))
    result = checks.twin(evidence(twice))
    assert (result.verdict, "twice" in result.detail) == (Verdict.FAIL, True)


def test_a_step_done_twice_with_the_same_result_is_fine() -> None:
    twice = disturbed()
    at = next(index for index, one in enumerate(twice) if is_commit(1, 1)(one))
    twice.insert(at, replace(twice[at], data={**twice[at].data, "duration_ns": 1}))
    assert checks.twin(evidence(twice)).verdict is Verdict.PASS


def test_what_the_runtime_adds_to_a_commit_is_not_compared() -> None:
    told = changed(disturbed(), is_commit(1, 3), restored=True)
    assert checks.twin(evidence(told)).verdict is Verdict.PASS


def test_only_a_step_that_was_handed_over_may_be_missing() -> None:
    # Rank 1 never reported step 2 (it was killed in it, and given rank 0's state): see `disturbed`.
    assert checks.twin(evidence()).verdict is Verdict.PASS
    assert checks.twin(evidence(without(disturbed(), is_commit(1, 1)))).verdict is Verdict.UNKNOWN
    assert checks.twin(evidence(without(disturbed(), is_commit(0, 2)))).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "missing",
    [
        {"twin": None},
        {"twin": PartRecord(events=undisturbed(), completed=False)},
        {"run": PartRecord(events=disturbed(), completed=False)},
        {"twin": PartRecord(events=without(undisturbed(), kind("state_digest")), completed=True)},
        {"run": PartRecord(events=[], completed=True)},
        {"run": PartRecord(events=[], completed=True), "twin": PartRecord(events=[], completed=True)},
    ],
)
def test_twin_is_unknown_where_something_is_missing(missing: dict[str, Any]) -> None:
    assert checks.twin(evidence(**missing)).verdict is Verdict.UNKNOWN


# --- agreement, no_leak, all ---


def test_sharded_ranks_need_not_agree() -> None:
    one_differs = changed(disturbed(), kind("state_digest"), digest="e" * 64)
    sharded = [replace(e, data={**e.data, "sharded": True}) if e.kind == "state_digest" else e for e in one_differs]
    assert checks.agreement(evidence(sharded)).verdict is Verdict.PASS


def test_agreement() -> None:
    result = checks.agreement(evidence(changed(disturbed(), kind("state_digest"), digest="e" * 64)))
    assert result.verdict is Verdict.FAIL
    one_only = without(disturbed(), lambda one: one.kind == "state_digest" and one.rank == 1)
    assert checks.agreement(evidence(one_only)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "left", [{"processes": ("python (pid 7)",)}, {"shared_memory": ("torch_7",)}, {"sockets": ("/x/agent.sock",)}]
)
def test_no_leak(left: dict[str, Any]) -> None:
    result = checks.no_leak(evidence(leaks=LeakReport(**left)))
    assert result.verdict is Verdict.FAIL
    assert next(iter(left.values()))[0] in result.detail
    assert checks.no_leak(evidence(leaks=None)).verdict is Verdict.UNKNOWN


def test_a_crashed_check_is_unknown() -> None:
    rotten = [*disturbed(), event("state_digest", 101, worker="w0", rank="zero")]
    result = run_checks(evidence(rotten))["agreement"]
    assert (result.verdict, "the check itself failed" in result.detail) == (Verdict.UNKNOWN, True)


def test_the_worst_verdict_wins_and_nothing_is_unknown() -> None:
    assert worst([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert worst([Verdict.UNKNOWN, Verdict.FAIL, Verdict.PASS]) is Verdict.FAIL
    assert worst([]) is Verdict.UNKNOWN
    result = CheckResult(verdict=Verdict.FAIL, detail="x")
    assert CheckResult.from_json(result.to_json()) == result


def test_steps_committed_counts_what_all_have() -> None:
    assert steps_committed(undisturbed(), 2) == STEPS
    assert steps_committed(without(undisturbed(), is_commit(1, 3)), 2) == 3
    assert steps_committed(undisturbed(), 3) == 0
    # Rank 1 never committed step 2, but was handed a state that contains it.
    assert steps_committed([one for one in disturbed() if one.at < 47 * MS], 2) == 3


def test_one_recovery_as_json() -> None:
    (outcome,) = evidence().outcomes
    record = recovery_record(outcome, {"recovered": Verdict.PASS})
    told = record.to_json()
    assert RecoveryRecord.from_json(told) == record
    assert told["fault"] == {
        "id": "f",
        "kind": "process_kill",
        "trigger": {"at_step": 2},
        "fidelity": "real",
        "hit": {"phase": "forward", "step": 1},
    }
    assert told["target"] == {"rank": 1, "worker": "w1"}
    assert told["blamed"] == {"rank": 1, "worker": "w1", "cause": "exit"}
    assert list(told["phases"]) == ["detect", "quiesce", "replace", "reconstruct", "restore", "recompute"]  # type: ignore[call-overload]
    assert sum(record.phases.values()) == pytest.approx(record.recovery_s)  # type: ignore[arg-type]
    assert told["checks"] == {
        "fired": "UNKNOWN",
        "recovered": "PASS",
        "twin": "UNKNOWN",
        "agreement": "UNKNOWN",
        "no_leak": "UNKNOWN",
    }
