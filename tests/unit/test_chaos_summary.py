"""What came of a suite: its verdict, and the same told as JSON, Markdown and JUnit; goodput."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from chaos.goodput import Goodput, goodput, total
from chaos.provenance import Provenance
from chaos.summary import Entry, State, Summary, junit, markdown, tally
from chaos.verdict import Verdict, failed, passed
from tests.records import MS, disturbed, undisturbed


def entry(state: str, **changes: Any) -> Entry:
    reasons = {
        "PASS": "",
        "FAIL": "twin: loss differs\nlast lines | of a log \x1b[1m",
        "UNKNOWN": "missed",
        "KNOWN": "known: so it is",
        "SKIPPED": "no net",
    }
    values = {
        "name": state.lower(),
        "scenario": "x",
        "seed": 1,
        "state": State(state),
        "reason": reasons[state],
        "seconds": 2.5,
    }
    return Entry(**{**values, **changes})


def summary(*states: str, strict: bool = False) -> Summary:
    good = {
        "checks": {"twin": passed("equal")},
        "faults": 1,
        "recovery_s": (0.25,),
        "goodput": Goodput(kept_s=3, elapsed_s=4),
    }
    entries = [entry(state, **(good if state == "PASS" else {})) for state in states]
    return Summary(
        suite="nightly",
        description="All of it.",
        entries=entries,
        provenance=Provenance(commit="abc", dirty=True, versions={}),
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T00:02:05Z",
        elapsed_s=125.4,
        strict=strict,
    )


@pytest.mark.parametrize(
    ("states", "strict", "verdict"),
    [
        ("PASS PASS", False, "PASS"),
        ("PASS UNKNOWN", False, "UNKNOWN"),
        ("PASS UNKNOWN FAIL", False, "FAIL"),
        ("PASS SKIPPED", False, "PASS"),
        ("PASS SKIPPED", True, "FAIL"),
        ("UNKNOWN SKIPPED", False, "UNKNOWN"),
        ("PASS KNOWN", True, "PASS"),
        ("KNOWN UNKNOWN", False, "UNKNOWN"),
        ("SKIPPED", False, "UNKNOWN"),
        ("", False, "UNKNOWN"),
    ],
)
def test_the_worst_counts_and_what_was_skipped_only_if_asked(states: str, strict: bool, verdict: str) -> None:
    assert summary(*states.split(), strict=strict).verdict is Verdict(verdict)


def test_a_suite_that_was_killed_in_the_middle_has_not_passed() -> None:
    """Its summary on disk stays as it was after the last trial."""
    assert replace(summary("PASS"), finished_at=None).verdict is Verdict.UNKNOWN
    assert replace(summary("PASS", "FAIL"), finished_at=None).verdict is Verdict.FAIL


ALL = ("PASS", "FAIL", "UNKNOWN", "KNOWN", "SKIPPED")


def test_json_tells_all() -> None:
    told = json.loads(json.dumps(summary(*ALL).to_json()))
    assert (told["verdict"], told["counts"]) == ("FAIL", dict.fromkeys(ALL, 1))
    assert [trial["state"] for trial in told["trials"]] == list(ALL)
    assert told["trials"][0]["recovery_s"] == [0.25] and told["goodput"]["goodput"] == 0.75
    assert (told["commit"], told["dirty"]) == ("abc", True)


def test_markdown_has_a_row_for_each_and_says_why() -> None:
    bad = replace(entry("FAIL"), checks={"twin": failed("loss differs")})
    page = markdown(replace(summary(), entries=[*summary("PASS").entries, bad]))
    assert "| pass | PASS | 2.5 | 1 | 0.25 | 75.0% | - |" in page
    assert "| fail | FAIL | 2.5 | 0 | - | - | twin FAIL |" in page
    assert "- **fail** (FAIL): twin: loss differs; last lines \\| of a log" in page
    assert "Goodput of all disturbed runs: 75.0% (3.0 of 4.0 s)." in page


def test_junit_can_be_parsed_whatever_a_log_holds() -> None:
    root = ElementTree.fromstring(junit(summary(*ALL)))
    (suite,) = root
    for element in (root, suite):
        assert [element.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "2"]
    cases = {case.get("name"): case for case in suite}
    tags = {name: [part.tag for part in case] for name, case in cases.items()}
    assert tags["pass"] == ["properties", "system-out"]
    assert [tags[name.lower()][1] for name in ALL[1:]] == ["failure", "error", "skipped", "skipped"]
    failure = cases["fail"].find("failure")
    assert failure is not None and failure.get("message") == "twin: loss differs"
    values = {part.get("name"): part.get("value") for part in cases["pass"].iter("property")}
    assert values == {"scenario": "x", "seed": "1", "faults": "1", "recovery_s": "0.2500", "goodput": "0.7500"}


def test_the_tally_counts_what_there_is() -> None:
    assert tally(summary("PASS", "PASS", "SKIPPED")) == "2 PASS, 1 SKIPPED in 2 min 5 s"
    assert tally(summary()) == "nothing ran in 2 min 5 s"


# --- goodput ---


def test_goodput_counts_each_kept_step_once() -> None:
    """Four steps of 5 ms each, one every 10 ms: the first begins at 10 ms and the last is committed at 45 ms."""
    assert goodput(undisturbed()) == Goodput(kept_s=0.02, elapsed_s=0.035)


def test_a_recovery_and_what_is_executed_again_lower_it() -> None:
    lost = [one for one in disturbed() if (one.kind, one.rank, one.step) != ("step_committed", 0, 2)]
    again = [
        replace(one, at=one.at + 20 * MS, step=2)
        for one in disturbed()
        if one.step == 3 and one.kind == "step_committed"
    ]
    assert goodput(lost + again) == Goodput(kept_s=0.02, elapsed_s=0.065)


def test_there_is_no_goodput_without_a_step() -> None:
    assert goodput([]) is None and total([]) is None


def test_the_total_weighs_by_time() -> None:
    both = total([Goodput(kept_s=9, elapsed_s=10), Goodput(kept_s=0, elapsed_s=90)])
    assert both is not None and both.share == pytest.approx(0.09)
    assert Goodput.from_json(both.to_json()) == both
