"""Baselines: the code that a scenario is held against; who chose it, and what stands beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.compare.samples import Code
from service import baselines
from service.callers import Role
from tests.comparing import MACHINE, SHAPE, command, sample
from tests.service.helpers import Harness, problem
from tests.service.test_access import bearer, made
from tests.service.test_archive import a_run
from tests.service.test_history import fill

OLD, NEW = "a" * 40, "b" * 40
CHOICE = {"scenario": "kill-one", "code": OLD[:8], "reason": "what is in use"}


def measured(api: Harness, *, factor: float = 1.2, **changes: Any) -> None:
    """Seven trials of the old code and of a slower one, in the same session."""
    for first, code, level in (("old", OLD, 1.0), ("new", NEW, factor)):
        named: dict[str, Any] = {"code": Code(commit=code), **changes}
        names = [f"{first}-{changes.get('scenario', '')}-{i}" for i in range(7)]
        trials = [sample(i, factor=level + 0.01 * i, trial=name, **named) for i, name in enumerate(names)]
        fill(api.service.database, *trials)


@pytest.mark.both_databases
async def test_a_baseline_is_chosen_replaced_and_removed(api: Harness) -> None:
    measured(api)
    first = await api.post("/baselines", CHOICE)
    assert first.status_code == 201 and first.json()["code"] == OLD and first.json()["by"] == "local"
    assert (await api.get("/baselines"))["items"] == [first.json()]
    again = (await api.post("/baselines", {**CHOICE, "code": NEW, "reason": "released"})).json()
    assert (await api.get("/baselines"))["items"] == [again] and again["reason"] == "released"
    gone = await api.client.delete("/api/v1/baselines/kill-one", params={"reason": "superseded"})
    assert gone.status_code == 204 and (await api.get("/baselines"))["items"] == []
    problem(await api.client.delete("/api/v1/baselines/kill-one"), 404)
    removed, replaced, chosen = (await api.get("/audit", target="kill-one"))["items"]
    assert (removed["action"], removed["reason"]) == ("baseline.remove", "superseded")
    assert replaced["detail"] == {"code": NEW, "before": OLD} and chosen["detail"] == {"code": OLD, "before": None}


async def test_what_was_never_measured_and_who_may_not_are_refused(api: Harness) -> None:
    measured(api)
    said = problem(await api.post("/baselines", {**CHOICE, "code": "cccc"}), 422)["detail"]
    assert "'cccc'" in said and "there are trials of" in said and "aaaaaaaaa" in said
    said = problem(await api.post("/baselines", {**CHOICE, "scenario": "other"}), 422)["detail"]
    assert "in scenario 'other'" in said
    problem(await api.post("/baselines", {**CHOICE, "reason": " "}), 422)
    roles = {role: made(api.service, role) for role in Role}
    problem(await api.post("/baselines", CHOICE, **bearer(roles[Role.VIEWER])), 403)
    assert (await api.post("/baselines", CHOICE, **bearer(roles[Role.OPERATOR]))).status_code == 201


async def test_comparisons_take_each_scenarios_own(api: Harness) -> None:
    measured(api)
    measured(api, scenario="other", factor=1.0)
    missing = await api.client.get("/api/v1/comparisons", params={"base": "baseline", "head": NEW})
    assert "phoenix baseline choose" in problem(missing, 404)["detail"]
    await api.post("/baselines", CHOICE)
    found = await api.get("/comparisons", base="baseline", head=NEW)
    assert found["base"]["name"] == OLD and found["verdict"] == "regression"
    await api.post("/baselines", {**CHOICE, "scenario": "other", "code": NEW})
    found = await api.get("/comparisons", base="baseline", head=NEW)
    assert found["base"]["name"] == "baseline"
    assert {row["scenario"]: row["reproduce"] for row in found["rows"]} == {
        "kill-one": f"phoenix compare --ab {OLD} {NEW} --scenario kill-one",
        "other": f"phoenix compare --ab {NEW} {NEW} --scenario other",
    }
    home = str(api.service.settings.directory)
    if not api.service.database.postgres:
        assert command("compare", "baseline", NEW, "--dir", home, "--scenario", "kill-one").returncode == 1


@pytest.mark.both_databases
async def test_a_trial_stands_beside_the_medians_of_its_own_machine(api: Harness) -> None:
    run = await a_run(api)
    trial, path = run["trials"][0], f"/trials/{run['trials'][0]}/baseline"
    nothing: dict[str, Any] = {"baseline": None, "trials": 0, "medians": {}, "why_not": None}
    assert {**nothing, "code": None} == {**await api.get(path), "code": None}, "no baseline"
    fill(api.service.database, *(replace(sample(i, factor=1.0 + i), scenario="tiny") for i in range(3)))
    assert (await api.post("/baselines", {**CHOICE, "scenario": "tiny"})).status_code == 201
    assert (await api.get(path))["why_not"] == "it was measured on another machine"
    # The same trial, as if it had run where and as the others did.
    fill(api.service.database, sample(9, scenario="tiny", trial="twin", code=Code(commit=NEW)))
    with api.service.database.read() as session:
        found = baselines.beside(session, "twin", "tiny")
        other = baselines.beside(session, trial, "tiny")
    assert (found.trials, found.code, found.why_not) == (3, Code(commit=NEW), None)
    assert found.medians["kill"]["detect"] == pytest.approx(2 * 0.005) and "success" not in found.medians["kill"]
    assert other.trials == 0 and other.code is not None


async def test_another_shape_of_the_scenario_is_no_measure(api: Harness) -> None:
    measured(api)
    fill(api.service.database, sample(50, shape={**SHAPE, "steps": 99}, trial="longer"))
    fill(api.service.database, sample(51, machine={**MACHINE, "cores": 9}, trial="elsewhere"))
    await api.post("/baselines", CHOICE)
    fill(api.service.database, sample(52, shape={**SHAPE, "steps": 98}, trial="new", code=Code(commit=NEW)))
    with api.service.database.read() as session:
        assert baselines.beside(session, "new", "kill-one").why_not == "the scenario was changed since"
        assert baselines.beside(session, "elsewhere", "kill-one").trials == 1
