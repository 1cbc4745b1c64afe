"""What a trial counts for: times by fault and metric, what makes two trials comparable, and who is not counted."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.collect import Finder, collect
from chaos.compare.samples import Code, differences, digest_of, metrics_of, sample_of, session_of
from chaos.provenance import Provenance, machine, tree_diff
from chaos.record import Result, Spec, TrialDirectory
from chaos.recoveries import RecoveryRecord
from chaos.scenario import Scenario
from chaos.verdict import Verdict
from tests.comparing import Scratch

SCENARIO = Scenario.from_json(
    {
        "name": "two-faults",
        "workload": "gpt-tiny",
        "steps": 40,
        "faults": [
            {"id": "kill", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 10}},
            {"id": "spare", "kind": "process_kill", "target": {"spare": True}, "trigger": {"at_step": 20}},
        ],
    }
)
PROVENANCE = Provenance(commit="c" * 40, dirty=False, versions={"torch": "2"}, machine={"cores": 2}, boot="b00t" * 4)
SPEC = Spec(trial="t", scenario=SCENARIO, provenance=PROVENANCE, created_at="2026-11-29T23:30:00.000Z")
PHASES = {"detect": 0.1, "quiesce": 0.2, "replace": 0.3, "reconstruct": 0.0, "restore": 0.1, "recompute": 0.3}


def record(fault: str | None, **changes: Any) -> RecoveryRecord:
    values: dict[str, Any] = {
        "fault": None if fault is None else {"id": fault},
        "target": {"rank": 1, "worker": "w1"},
        "blamed": None,
        "recovery_s": 1.0,
        "downtime_s": 0.7,
        "phases": PHASES,
        "lost_steps": 1,
        "generation": 1,
        "resume_step": 10,
        **changes,
    }
    return RecoveryRecord(**values)


SPARE = record(
    "spare", target={"rank": None, "worker": "w4"}, recovery_s=None, downtime_s=None, phases=dict.fromkeys(PHASES),
    replacement={"worker": "w5", "after_s": 2.5},
)  # fmt: skip


def result(*records: RecoveryRecord, verdict: Verdict = Verdict.PASS) -> Result:
    return Result(
        verdict=verdict,
        checks={},
        recoveries=records,
        steps_committed=40,
        error=None,
        finished_at="2026-11-30T00:00:00Z",
    )


def test_each_planned_fault_has_its_times() -> None:
    sample = sample_of(SPEC, result(record("kill"), SPARE))
    assert sample.times["kill"] == {"recovery": 1.0, "downtime": 0.7, **PHASES}
    assert sample.times["spare"] == {"replacement": 2.5}
    assert (sample.judged, sample.succeeded, sample.code) == (True, True, Code(commit="c" * 40))
    assert metrics_of([sample], "kill")[:2] == ["success", "recovery"]
    assert metrics_of([sample], "spare") == ["success", "replacement"]


def test_a_fault_that_was_injected_several_times_counts_with_the_mean() -> None:
    often = sample_of(SPEC, result(record("kill"), record("kill", recovery_s=3.0), SPARE))
    assert often.times["kill"]["recovery"] == 2.0
    once_lost = sample_of(SPEC, result(record("kill"), record("kill", recovery_s=None), SPARE))
    assert once_lost.times["kill"]["recovery"] == math.inf


def test_faults_that_stand_for_many_are_one() -> None:
    document = SCENARIO.to_json()
    trace = {"id": "kill", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"trace": [1.0, 2.0]}}
    many = Scenario.from_json({**document, "faults": [trace], "campaign": {"mix": "llama3", "mtbf_s": 9, "count": 2}})
    spec = replace(SPEC, scenario=many)
    records = [record("kill-1"), record("kill-2", recovery_s=2.0), record("campaign-1", recovery_s=4.0)]
    sample = sample_of(spec, result(*records))
    assert sample.judged
    assert (sample.times["kill"]["recovery"], sample.times["campaign"]["recovery"]) == (1.5, 4.0)


def test_what_needs_no_recovery_has_no_time() -> None:
    nothing: dict[str, Any] = {"recovery_s": None, "downtime_s": None, "phases": dict.fromkeys(PHASES)}
    slow = record("kill", **nothing, checks={"recovered": Verdict.PASS})
    sample = sample_of(SPEC, result(slow, SPARE))
    assert (sample.succeeded, sample.times["kill"]) == (True, {})
    assert metrics_of([sample], "kill") == ["success"]


def test_what_never_ended_is_without_end_and_what_came_after_is_unknown() -> None:
    stuck = record("kill", recovery_s=None, downtime_s=None, phases={**PHASES, "restore": None, "recompute": None})
    times = sample_of(SPEC, result(stuck, verdict=Verdict.FAIL)).times
    assert times["kill"]["recovery"] == math.inf
    assert times["kill"]["restore"] == math.inf
    assert "recompute" not in times["kill"]
    assert times["spare"] == {}  # no sign of it at all: that the trial failed is all that is known


@pytest.mark.parametrize(
    "ended",
    [
        result(record("kill"), SPARE, verdict=Verdict.UNKNOWN),
        result(record("kill"), SPARE, record("by-hand")),
    ],
)
def test_what_could_not_be_judged_or_was_disturbed_by_hand_has_no_times(ended: Result) -> None:
    sample = sample_of(SPEC, ended)
    assert (sample.judged, sample.succeeded, dict(sample.times)) == (False, False, {})


def test_a_recovery_that_no_fault_explains_is_no_fault_by_hand() -> None:
    assert sample_of(SPEC, result(record("kill"), SPARE, record(None))).judged


def test_the_version_of_a_scenario_is_what_it_measures() -> None:
    def version(**changes: Any) -> str:
        return sample_of(replace(SPEC, scenario=replace(SCENARIO, **changes)), result()).version

    same = {version(), version(seed=7), version(description="other words"), version(checks=("fired",))}
    other = {version(steps=41), version(workload="gpt"), version(timeout_s=10.0)}
    assert len(same) == 1
    assert len(other | same) == 4


def test_a_night_is_one_session_and_another_boot_is_another() -> None:
    assert session_of("abcdefghij", "2026-11-29T23:30:00Z") == session_of("abcdefghij", "2026-11-30T03:00:00Z")
    assert session_of("abcdefghij", "2026-11-30T13:00:00Z") != session_of("abcdefghij", "2026-11-30T03:00:00Z")
    assert session_of("other", "2026-11-30T03:00:00Z") != session_of("abcdefghij", "2026-11-30T03:00:00Z")


def test_differences_name_fields() -> None:
    assert differences({"cores": 2, "cpu": "A"}, {"cores": 4, "cpu": "A", "gpu": "H"}) == [
        "cores: 2 -> 4",
        "gpu: (nothing) -> H",
    ]
    kill = {"id": "kill", "trigger": {"at_step": 3}, "target": {"rank": 1}}
    old = {"faults": [kill], "campaign": None, "cluster": {"nodes": 4}}
    new = {"faults": [{**kill, "trigger": {"at_step": 5}}, {"id": "stop"}], "campaign": {"mean_s": 2}, "cluster": {}}
    assert differences(old, new) == [
        "faults.kill.trigger.at_step: 3 -> 5",
        "faults.stop: added",
        "campaign: added",
        "cluster.nodes: 4 -> (nothing)",
    ]
    assert differences({"faults": [kill]}, {"faults": []}) == ["faults.kill: removed"]
    assert differences({"faults": [kill, {"id": "x"}]}, {"faults": [{"id": "x"}, kill]}) == ["faults: in another order"]
    assert differences({"load": None}, {"load": [1]}) == ["load: null -> [1]"]


def test_the_fingerprint_holds_nothing_that_changes_by_the_hour() -> None:
    assert digest_of(machine()) == digest_of(machine())
    assert set(machine()) == {"cpu", "cores", "memory_gib", "system"}


def test_a_dirty_tree_is_named_by_what_it_adds(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "repo")
    assert scratch.commit("one")
    results = scratch.root / "benchmarks" / "results" / "overhead.md"
    results.parent.mkdir(parents=True)
    results.write_text("what one benchmark writes is no other code for the next one")
    assert tree_diff(scratch.root) == ""
    (scratch.root / "new.py").write_text("x = 1\n")
    new = tree_diff(scratch.root)
    (scratch.root / "new.py").write_text("x = 2\n")
    changed = tree_diff(scratch.root)
    (scratch.root / "plan.py").write_text("x = 2\n")
    assert len({"", new, changed, tree_diff(scratch.root)}) == 4
    scratch.git("add", "new.py")
    assert tree_diff(tmp_path) is None


def test_finished_trials_are_found_below_a_directory(tmp_path: Path) -> None:
    for number, place in enumerate(("one", "suite/two", "suite/deep/three")):
        directory = TrialDirectory.create(tmp_path / place, SCENARIO, trial=f"t{number}")
        directory.write_result(result(record("kill"), SPARE))
    TrialDirectory.create(tmp_path / "running", SCENARIO)
    broken = TrialDirectory.create(tmp_path / "broken", SCENARIO)
    broken.result_file.write_text("{}")
    found = collect(tmp_path)
    assert [sample.trial for sample in found.samples] == ["t0", "t1", "t2"]
    assert found.skipped and "broken" in found.skipped[0]
    assert collect(tmp_path / "nothing").samples == ()
    assert len(collect(tmp_path / "one", tmp_path / "suite").samples) == 3


def test_what_is_done_is_not_found_again_and_what_is_new_is(tmp_path: Path) -> None:
    finder = Finder()
    for number in range(3):
        directory = TrialDirectory.create(tmp_path / "suite" / f"{number}", SCENARIO)
        if number:
            directory.write_result(result(record("kill"), SPARE))
    one, two = finder.below(tmp_path)
    finder.done(one)
    assert [directory.path for directory in finder.below(tmp_path)] == [two.path]
    finder.done(two)
    assert list(finder.below(tmp_path, tmp_path / "nothing")) == []
    TrialDirectory(tmp_path / "suite" / "0").write_result(result(record("kill"), SPARE))
    (late,) = finder.below(tmp_path)
    assert late.path.name == "0"
    shutil.copytree(tmp_path / "suite" / "0", tmp_path / "suite" / "new")
    assert [directory.path.name for directory in finder.below(tmp_path)] == ["0", "new"]
