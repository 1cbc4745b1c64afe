"""Plans of many faults: what they stand for, from the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from chaos.errors import InvalidFault, InvalidScenario
from chaos.expansion import expand, single
from chaos.faults import PlannedFault
from chaos.kinds import FAULT_KINDS, Scope
from chaos.mixes import LLAMA3, MIXES
from chaos.scenario import Scenario, load_scenario, parse_scenario
from chaos.triggers import AfterSeconds

TEXT = """\
name: x
workload: gpt-tiny
steps: 30
cluster: {nodes: 4}
faults:
  - {id: a, kind: process_kill, target: {random_rank: true}, trigger: {trace_file: times.txt}}
"""


def fault(trigger: dict[str, Any], id: str = "f") -> PlannedFault:
    return PlannedFault.from_json(
        {"id": id, "kind": "process_kill", "target": {"random_rank": True}, "trigger": trigger}
    )


def times(faults: tuple[PlannedFault, ...]) -> list[float]:
    return [one.trigger.after_s for one in faults if isinstance(one.trigger, AfterSeconds)]


def campaign(**changes: Any) -> Scenario:
    document = {"name": "x", "workload": "gpt-tiny", "steps": 9, "seed": 5}
    return Scenario.from_json({**document, "campaign": {"mix": "llama3", "mtbf_s": 10, **changes}})


def test_what_stands_for_itself_stays() -> None:
    one = fault({"at_step": 3})
    assert expand(one, 1) == (one,) and single(one) is one


def test_a_trace_is_one_fault_for_each_time_in_order() -> None:
    planned = expand(fault({"trace": [9, 1.5]}), 1)
    assert [one.id for one in planned] == ["f-1", "f-2"] and times(planned) == [1.5, 9.0]


def test_poisson_depends_on_seed_and_id_alone_and_has_its_mean() -> None:
    trigger = {"poisson": {"mtbf_s": 10, "count": 900}}
    planned = expand(fault(trigger), 1)
    assert planned == expand(fault(trigger), 1)
    assert times(planned) != times(expand(fault(trigger), 2)) != times(expand(fault(trigger, id="g"), 2))
    at = [0.0, *times(planned)]
    gaps = [later - sooner for sooner, later in pairwise(at)]
    assert len(planned) == 900 and mean(gaps) == pytest.approx(10, rel=0.15)
    # An exponential distribution has a share of 1/e of its gaps beyond the mean.
    assert sum(gap > 10 for gap in gaps) / 900 == pytest.approx(0.368, abs=0.05)


def test_what_a_horizon_allows_may_come_too_late_and_a_count_may_not() -> None:
    within = expand(fault({"poisson": {"mtbf_s": 1, "horizon_s": 50}}), 3)
    assert 25 < len(within) < 90 and max(times(within)) < 50
    assert all(one.trigger.to_json()["if_running"] for one in within)
    assert not any(
        "if_running" in one.trigger.to_json() for one in expand(fault({"poisson": {"mtbf_s": 1, "count": 3}}), 3)
    )


@pytest.mark.parametrize("trigger", [{"poisson": {"mtbf_s": 1, "count": 1}}, {"trace": [1]}])
def test_a_live_request_is_one_fault(trigger: dict[str, Any]) -> None:
    with pytest.raises(InvalidFault, match="a request is one fault"):
        single(fault(trigger))


def test_the_llama_3_mix_has_the_shares_of_the_paper() -> None:
    drawn = campaign(count=1000).planned
    seen = Counter(one.reason.partition(": ")[2] for one in drawn)
    network = [cause.name for cause in LLAMA3 if cause.scope is Scope.NETWORK]
    assert not set(network) & set(seen)  # all nodes share one network here
    total = sum(cause.seen for cause in LLAMA3 if cause.scope is not Scope.NETWORK)
    assert seen["faulty GPU"] / 1000 == pytest.approx(148 / total, abs=0.05)
    isolated = campaign(count=1000).campaign
    assert isolated is not None
    assert any(one.kind == "network_partition" for one in isolated.expand(5, isolated=True))


def test_every_mix_names_kinds_that_exist_and_params_that_they_take() -> None:
    for causes in MIXES.values():
        for cause in causes:
            assert cause.kind in FAULT_KINDS and cause.seen > 0
            PlannedFault.from_json({"id": "x", "kind": cause.kind, "target": {"rank": 0}, "params": cause.params})


def test_a_campaign_survives_its_document_and_is_refused_by_name() -> None:
    plan = campaign(horizon_s=100)
    assert Scenario.from_json(plan.to_json()) == plan and len(plan.planned) > 3
    with pytest.raises(InvalidScenario, match=r"campaign.mix: 'bert' is not one of"):
        campaign(mix="bert", count=1)
    with pytest.raises(InvalidScenario, match=r"campaign.horizon_s: at most 500 faults"):
        campaign(horizon_s=10_000)


def test_ids_that_an_expansion_would_give_twice_are_refused() -> None:
    twice = TEXT.replace("trace_file: times.txt", "trace: [1, 2]") + (
        "  - {id: a-2, kind: process_kill, target: {rank: 1}}\n"
    )
    with pytest.raises(InvalidScenario, match=r"faults\[1\].id: the id 'a-2' is taken"):
        parse_scenario(twice)


def test_ids_that_repeating_would_give_twice_are_refused() -> None:
    """Else the receipt of one would do for the other, and of two lasting ones the first would never be taken back."""
    again = TEXT.replace("trace_file: times.txt", "at_step: 3, repeat: 2")
    other = "  - {id: a.2, kind: process_kill, target: {rank: 1}}\n"
    with pytest.raises(InvalidScenario, match=r"faults\[1\].id: the id 'a.2' is taken"):
        parse_scenario(again + other)
    parse_scenario(again + other.replace("a.2", "a.3"))


def test_a_trace_file_lies_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    (tmp_path / "times.txt").write_text("# seconds\n1.5\n\n20  # the second\n")
    assert times(load_scenario(tmp_path / "s.yaml").planned) == [1.5, 20.0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        ("1\nsoon\n", r"times.txt:2: 'soon' is no number"),
        ("1\n" * 1001, "at most 1000"),
        ("#" * 300_000 + "\n1\n", "holds more than 200000 characters"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    if content is not None:
        (tmp_path / "times.txt").write_text(content)
    with pytest.raises(InvalidScenario, match=rf"s.yaml:6: faults\[0\].trigger.trace_file: .*{said}"):
        load_scenario(tmp_path / "s.yaml")


def test_a_text_from_elsewhere_names_no_file() -> None:
    with pytest.raises(InvalidScenario, match="must have exactly one of the forms"):
        parse_scenario(TEXT)
