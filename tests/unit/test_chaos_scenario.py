"""Scenario documents: what they may hold, and where a mistake is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from chaos.errors import InvalidScenario
from chaos.scenario import CHECKS, Cluster, Scenario, load_scenario, parse_scenario, scenario_schema, schema_text
from chaos.suite import load_suite, suite_schema
from chaos.triggers import MOST_FAULTS
from chaos.workloads import GPT, WORKLOADS

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
SUITES = [SCENARIOS / "nightly.yaml", *sorted((SCENARIOS / "suites").glob("*.yaml"))]
LIBRARY = [path for path in sorted(SCENARIOS.glob("*.yaml")) if path not in SUITES]
# The demonstration plans no fault of its own, and the campaigns last longer than a nightly has.
IN_ANOTHER_SUITE = {"disk-slow", "gradient-nan", "truncate-checkpoint"}
NOT_NIGHTLY = IN_ANOTHER_SUITE | {"demo", "poisson-kills", "llama3-mix", "lose-the-store"}
"""The last one shows what this version does not survive: its job has no end to judge, and no night could pass."""

TEXT = """\
name: kill-one
workload: gpt-tiny
steps: 30
options: {block: 16}
cluster: {nodes: 4}
faults:
  - kind: process_kill
    target: {rank: 2}
    trigger: {phase: backward, step: 3}
  - kind: process_stop
    target: {random_rank: true}
    trigger: {after_s: 3}
"""


def test_a_document_becomes_a_typed_value_and_back() -> None:
    scenario = parse_scenario(TEXT)
    assert scenario.cluster == Cluster(nodes=4, ranks_per_node=1, spares=1)
    assert [fault.id for fault in scenario.faults] == ["fault-1", "fault-2"]
    assert scenario.checks == CHECKS
    assert Scenario.from_json(scenario.to_json()) == scenario
    assert parse_scenario(json.dumps(scenario.to_json())) == scenario


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rank: 2", "rank: 7", "s.yaml:8: faults[0].target.rank: rank 7 does not exist: ranks are 0..3"),
        ("process_kill", "meteor", "s.yaml:7: faults[0].kind: 'meteor' is not one of"),
        ("step: 3}", "step: 30}", "s.yaml:9: faults[0].trigger.step: step 30 never comes: the steps are 0..29"),
        ("gpt-tiny", "rm -rf", "s.yaml:2: workload: 'rm -rf' is not one of"),
        ("steps: 30\n", "steps: 30.0\n", "s.yaml:3: steps: 30.0 is not of type 'integer'"),
        (
            "steps: 30\n",
            "steps: 3e1\n",
            "s.yaml:3: steps: '3e1' is not of type 'integer': YAML takes it for text, write 30",
        ),
        ("steps: 30\n", "", "s.yaml:1: steps: is missing"),
        ("steps: 30\n", "stepz: 30\n", "s.yaml:3: stepz: unknown field; there are: name"),
        ("nodes: 4", "nodez: 4", "s.yaml:5: cluster.nodez: unknown field; there are: nodes, ranks_per_node, spares"),
        ("block: 16", "block: 0", "s.yaml:4: options.block: 0 is less than the minimum of 1"),
        ("block: 16", "blok: 16", "s.yaml:4: options.blok: unknown field"),
        (
            "{rank: 2}",
            "{}",
            "s.yaml:8: faults[0].target: must have exactly one of the forms rank, random_rank, spare, node, "
            "coordinator, store",
        ),
        ("after_s: 3", "after_s: -1", "s.yaml:12: faults[1].trigger.after_s: -1 is less than the minimum of 0"),
        ("step: 3}", "stepp: 3}", "s.yaml:9: faults[0].trigger.stepp: unknown field; there are: phase, step"),
        ("after_s: 3", "after_s: .inf", "s.yaml:12: faults[1].trigger.after_s: must be a finite number"),
        (
            "phase: backward",
            "phase: snapshot_copy",
            "s.yaml:9: faults[0].trigger.phase: the workload gpt-tiny never enters snapshot_copy; its phases",
        ),
        (
            "after_s: 3",
            "after_s: 99999999",
            "s.yaml:12: faults[1].trigger.after_s: 99999999 is greater than the maximum of 10000000",
        ),
        ("steps: 30", "steps: [", "s.yaml:5: not valid YAML"),
        ("steps: 30", "steps: 30\nsteps: 31", "s.yaml:4: steps: this key stands here twice"),
        ("name: kill-one", "name: ../../etc", "s.yaml:1: name: '../../etc' does not match"),
    ],
)
def test_a_mistake_is_pointed_at(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidScenario) as caught:
        parse_scenario(TEXT.replace(old, new), source="s.yaml")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "- 1\n", "just words", "a: &x [*x]\n", "1: 2\n", "\x00", "d: 2026-99-99"]
)
def test_what_is_no_scenario_is_refused_without_a_traceback(text: str) -> None:
    with pytest.raises(InvalidScenario, match=r"s\.yaml"):
        parse_scenario(text, source="s.yaml")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 5000, "nested too deeply"),
        (BOMB, "more than 20000 values"),
        ("# " + "x" * 100_000, "longer than 100000 characters"),
    ],
    ids=["sequences", "mappings", "aliases", "length"],
)
def test_a_document_that_is_too_much_is_refused_at_once(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InvalidScenario, match=said):
        load_scenario(tmp_path / "s.yaml")


def test_aliases_and_merged_keys_are_welcome_in_small_numbers() -> None:
    shared = "  - &one {kind: process_kill, target: {rank: 2}}\n  - <<: *one\n    target: {rank: 1}\n"
    scenario = parse_scenario(TEXT.partition("faults:")[0] + "faults:\n" + shared)
    assert [fault.target.to_json() for fault in scenario.faults] == [{"rank": 2}, {"rank": 1}]


def test_two_faults_of_one_id_are_refused() -> None:
    text = TEXT.replace("  - kind", "  - id: same\n    kind")
    with pytest.raises(InvalidScenario, match=r"faults\[1\].id: the id 'same' is taken"):
        parse_scenario(text)


def test_more_faults_than_can_be_planned_are_refused_at_once() -> None:
    document: dict[str, object] = {"name": "many", "workload": "gpt-tiny", "steps": 3}
    one = {"kind": "process_kill", "target": {"rank": 0}, "trigger": {"poisson": {"mtbf_s": 1, "count": MOST_FAULTS}}}
    with pytest.raises(InvalidScenario, match=r"faults: are 1001; at most 1000"):
        Scenario.from_json({**document, "faults": [one] * (MOST_FAULTS + 1)})
    with pytest.raises(InvalidScenario, match=r"faults: stand for more than 1000 faults"):
        Scenario.from_json({**document, "faults": [{**one, "id": "a"}, {**one, "id": "b"}]})


def test_a_spare_must_exist_to_be_hit() -> None:
    text = TEXT.replace("nodes: 4", "nodes: 4, spares: 0").replace("{rank: 2}", "{spare: true}")
    with pytest.raises(InvalidScenario, match="the cluster has no spare"):
        parse_scenario(text)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidScenario, match="cannot read the scenario"):
        load_scenario(tmp_path / name)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidScenario, match="UTF-8"):
        load_scenario(tmp_path / "binary.yaml")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_the_library_can_be_loaded_and_names_match_files(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.description
    Draft202012Validator(scenario_schema()).validate(scenario.to_json())


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_each_scenario_says_at_its_top_what_it_is_for(path: Path) -> None:
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_suites_can_be_loaded(path: Path) -> None:
    suite = load_suite(path)
    assert suite.name == path.stem and suite.description
    Draft202012Validator(suite_schema()).validate(yaml.safe_load(path.read_text()))


def test_the_nightly_runs_every_scenario_once() -> None:
    named = [trial.name for trial in load_suite(SCENARIOS / "nightly.yaml").trials]
    assert sorted(named) == sorted({path.stem for path in LIBRARY} - NOT_NIGHTLY)


def test_the_exported_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(schema_text()))


def test_a_workload_turns_options_into_flags() -> None:
    command = GPT.arguments(steps=7, seed=3, options={"block": 16, "data": "/x y"})
    assert command[:6] == ["-m", "benchmarks.workloads.gpt", "--steps", "7", "--seed", "3"]
    assert command[6:] == ["--block", "16", "--data", "/x y"]
    assert GPT.path_options == {"data"}
    for workload in WORKLOADS.values():
        Draft202012Validator.check_schema(workload.options_schema)
        workload.check(workload.defaults)


def test_of_two_values_the_scenario_overrides_the_workload() -> None:
    scenario = parse_scenario(TEXT)
    command = scenario.job.arguments(steps=1, seed=0, options=scenario.options)
    assert command[command.index("--block") + 1] == "16"
    assert command.count("--block") == 1
