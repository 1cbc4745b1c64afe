"""Two sides compared: which trials are held against each other, for how many tests it is corrected, confirming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from chaos.compare import present
from chaos.compare.comparison import Comparison, compare, confirm
from chaos.compare.rows import Row, Side
from chaos.compare.rule import Outcome
from chaos.compare.samples import Code
from tests.comparing import MACHINE, SHAPE, sample, side, times


def noisy(seed: int, count: int = 10, factor: float = 1.0) -> list[float]:
    return list(factor * np.exp(np.random.default_rng(seed).normal(0, 0.05, count)))


def row(found: Comparison, metric: str) -> Row:
    return next(row for row in found.rows if row.metric == metric)


def test_a_slower_head_is_a_regression_of_the_total_and_of_its_phases() -> None:
    found = compare(side("base", noisy(1)), side("head", noisy(2, factor=1.4)))
    assert found.verdict is Outcome.REGRESSION
    assert found.exit_code() == 1
    total = row(found, "recovery")
    assert (total.outcome, total.gates, total.unit, total.confirmed) == (Outcome.REGRESSION, True, "trial", None)
    assert [r.metric for r in found.rows[:4]] == ["success", "recovery", "downtime", "detect"]


def test_the_same_is_not_slower() -> None:
    found = compare(side("base", noisy(1, 20)), side("head", noisy(2, 20)))
    assert found.exit_code() == 0
    assert found.screened == ()


def test_one_of_many_scenarios_must_stand_out_of_all_of_them() -> None:
    """p = 0.01 of one comparison is one in a hundred; of many it is nothing."""

    def many(count: int) -> Comparison:
        base, head = [], []
        for number in range(count):
            name = f"s{number}"
            base += [sample(i, scenario=name, factor=f) for i, f in enumerate(np.linspace(1.0, 1.09, 6))]
            slower = 1.06 if number == 0 else 1.0
            head += [sample(i, scenario=name, factor=slower * f) for i, f in enumerate(np.linspace(1.0, 1.09, 6))]
        return compare(Side(name="base", samples=tuple(base)), Side(name="head", samples=tuple(head)))

    alone, among = many(1), many(5)
    first = next(r for r in among.rows if (r.scenario, r.metric) == ("s0", "recovery"))
    assert row(alone, "recovery").judgement.screened
    assert row(alone, "recovery").outcome is Outcome.REGRESSION
    assert first.judgement.screened
    assert first.outcome is Outcome.INCONCLUSIVE
    assert among.exit_code() == 0
    assert among.exit_code(fail_inconclusive=True) == 3


def test_a_single_phase_explains_and_does_not_gate() -> None:
    base = [sample(i, times={"kill": times(f)}) for i, f in enumerate(noisy(1, 20))]
    head = [sample(i, times={"kill": {**times(f), "detect": 0.02 * f}}) for i, f in enumerate(noisy(2, 20))]
    found = compare(Side(name="base", samples=tuple(base)), Side(name="head", samples=tuple(head)))
    assert row(found, "detect").outcome is Outcome.REGRESSION
    assert not row(found, "detect").gates
    assert found.exit_code() == 0


def test_other_machines_and_other_scenarios_are_not_compared() -> None:
    other = side("head", noisy(2), machine={**MACHINE, "cores": 64})
    found = compare(side("base", noisy(1)), other)
    assert (found.verdict, found.exit_code()) == (Outcome.NOT_COMPARABLE, 3)
    assert found.rows[0].fields == ("cores: 2 -> 64",)
    changed = compare(side("base", noisy(1)), side("head", noisy(2), shape={**SHAPE, "steps": 20}))
    assert (changed.verdict, changed.rows[0].fields) == (Outcome.NOT_COMPARABLE, ("steps: 10 -> 20",))
    nowhere = compare(side("base", noisy(1), machine={}), side("head", noisy(2), machine={}))
    assert "do not say on which machine" in nowhere.rows[0].judgement.reason


def test_only_trials_of_the_same_machine_are_taken() -> None:
    mixed = side("head", [*noisy(2), *noisy(3, factor=5.0)])
    elsewhere = tuple(
        replace(s, machine={**MACHINE, "cores": 1}) if i >= 10 else s for i, s in enumerate(mixed.samples)
    )
    found = compare(side("base", noisy(1)), replace(mixed, samples=elsewhere))
    assert row(found, "recovery").head.trials == 10
    assert found.exit_code() == 0


def test_different_sessions_are_compared_by_session() -> None:
    nights = [f"boot-2026-10-{night:02}" for night in range(1, 13)]
    history = [
        sample(i, factor=f, session=night, at=f"2026-10-{place + 1:02}T02:0{i}:00.000Z")
        for place, night in enumerate(nights)
        for i, f in enumerate(noisy(place, 5))
    ]
    base = Side(name="base", samples=tuple(history))
    slower = compare(base, side("head", noisy(50, factor=1.5), session="boot-2026-11-01"))
    assert row(slower, "recovery").unit == "session"
    assert (row(slower, "recovery").base.to_json()["n"], row(slower, "recovery").head.to_json()["n"]) == (12, 1)
    assert slower.exit_code() == 1
    few = replace(base, samples=base.samples[:15])
    assert compare(few, side("head", noisy(50), session="x")).verdict is Outcome.INSUFFICIENT
    helped = replace(few, samples=base.samples[-5:], baseline=base.samples[:-5])
    assert compare(helped, side("head", noisy(50, factor=1.5), session="x")).exit_code() == 1
    forced = compare(few, side("head", noisy(50), session="x"), trials_as_units=True)
    assert row(forced, "recovery").unit == "trial"


def test_a_session_of_one_side_only_is_left_out() -> None:
    alone = [sample(i, factor=9.0, session="other night") for i in range(10)]
    head = side("head", noisy(2))
    found = compare(side("base", noisy(1)), replace(head, samples=(*head.samples, *alone)))
    assert row(found, "recovery").head.trials == 10


def test_confirming_takes_the_fresh_numbers_and_nothing_else() -> None:
    screen = compare(side("base", noisy(1)), side("head", noisy(2, factor=1.3)))
    again = compare(side("base", noisy(3, 20)), side("head", noisy(4, 20, factor=1.3)))
    nothing = compare(side("base", noisy(3, 20)), side("head", noisy(4, 20)))
    yes, no = confirm(screen, again), confirm(screen, nothing)
    assert (row(yes, "recovery").confirmed, row(yes, "recovery").head.to_json()["n"]) == (True, 20)
    assert yes.exit_code() == 1
    assert (row(no, "recovery").confirmed, row(no, "recovery").outcome) == (False, Outcome.INCONCLUSIVE)
    assert "not confirmed" in row(no, "recovery").judgement.reason
    assert no.exit_code() == 0
    quiet = compare(side("base", noisy(1)), side("head", noisy(5)))
    assert confirm(quiet, again).rows == quiet.rows


def test_a_confirmed_phase_fails_the_build() -> None:
    base = Side(name="b", samples=tuple(sample(i, factor=f) for i, f in enumerate(noisy(1, 20))))
    slower = tuple(sample(i, times={"kill": {**times(f), "detect": 0.02 * f}}) for i, f in enumerate(noisy(2, 20)))
    screen = compare(base, Side(name="h", samples=slower))
    assert confirm(screen, screen).exit_code() == 1


def test_trials_that_did_not_recover_are_kept_and_counted() -> None:
    head = side("head", noisy(2, 8))
    lost = tuple(sample(20 + i, succeeded=False, times={"kill": {"recovery": math.inf}}) for i in range(2))
    found = compare(side("base", noisy(1)), replace(head, samples=(*head.samples, *lost)))
    group = row(found, "recovery").head.to_json()
    assert (group["n"], group["not_recovered"]) == (10, 2)
    assert row(found, "success").head.succeeded == 8


def test_what_was_measured_on_one_side_only_is_said() -> None:
    found = compare(side("base", noisy(1)), Side(name="head", samples=()))
    assert (found.verdict, found.exit_code()) == (Outcome.INSUFFICIENT, 3)
    assert "there is no trial of head" in found.rows[0].judgement.reason


def test_notes_name_what_makes_numbers_doubtful() -> None:
    dirty = side("head", noisy(2), code=Code(commit="b" * 40, diff="d1ff"), versions={"torch": "3"})
    unjudged = replace(dirty, samples=(*dirty.samples, sample(99, judged=False, times={}, code=dirty.samples[0].code)))
    said = "\n".join(compare(side("base", noisy(1)), unjudged).notes)
    assert "uncommitted changes (diff d1ff)" in said
    assert "1 of 11 trials of head could not be judged" in said
    assert "A/A" not in said and "codes" not in said
    assert "versions differ: torch: 2.13.0 -> 3" in "\n".join(compare(side("base", noisy(1)), dirty).notes)
    left_no_result = sample(99, judged=False, times={}, code=dirty.samples[0].code, versions={})
    silent = replace(dirty, samples=(*dirty.samples, left_no_result))
    assert "versions" not in "\n".join(compare(side("base", noisy(1)), silent).notes)
    mixed = replace(dirty, samples=(*dirty.samples, *side("head", noisy(3)).samples))
    assert "head is made of trials of 2 codes: " in "\n".join(compare(side("base", noisy(1)), mixed).notes)


def test_a_code_against_itself_is_said_to_be_that() -> None:
    (said,) = compare(side("base", noisy(1)), replace(side("base", noisy(2)), name="again")).notes
    assert said.startswith("both sides are the same code: an A/A comparison")


# --- how it is told ---------------------------------------------------------------------------------------------------


@pytest.fixture
def document() -> dict[str, object]:
    """One regression, one not comparable, and phases that are stable."""
    base, head = side("base", noisy(1)), side("head", noisy(2, factor=1.3))
    more = tuple(sample(i, scenario="a|b", machine={**MACHINE, "cores": 1}) for i in range(6))
    found = compare(
        replace(base, samples=(*base.samples, *(sample(i, scenario="a|b") for i in range(6)))),
        replace(head, samples=(*head.samples, *more)),
    )
    return json.loads(json.dumps(found.to_json(), allow_nan=False))  # type: ignore[no-any-return]


def test_text_has_a_line_a_row_and_the_reasons(document: dict[str, object]) -> None:
    said = present.text(document)
    assert "kill-one  kill   recovery" in said
    assert "kill-one kill recovery: regression: " in said
    assert said.endswith("verdict: regression")


def test_markdown_is_a_table_with_a_marker_and_folds_what_is_stable(document: dict[str, object]) -> None:
    said = present.markdown(document)
    assert said.startswith("<!-- phoenix-compare -->")
    assert "| a\\|b |" in said
    assert said.index("recovery") < said.index("<details>")
    assert "phoenix compare --ab base head --scenario kill-one" in said


def test_junit_fails_regressions_and_skips_what_cannot_be_told(document: dict[str, object]) -> None:
    suite = ElementTree.fromstring(present.junit(document))
    cases = {case.get("name"): case for case in suite}
    failed = cases["kill recovery"].find("failure")
    assert failed is not None and failed.get("message")
    assert cases["kill success"].find("failure") is None
    assert any(case.find("skipped") is not None for case in suite if case.get("classname") == "a|b")
    assert suite.get("tests") == str(len(suite))
    assert suite.get("failures") == "1"


def test_annotations_are_of_one_line_each(document: dict[str, object]) -> None:
    lines = present.github(document).splitlines()
    assert lines[0].startswith("::error title=kill-one kill recovery::")
    assert any(line.startswith("::warning") for line in lines)
    assert lines[-1].startswith("::notice")
    assert all(line.startswith("::") for line in lines)
    assert "%25" in lines[0]


def test_empty_sides_can_be_told_too() -> None:
    nothing = Side(name="x", samples=())
    empty = compare(nothing, nothing).to_json()
    for form in (present.text, present.markdown, present.junit, present.github):
        assert form(empty)
