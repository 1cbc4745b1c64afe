"""The twin check: equal in every bit, or it says where not; and what may be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.evidence import PartRecord
from chaos.scenario import Cluster
from chaos.twin import twin
from chaos.verdict import Verdict
from tests.records import changed, disturbed, evidence, is_commit, kind, loss, scenario, undisturbed, without


@pytest.mark.parametrize("other", [loss(0, 3) * (1 + 2**-52), float("nan"), -0.0, "text"])
def test_twin_fails_on_one_differing_bit(other: object) -> None:
    result = twin(evidence(changed(disturbed(), is_commit(0, 3), loss=other)))
    assert result.verdict is Verdict.FAIL
    assert "loss of rank 0 at step 3" in result.detail


def test_twin_takes_nan_for_equal_to_itself() -> None:
    ours = changed(disturbed(), is_commit(0, 3), loss=float("nan"))
    theirs = PartRecord(events=changed(undisturbed(), is_commit(0, 3), loss=float("nan")), completed=True)
    assert twin(evidence(ours, twin=theirs)).verdict is Verdict.PASS


def test_twin_fails_on_another_digest() -> None:
    events = changed(disturbed(), kind("state_digest"), digest="e" * 64)
    assert twin(evidence(events)).verdict is Verdict.FAIL


def test_twin_fails_when_a_step_done_twice_disagrees_with_itself() -> None:
    twice = disturbed()
    at = next(index for index, one in enumerate(twice) if is_commit(1, 1)(one))
    twice.insert(at, replace(twice[at], data={**twice[at].data, "loss": 0.5}))
    result = twin(evidence(twice))
    assert (result.verdict, "twice" in result.detail) == (Verdict.FAIL, True)


def test_a_step_done_twice_with_the_same_result_is_fine() -> None:
    twice = disturbed()
    at = next(index for index, one in enumerate(twice) if is_commit(1, 1)(one))
    twice.insert(at, replace(twice[at], data={**twice[at].data, "duration_ns": 1}))
    assert twin(evidence(twice)).verdict is Verdict.PASS


def test_what_the_runtime_adds_to_a_commit_is_not_compared() -> None:
    told = changed(disturbed(), is_commit(1, 3), restored=True)
    assert twin(evidence(told)).verdict is Verdict.PASS


def test_only_a_step_that_was_handed_over_may_be_missing() -> None:
    # Rank 1 never reported step 2 (it was killed in it, and given rank 0's state): see `disturbed`.
    result = twin(evidence())
    assert result.verdict is Verdict.PASS
    compared = "14 of 16 recorded values and 2 final digests compared, all equal in every bit"
    assert result.detail == f"{compared}; 2 values lost where a rank fell out of a step and was given the others' state"
    whole = twin(evidence(undisturbed(), scenario=scenario(faults=[])))
    assert whole.detail == "16 of 16 recorded values and 2 final digests compared, all equal in every bit"
    assert twin(evidence(without(disturbed(), is_commit(1, 1)))).verdict is Verdict.UNKNOWN
    assert twin(evidence(without(disturbed(), is_commit(0, 2)))).verdict is Verdict.UNKNOWN


def test_no_more_records_may_be_missing_than_workers_died() -> None:
    """Three ranks: one died, but of the step that the third handed over two records are missing."""
    plan = scenario()
    three = replace(plan, cluster=Cluster(nodes=3, ranks_per_node=1, spares=1))
    third = [
        replace(one, worker="w9", rank=2)
        for one in undisturbed()
        if one.rank == 0 and one.kind in ("step_committed", "state_digest")
    ]
    reference = PartRecord(events=[*undisturbed(), *third], completed=True)
    one_lost = evidence([*disturbed(), *third], scenario=three, twin=reference)
    assert twin(one_lost).verdict is Verdict.PASS
    two_lost = evidence(without([*disturbed(), *third], is_commit(0, 2)), scenario=three, twin=reference)
    result = twin(two_lost)
    assert (result.verdict, "rank 0 at step 2 (and 1 more)" in result.detail) == (Verdict.UNKNOWN, True)


def test_what_only_the_run_recorded_has_not_been_compared() -> None:
    result = twin(evidence(changed(disturbed(), is_commit(0, 3), accuracy=0.5)))
    assert (result.verdict, "accuracy of rank 0 at step 3" in result.detail) == (Verdict.UNKNOWN, True)


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
    assert twin(evidence(**missing)).verdict is Verdict.UNKNOWN
