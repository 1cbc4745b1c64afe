"""Each check passes on a good record, fails on a planted violation, and is UNKNOWN where something is missing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from chaos import checks
from chaos.checks import run_checks
from chaos.evidence import PartRecord, steps_committed
from chaos.leaks import LeakReport
from chaos.recoveries import RecoveryRecord, recovery_record, recovery_records
from chaos.scenario import CHECKS
from chaos.verdict import CheckResult, Verdict, worst
from phoenix_core.events import Event
from tests.records import (
    MS,
    STEPS,
    Events,
    changed,
    disturbed,
    event,
    evidence,
    is_commit,
    kind,
    scenario,
    step_of,
    undisturbed,
    without,
)


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


def test_a_missed_fault_never_passes_even_where_nobody_asked_whether_it_fired() -> None:
    silent = without(disturbed(), kind("fault_injected"))
    plan = replace(scenario(), checks=("agreement",))
    results = run_checks(evidence(silent, scenario=plan))
    assert {name: one.verdict for name, one in results.items()} == {
        "fired": Verdict.UNKNOWN,
        "agreement": Verdict.PASS,
    }
    assert list(run_checks(evidence(silent, scenario=plan, asked=[]))) == ["agreement"]


def test_a_fault_that_came_too_late_is_missed_and_a_refused_request_is_none() -> None:
    refused = event("fault_missed", 40, fault="bad", kind="meteor", reason="unknown fault kind")
    assert checks.fired(evidence([*disturbed(), refused])).verdict is Verdict.PASS
    plan = scenario()
    asked = [*plan.faults, replace(plan.faults[0], id="late")]
    late = event(
        "fault_missed", 200, fault="late", kind="process_kill", reason="the run was over when the request came"
    )
    result = checks.fired(evidence([*disturbed(), refused, late], asked=asked))
    assert (result.verdict, "late was missed: the run was over" in result.detail) == (Verdict.UNKNOWN, True)


def went_on_from_disk(*between: Event, kind: str = "checkpoint_truncate") -> Events:
    """The checkpoint of step 2 is hit in step 2, and all is lost at once: the job goes on from the disk."""
    receipt = {"fault": "f", "kind": kind, "trigger": {"at_step": 2}, "proof": {"checkpoint": "step-00000002"}}
    events = without(disturbed(), lambda one: one.kind in ("fault_injected", "generation_resumed"))
    return [
        *(one for one in events if one.at < 44 * MS),
        event("fault_injected", 31, worker="w1", rank=1, **receipt),
        *between,
        event("state_restored", 45, worker="w2", rank=1, generation=1, boundary=2, source="disk"),
        event("generation_resumed", 46, generation=1, step=2),
    ]


@pytest.mark.parametrize("hit", ["truncate", "corrupt", "partial", "move"])
def test_a_checkpoint_that_serves_was_not_damaged(hit: str) -> None:
    result = checks.fired(evidence(went_on_from_disk(kind=f"checkpoint_{hit}")))
    assert result.verdict is Verdict.FAIL
    claim = f"f: the receipt says checkpoint_{hit} of the checkpoint of step 2"
    assert result.detail == f"{claim}, but the job went on from it 0.0 s later"


def test_a_checkpoint_that_is_whole_again_may_serve() -> None:
    again = step_of("w0", 0, 1, 1, 36)
    assert checks.fired(evidence(went_on_from_disk(*again))).verdict is Verdict.PASS
    back = event("fault_reverted", 40, worker="w1", fault="f", kind="checkpoint_move", alive=True)
    assert checks.fired(evidence(went_on_from_disk(back, kind="checkpoint_move"))).verdict is Verdict.PASS
    other = changed(went_on_from_disk(), kind("fault_injected"), proof={"checkpoint": "step-00000004"})
    assert checks.fired(evidence(other)).verdict is Verdict.PASS


def test_who_wanted_no_memory_while_it_got_none_has_met_no_fault() -> None:
    begun = changed(disturbed(), kind("fault_injected"), kind="process_oom")
    for alive, verdict in ((True, Verdict.UNKNOWN), (False, Verdict.PASS)):
        back = event("fault_reverted", 60, worker="w1", fault="f", kind="process_oom", alive=alive, proof={})
        assert checks.fired(evidence([*begun, back])).verdict is verdict


@pytest.mark.parametrize(("at_ms", "error", "verdict"), [
    (70, "No space left on device", Verdict.PASS), (70, "", Verdict.UNKNOWN), (5, "No space left", Verdict.UNKNOWN),
])  # fmt: skip
def test_a_full_disk_on_which_nobody_wrote_proves_nothing(at_ms: float, error: str, verdict: Verdict) -> None:
    full = changed(disturbed(), kind("fault_injected"), kind="disk_full")
    written = event("checkpoint_written", at_ms, worker="w0", rank=0, step=2, error=error)
    over = event("fault_reverted", 90, worker="w1", fault="f", kind="disk_full", proof={"free_bytes": 7})
    assert checks.fired(evidence(sorted([*full, written, over], key=lambda one: one.at))).verdict is verdict


@pytest.mark.parametrize(("times", "verdict"), [(0, Verdict.UNKNOWN), (3, Verdict.PASS)])
@pytest.mark.parametrize(
    ("fault", "counted"), [("disk_slow", "operations"), ("straggle", "steps"), ("cpu_throttle", "nr_throttled")]
)
def test_what_lasted_and_slowed_nobody_proves_nothing(fault: str, counted: str, times: int, verdict: Verdict) -> None:
    slow = changed(disturbed(), kind("fault_injected"), kind=fault)
    over = event("fault_reverted", 90, worker="w1", fault="f", kind=fault, proof={counted: times})
    assert checks.fired(evidence([*slow, over])).verdict is verdict


@pytest.mark.parametrize(
    ("meant", "at_ms", "said"),
    [
        ("replace", 35, ""),
        ("quiesce", 35, ""),
        ("reconstruct", 40.5, ""),
        ("replace", 40.5, "g was meant for replace, but hit reconstruct: too late"),
        ("restore", 60, "g was meant for restore, but hit no recovery: too late"),
    ],
)
def test_fired_is_unknown_when_another_part_of_a_recovery_was_hit(meant: str, at_ms: float, said: str) -> None:
    receipt = {"fault": "g", "kind": "process_kill", "pid": 8, "fidelity": "real", "trigger": {"recovery_phase": meant}}
    events = [*disturbed(), event("fault_injected", at_ms, worker="w9", rank=0, **receipt)]
    result = checks.fired(evidence(sorted(events, key=lambda one: one.at)))
    assert (result.verdict, result.detail) == (
        (Verdict.UNKNOWN, said) if said else (Verdict.PASS, "2 faults injected, as the receipts say")
    )


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


@pytest.mark.parametrize(("sent_at", "verdict"), [(1, Verdict.PASS), (-1, Verdict.UNKNOWN)])
def test_a_snapshot_is_copied_beside_the_training_until_it_is_sent(sent_at: float, verdict: Verdict) -> None:
    """By then the main thread of its rank is in the forward pass."""
    events = changed(disturbed(), kind("fault_injected"), trigger={"phase": "snapshot_copy", "step": 1})
    (killed,) = (one.at / MS for one in events if one.kind == "fault_injected")
    phases = {-3.0: "snapshot_copy", sent_at: "replica_send", -0.5: "forward"}
    told = [event("phase_entered", killed + at, worker="w1", step=1, phase=phase) for at, phase in phases.items()]
    assert checks.fired(evidence(sorted([*events, *told], key=lambda one: one.at))).verdict is verdict


def test_a_frozen_process_may_work_after_it_was_resumed() -> None:
    frozen = changed(disturbed(), kind("fault_injected"), kind="process_stop")
    late = step_of("w1", 1, 0, 2, 31 + 1500)
    assert checks.fired(evidence(frozen + late)).verdict is Verdict.FAIL
    resumed = event("fault_reverted", 31 + 1400, worker="w1", fault="f", kind="process_stop", alive=True)
    assert checks.fired(evidence([*frozen, resumed, *late])).verdict is Verdict.PASS


def test_a_rank_whose_network_was_cut_may_speak_but_the_heal_must_have_been_seen() -> None:
    parted = changed(disturbed(), kind("fault_injected"), kind="network_partition")
    alive = [*parted, *step_of("w1", 1, 0, 2, 31 + 1500)]
    assert checks.fired(evidence(alive)).verdict is Verdict.PASS
    for healed, proof, verdict in (
        (True, {"a": 1}, Verdict.PASS),
        (False, {"a": 1}, Verdict.FAIL),
        (False, {"unknown": "the nodes cannot be entered"}, Verdict.UNKNOWN),
    ):
        end = event("fault_reverted", 90, worker="w1", fault="f", kind="network_partition", alive=healed, proof=proof)
        assert checks.fired(evidence([*parted, end])).verdict is verdict


def test_what_a_later_fault_did_is_not_blamed_on_a_network_that_had_healed() -> None:
    cut = {"fault": "c", "kind": "network_partition", "pid": 7, "fidelity": "real", "trigger": {"at_step": 1}}
    begun = event("fault_injected", 22, worker="w1", rank=1, **cut)
    healed = event("fault_reverted", 25, worker="w1", fault="c", kind="network_partition", alive=True, proof={})
    for events, verdict in (([begun, healed], Verdict.PASS), ([begun], Verdict.FAIL)):
        assert run_checks(evidence([*events, *disturbed()]))["attribution"].verdict is verdict


def test_a_run_without_faults_has_nothing_to_fire() -> None:
    quiet = evidence(undisturbed(), scenario=scenario(faults=[]))
    assert all(result.verdict is Verdict.PASS for result in run_checks(quiet).values())


# --- recovered ---


def test_recovered_passes_where_connections_broke_and_the_same_ranks_met_anew() -> None:
    receipt = {"fault": "f", "kind": "network_reset", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    hit = [*undisturbed(), event("fault_injected", 31, worker="w1", rank=1, **receipt)]
    assert checks.recovered(evidence(hit)).verdict is Verdict.FAIL
    again = [
        event("collective_broken", 32, worker="w0", rank=0, generation=0, reason="reset"),
        event("generation_resumed", 33, generation=1, step=2),
    ]
    result = checks.recovered(evidence([*hit, *again]))
    assert result == CheckResult(verdict=Verdict.PASS, detail="1 broken connection after which the same ranks went on")


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


def test_what_was_taken_back_in_time_is_not_what_a_job_failed_by() -> None:
    unnoticed = [one for one in disturbed() if one.at < 32 * MS]
    over = event("fault_reverted", 40, worker="w1", rank=1, fault="f", kind="network_rate", alive=True, proof={})
    failed = PartRecord(events=[*unnoticed, over], completed=False, error="not finished after 300 s")
    result = checks.recovered(evidence(run=failed))
    assert result.verdict is Verdict.FAIL
    assert "the job did not complete: not finished after 300 s" in result.detail


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


def test_a_recovery_that_begins_anew_since_a_copy_is_damaged_is_that_of_the_same_fault() -> None:
    events = [one for one in disturbed() if one.at < 45 * MS]
    (begun,) = recovery_records(events)
    events += [
        event("restore_failed", 45, worker="w2", rank=1, generation=1, reason="the checkpoint is damaged"),
        event("world_formed", 46, generation=2, ranks=["w0", "w2"], spares=[], joining=[1]),
        event("state_restored", 50, worker="w2", rank=1, generation=2, boundary=2),
        event("generation_resumed", 51, generation=2, step=2),
        *(
            one
            for step in (2, 3)
            for rank, worker in enumerate(("w0", "w2"))
            for one in step_of(worker, rank, 2, step, 60)
        ),
    ]
    (record,) = recovery_records(events)
    assert (record.fault, record.blamed) == (begun.fault, begun.blamed)
    assert (record.generation, record.resume_step) == (2, 2)
    assert record.phases["detect"] == begun.phases["detect"]
    assert record.recovery_s is not None and sum(s or 0.0 for s in record.phases.values()) == pytest.approx(
        record.recovery_s
    )


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


def hit_spare(fault: str, worker: str, at_ms: float) -> Event:
    receipt = {"fault": fault, "kind": "process_kill", "pid": 7, "fidelity": "real", "trigger": {"now": True}}
    return event("fault_injected", at_ms, worker=worker, node="n2", **receipt)


def new_spare(worker: str, node: str, at_ms: float) -> Events:
    spawned = event("worker_spawned", at_ms, worker=worker, node=node, pid=9, start_ticks=1)
    return [spawned, event("spare_parked", at_ms + 10, worker=worker, node=node)]


def test_a_lost_spare_is_recovered_when_a_new_one_is_parked() -> None:
    events = [*undisturbed(), *new_spare("w2", "n2", 0), hit_spare("f", "w2", 31)]
    assert checks.recovered(evidence(events)).detail == "f: the job ended before anyone noticed the loss of spare w2"
    events.append(event("failure_detected", 40, worker="w2", generation=0, cause="exit", detail=""))
    unreplaced = checks.recovered(evidence(events))
    assert (unreplaced.verdict, "before a new spare was parked" in unreplaced.detail) == (Verdict.UNKNOWN, True)
    healed = evidence(events + new_spare("w3", "n2", 50))
    assert checks.recovered(healed) == CheckResult(verdict=Verdict.PASS, detail="1 lost spare replaced")
    (record,) = recovery_records(healed.run.events)
    assert record.replacement == {"worker": "w3", "after_s": pytest.approx(0.029)}
    assert (record.target, record.recovery_s, record.generation) == ({"rank": None, "worker": "w2"}, None, None)
    assert set(record.phases.values()) == {None}
    assert RecoveryRecord.from_json(record.to_json()) == record


def test_two_lost_spares_need_two_new_ones() -> None:
    events = [*undisturbed(), hit_spare("f", "w2", 31), hit_spare("g", "w3", 32), *new_spare("w4", "n2", 50)]
    assert checks.recovered(evidence(events)).verdict is Verdict.UNKNOWN
    both = recovery_records(events + new_spare("w5", "n9", 40))
    assert [record.replacement and record.replacement["worker"] for record in both] == ["w4", "w5"]


def test_a_result_of_an_earlier_version_can_still_be_read() -> None:
    told = recovery_record(evidence().outcomes[0]).to_json()
    del told["replacement"]
    assert RecoveryRecord.from_json(told).replacement is None


def test_a_freeze_shorter_than_the_detector_needs_no_recovery() -> None:
    receipt = {"fault": "f", "kind": "process_stop", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    events = [*undisturbed(), event("fault_injected", 31, worker="w1", rank=1, **receipt)]
    assert checks.recovered(evidence(events)).verdict is Verdict.FAIL
    events.append(event("fault_reverted", 60, worker="w1", fault="f", kind="process_stop", alive=True))
    assert checks.recovered(evidence(events)).verdict is Verdict.PASS


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
    "left",
    [
        {"processes": ("python (pid 7)",)},
        {"shared_memory": ("torch_7",)},
        {"sockets": ("/x/agent.sock",)},
        {"namespaces": ("net:[4026532]",)},
        {"mounts": ("/x/mnt",)},
        {"cgroups": ("user.slice/phoenix-7-1",)},
        {"files": ("phoenix-7.lock",)},
    ],
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
    assert told["checks"] == {"recovered": "PASS"}, "of checks that nobody asked for nothing is said"
    assert recovery_record(outcome).to_json()["checks"] == dict.fromkeys(CHECKS, "UNKNOWN"), "none has been run yet"


def receipt(fault: str, kind: str, at_ms: float, worker: str, rank: int | None = None) -> Event:
    data = {"fault": fault, "kind": kind, "pid": 7, "fidelity": "real", "trigger": {"now": True}}
    return event("fault_injected", at_ms, worker=worker, rank=rank, **data)


def test_who_was_slow_and_is_quick_again_does_not_explain_a_later_death() -> None:
    slow = [
        receipt("slow", "straggle", 15, "w1", 1),
        event("fault_reverted", 25, worker="w1", rank=1, fault="slow", kind="straggle", alive=True, reason="over"),
    ]
    found = evidence(disturbed() + slow)
    by_name = {str(outcome.fault.data["fault"]): outcome for outcome in found.outcomes if outcome.fault}
    assert by_name["slow"].recovery is None and by_name["f"].recovery is not None
    result = checks.recovered(found)
    assert result.verdict is Verdict.PASS and "1 fault through which the job went on" in result.detail


def test_a_quiet_fault_needs_no_recovery_but_the_job_must_go_on() -> None:
    quiet = [*undisturbed(), receipt("s", "snapshot_bitflip", 15, "w1", 1)]
    assert checks.recovered(evidence(quiet)).verdict is Verdict.PASS
    loud = [*undisturbed(), receipt("s", "gradient_bitflip", 15, "w1", 1)]
    assert checks.recovered(evidence(loud)).verdict is Verdict.FAIL, "nobody noticed what somebody should have"
    broken = PartRecord(events=quiet, completed=False, error="it broke")
    assert checks.recovered(evidence(quiet, run=broken)).verdict is Verdict.FAIL


def test_a_coordinator_is_replaced_by_another_one_and_by_no_spare() -> None:
    killed = [*undisturbed(), receipt("c", "process_kill", 15, "coordinator")]
    parked = event("spare_parked", 40, worker="w9")
    spawned = event("worker_spawned", 30, worker="w9", pid=9, start_ticks=9)
    assert checks.recovered(evidence([*killed, spawned, parked])).verdict is Verdict.UNKNOWN
    led = event("coordinator_started", 20, pid=8, start_ticks=8)
    result = checks.recovered(evidence([*killed, led]))
    assert result.verdict is Verdict.PASS and "1 coordinator replaced" in result.detail
    ended = PartRecord(events=killed, completed=False, error="the job ended")
    assert checks.recovered(evidence(killed, run=ended)).verdict is Verdict.FAIL
