"""Attribution and data once: they pass on a good record and fail on a planted violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.attribution import CAUSES, attribution, judge_blame
from chaos.data_once import data_once
from chaos.evidence import PartRecord
from chaos.kinds import FAULT_KINDS
from chaos.recoveries import FaultOutcome
from chaos.verdict import Verdict
from phoenix_core.timeline import Failure
from tests.records import Events, changed, disturbed, event, evidence, is_commit, kind, scenario, undisturbed, without


def blamed(worker: str, rank: int, cause: str = "exit") -> Events:
    """The good record, but the detector names somebody else, or something else."""
    told = [replace(one, worker=worker, rank=rank) if one.kind == "failure_detected" else one for one in disturbed()]
    return changed(told, kind("failure_detected"), cause=cause)


def test_the_right_rank_and_cause_pass() -> None:
    result = attribution(evidence())
    assert (result.verdict, result.detail) == (
        Verdict.PASS,
        "1 fault blamed on those that were hit, for a cause that fits",
    )


def test_the_wrong_rank_fails() -> None:
    result = attribution(evidence(blamed("w0", 0)))
    assert (result.verdict, result.detail) == (Verdict.FAIL, "f: hit rank 1 (w1), but rank 0 (w0) as exit was blamed")


def test_the_wrong_cause_fails() -> None:
    result = attribution(evidence(blamed("w1", 1, "no_progress")))
    assert (result.verdict, "process_kill was taken for no_progress" in result.detail) == (Verdict.FAIL, True)


def test_a_healthy_rank_beside_the_right_one_fails() -> None:
    also = event("failure_detected", 33, worker="w0", rank=0, generation=1, cause="no_progress", detail="")
    assert attribution(evidence([*disturbed(), also])).verdict is Verdict.FAIL


def test_another_worker_of_the_node_that_was_hit_is_no_stranger() -> None:
    spawned = [event("worker_spawned", 0, worker=f"w{rank}", node="n0", pid=rank, start_ticks=1) for rank in (0, 1)]
    on_node = [replace(one, node="n0") if one.kind == "fault_injected" else one for one in blamed("w0", 0, "node_lost")]
    result = attribution(evidence([*spawned, *on_node]))
    assert (result.verdict, "only rank 0 (w0) as node_lost was blamed" in result.detail) == (Verdict.UNKNOWN, True)


def test_a_failure_that_nobody_injected_may_be_an_end_but_no_suspicion() -> None:
    quiet = [one for one in disturbed() if one.kind != "fault_injected"]
    plan = scenario(faults=[])
    assert attribution(evidence(quiet, scenario=plan)).verdict is Verdict.PASS
    suspected = changed(quiet, kind("failure_detected"), cause="no_progress")
    result = attribution(evidence(suspected, scenario=plan))
    assert (result.verdict, "nothing had been injected there" in result.detail) == (Verdict.FAIL, True)


def test_nobody_named_where_nobody_had_to_be() -> None:
    assert (
        attribution(evidence(undisturbed(), scenario=scenario(faults=[]))).detail
        == "nobody had to be blamed, and nobody was"
    )


def slowed(**named: Any) -> Events:
    receipt = {"fault": "f", "kind": "straggle", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    told = [event("straggler_suspected", 40, waiting_s=1.0, of_s=2.0, **named)] if named else []
    return [*undisturbed(), event("fault_injected", 31, worker="w1", rank=1, **receipt), *told]


@pytest.mark.parametrize(
    ("named", "verdict"),
    [
        ({"worker": "w1", "rank": 1}, Verdict.PASS),
        ({"worker": "w0", "rank": 0}, Verdict.FAIL),
        ({}, Verdict.UNKNOWN),
    ],
)
def test_a_straggler_is_named_and_nobody_else(named: dict[str, Any], verdict: Verdict) -> None:
    assert attribution(evidence(slowed(**named))).verdict is verdict


def test_causes_are_of_kinds_that_exist() -> None:
    assert set(CAUSES) <= set(FAULT_KINDS)


def test_a_partition_with_many_sides_may_blame_any_of_them() -> None:
    part = {"kind": "network_partition", "params": {"shape": "halves"}}
    assert (
        attribution(evidence(changed(blamed("w0", 0, "node_lost"), kind("fault_injected"), **part))).verdict
        is Verdict.PASS
    )
    alone = {**part, "params": {"shape": "isolate"}}
    assert (
        attribution(evidence(changed(blamed("w0", 0, "node_lost"), kind("fault_injected"), **alone))).verdict
        is Verdict.FAIL
    )


def test_of_many_that_were_cut_off_together_each_may_be_found_by_itself() -> None:
    for shape, later, verdict in (
        ("halves", 1, Verdict.PASS),
        ("halves", -1, Verdict.FAIL),
        ("isolate", 1, Verdict.FAIL),
    ):
        part = {"kind": "network_partition", "params": {"shape": shape}}
        record = evidence(changed(disturbed(), kind("fault_injected"), **part))
        (outcome,) = record.outcomes
        assert outcome.fault is not None and outcome.recovery is not None
        lost = Failure(worker="w0", rank=0, cause="node_lost", detail="")
        recovery = replace(outcome.recovery, failures=(lost,), started_ns=outcome.fault.at + later)
        assert judge_blame(FaultOutcome(fault=None, recovery=recovery), record).verdict is verdict


# --- data once ---


def test_data_in_order_passes_also_where_a_dead_worker_took_a_record_along() -> None:
    assert data_once(evidence(undisturbed())).verdict is Verdict.PASS
    result = data_once(evidence())  # rank 1 died in step 2, which the others committed
    assert (result.verdict, result.detail.startswith("7 steps of 2 ranks")) == (Verdict.PASS, True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (2, "rank 0 used data again: 2 in step 2, and then 2 in step 3"),
        (5, "rank 0 left out data: 2 in step 2, and then 5 in step 3"),
    ],
)
def test_data_used_twice_or_left_out_fails(data: int, said: str) -> None:
    result = data_once(evidence(changed(disturbed(), is_commit(0, 3), data=data)))
    assert (result.verdict, result.detail) == (Verdict.FAIL, said)


def test_a_step_that_was_executed_again_counts_once() -> None:
    again = next(one for one in undisturbed() if is_commit(0, 3)(one))
    assert data_once(evidence([*undisturbed(), replace(again, at=again.at + 1)])).verdict is Verdict.PASS
    wrong = replace(again, at=again.at + 1, data={**again.data, "data": 4})
    assert data_once(evidence([*undisturbed(), wrong])).verdict is Verdict.FAIL


def test_data_once_is_unknown_where_records_are_missing() -> None:
    some = without(undisturbed(), is_commit(0, 3))
    assert data_once(evidence(some)).detail == "only 7 of 8 steps of all ranks say which data they used"
    none = [replace(one, data={}) if one.kind == "step_committed" else one for one in undisturbed()]
    assert "step.record(data=...)" in data_once(evidence(none)).detail
    assert data_once(evidence(run=PartRecord(events=[], completed=False))).verdict is Verdict.UNKNOWN
