"""Suite documents: what they stand for, and where a mistake is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from chaos.errors import InvalidScenario
from chaos.kinds import FAULT_KINDS
from chaos.scenario import parse_scenario
from chaos.suite import Suite, load_suite, schema_text, suite_schema

SCENARIO = """\
name: one
workload: gpt-tiny
steps: 30
seed: 7
faults:
  - {kind: process_kill, target: {rank: 2}, trigger: {at_step: 3}}
"""
SUITE = """\
name: both
budget_s: 60
timeout_s: 99
scenarios:
  - file: one.yaml
    seeds: [1, 2]
    repeat: 2
  - scenario:
      name: inline
      workload: gpt-tiny
      steps: 5
    timeout_s: 10
"""


SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
# What somebody who runs training jobs has reported in public: issues by project, and two papers.
REPORTS = (
    "marin#7344", "pytorch#97191", "elastic#134", "flyte-sdk#698", "pytorch#150916", "pytorch#67742", "dlrover#450",
    "nccl#905 and #1664", "Llama 3 report and arXiv 2410.21680", "open-gpu-kernel-modules, issue 1355",
    "open-gpu-kernel-modules, issue 1045", "k8s-device-plugin#1014", "NVSentinel#1748", "transformers#35525 and #35782",
    "KempnerForge#102", "Automodel#3254", "traceml#252", "torchft's punisher and Clockwork's comparison",
    "TensorRT-LLM#15610 and vllm#40652", "NVRx#348", "Megatron-LM#5281",
)  # fmt: skip
# Fault kinds that no scenario file uses, and why. One that a scenario uses must leave this list.
UNUSED = {
    "network_delay": "needs netem in the kernel, which no machine had on which scenarios were seen to pass",
    "network_loss": "the same",
}


def load(directory: Path, text: str = SUITE) -> Suite:
    (directory / "one.yaml").write_text(SCENARIO)
    (directory / "suite.yaml").write_text(text)
    return load_suite(directory / "suite.yaml")


def test_a_suite_is_its_trials_in_order(tmp_path: Path) -> None:
    suite = load(tmp_path)
    assert (suite.name, suite.budget_s) == ("both", 60)
    assert [(trial.name, trial.scenario.seed, trial.scenario.timeout_s) for trial in suite.trials] == [
        ("one-seed1-1", 1, 99),
        ("one-seed1-2", 1, 99),
        ("one-seed2-1", 2, 99),
        ("one-seed2-2", 2, 99),
        ("inline", 0, 10),
    ]


def test_what_the_suite_says_counts_for_each_entry_that_says_nothing(tmp_path: Path) -> None:
    text = SUITE.replace("    seeds: [1, 2]\n    repeat: 2\n", "").replace(
        "budget_s", "seeds: [5]\nrepeat: 2\nbudget_s"
    )
    assert [(trial.name, trial.scenario.seed) for trial in load(tmp_path, text).trials] == [
        ("one-1", 5), ("one-2", 5), ("inline-1", 5), ("inline-2", 5),
    ]  # fmt: skip
    text = text.replace("seeds: [5]\nrepeat: 2\n", "")
    assert [trial.scenario.seed for trial in load(tmp_path, text).trials] == [7, 0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "one.yaml",
            "two.yaml",
            "{}/two.yaml: cannot read the scenario: No such file or directory (scenarios[0].file of the suite)",
        ),
        ("repeat: 2", "repeat: 0", "{}/suite.yaml:7: scenarios[0].repeat: 0 is less than the minimum of 1"),
        ("repeat: 2", "repeats: 2", "{}/suite.yaml:7: scenarios[0].repeats: unknown field; there are: file, seeds"),
        ("[1, 2]", "[1, 1]", "{}/suite.yaml:6: scenarios[0].seeds: [1, 1] has non-unique elements"),
        ("steps: 5", "steps: 0", "{}/suite.yaml:11: scenarios[1].scenario.steps: 0 is less than the minimum of 1"),
        ("budget_s: 60", "budget_s: 0", "{}/suite.yaml:2: budget_s: 0 is less than or equal to the minimum of 0"),
        ("name: both\n", "", "{}/suite.yaml:1: name: is missing"),
        ("file: one", "fil: one", "{}/suite.yaml:5: scenarios[0]: must have exactly one of the forms file, scenario"),
        ("repeat: 2", "repeat: 1000\n    seeds: []", "{}/suite.yaml:8: scenarios[0].seeds: this key stands here twice"),
    ],
)
def test_a_mistake_is_pointed_at(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SUITE
    with pytest.raises(InvalidScenario) as caught:
        load(tmp_path, SUITE.replace(old, new))
    assert str(caught.value).startswith(said.format(tmp_path))


def test_a_mistake_in_a_scenario_file_is_pointed_at_there(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "one.yaml").write_text(SCENARIO.replace("rank: 2", "rank: 9"))
    with pytest.raises(InvalidScenario, match=r"one\.yaml:6: faults\[0\]\.target\.rank: rank 9 does not exist"):
        load_suite(tmp_path / "suite.yaml")


def test_a_scenario_in_the_suite_itself_may_name_a_trace_file(tmp_path: Path) -> None:
    """The file lies where the suite does, and what is wrong with it is said with the line of the suite."""
    faults = "[{kind: process_kill, target: {rank: 2}, trigger: {trace_file: times.txt}}]"
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.replace("      steps: 5", f"      steps: 5\n      faults: {faults}"))
    (tmp_path / "one.yaml").write_text(SCENARIO)
    with pytest.raises(InvalidScenario, match=r"suite.yaml:12: .*trigger.trace_file: cannot read .*times.txt"):
        load_suite(suite)
    (tmp_path / "times.txt").write_text("1.5\n9\n")
    assert [fault.id for fault in load_suite(suite).trials[-1].scenario.planned] == ["fault-1-1", "fault-1-2"]


def test_too_many_trials_are_refused(tmp_path: Path) -> None:
    many = SUITE.replace("[1, 2]", str(list(range(11)))).replace("repeat: 2", "repeat: 1000")
    with pytest.raises(InvalidScenario, match="stands for 11001 trials; at most 10000"):
        load(tmp_path, many)


def test_a_scenario_and_a_suite_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario, match="this is a scenario and no suite: run it with `phoenix trial`"):
        load(tmp_path, SCENARIO)
    with pytest.raises(InvalidScenario, match="this is a suite and no scenario: run it with `phoenix nightly`"):
        parse_scenario(SUITE)


def test_a_suite_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario, match="cannot read the suite"):
        load_suite(tmp_path / "missing.yaml")


def test_the_exported_schema_is_a_schema_and_takes_a_suite() -> None:
    Draft202012Validator.check_schema(json.loads(schema_text()))
    Draft202012Validator(suite_schema()).validate({"name": "x", "scenarios": [{"file": "a.yaml"}]})


def test_every_public_report_is_replayed_in_the_nightly_or_in_the_campaign() -> None:
    suites = [load_suite(SCENARIOS / name) for name in ("nightly.yaml", "suites/campaign.yaml")]
    names = {trial.scenario.name for suite in suites for trial in suite.trials}
    heads = [(SCENARIOS / f"{name}.yaml").read_text().partition("name:")[0] for name in sorted(names)]
    said = " ".join(" ".join(head.replace("#\n", "").split("\n# ")) for head in heads)
    assert [report for report in REPORTS if report not in said] == []


def test_every_kind_of_fault_is_used_by_a_scenario_that_a_suite_runs() -> None:
    suites = [load_suite(SCENARIOS / "nightly.yaml"), *map(load_suite, sorted((SCENARIOS / "suites").glob("*.yaml")))]
    used = {fault.kind for suite in suites for trial in suite.trials for fault in trial.scenario.planned}
    assert sorted(FAULT_KINDS.keys() - used) == sorted(UNUSED)
