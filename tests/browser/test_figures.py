"""Figures, waterfalls, forms and texts, as data."""

from __future__ import annotations

import ast
import itertools
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import dashboards
from dashboards import forms, text, waterfall
from dashboards.figures import MAX_POINTS, clean, loss_figure, thin, throughput
from dashboards.history_figure import LETTER, history_figure, phases_figure
from dashboards.pages import run
from dashboards.recovery import trigger_text
from tests.browser import fake_history
from tests.browser.fake_api import KILL_S, KINDS, PHASES, STOP_S, FakeApi, recovery_json, run_json, step_json, with_bars

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_the_loss_figure_holds_every_step_fault_and_recovery(api: FakeApi) -> None:
    figure = loss_figure(api.steps, api.faults, api.recoveries, key="r3")
    loss, rate, faults = figure["data"]
    assert loss["x"] == [step["at_s"] for step in api.steps]
    assert loss["y"] == [step["loss"] for step in api.steps]
    assert [pair[0] for pair in loss["customdata"]] == list(range(130))
    assert faults["text"] == ["fault 1: process_kill on rank 2", "fault 2: process_stop on rank 1"]
    windows = [(s["x0"], s["x1"]) for s in figure["layout"]["shapes"] if s.get("name") == "recovery"]
    assert windows == [(r["started_s"], r["started_s"] + r["recovery_s"]) for r in api.recoveries]
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["1", "2"]
    assert min(rate["y"]) < 0.5 < 3 < max(rate["y"]), "the freeze of two seconds is a dip in the pace"


def test_a_long_run_is_thinned_but_its_spike_stays() -> None:
    steps = [step_json(step) for step in range(20_000)]
    steps[12_345]["loss"] = 99.0
    shown = thin(steps)
    assert len(shown) <= MAX_POINTS
    assert max(step["loss"] for step in shown) == 99.0
    assert shown[0] is steps[0] and shown[-1] is steps[-1]
    assert [step["step"] for step in shown] == sorted({step["step"] for step in shown})
    assert len(throughput(steps)) <= 300


@pytest.mark.parametrize("steps", [[], [step_json(0)], [{**step_json(0), "loss": None}]])
def test_a_run_that_just_began_has_a_figure(steps: list[dict[str, Any]]) -> None:
    figure = loss_figure(steps, [], [], key="r")
    json.dumps(figure, allow_nan=False)
    assert figure["data"][1]["x"] == []


def test_a_loss_that_is_not_finite_is_counted_and_not_drawn(api: FakeApi) -> None:
    steps = [*api.steps[:5], {**step_json(5), "loss": math.nan}]
    assert len(thin(steps)) == 5
    assert text.number(math.nan) == "not finite"
    assert clean({"a": [math.inf, 1.5]}) == {"a": [None, 1.5]}


@pytest.mark.parametrize("lengths", [KILL_S, STOP_S])
def test_phases_of_a_waterfall_tile_it(lengths: tuple[float, ...]) -> None:
    recovery = with_bars(recovery_json("f1", "process_kill", 2, "w2", lengths), 12.41)
    picture = waterfall.build(recovery, 12.41)
    bars = [lane.bars[0] for lane in picture.phases]
    assert [lane.name for lane in picture.phases] == list(PHASES)
    assert bars[0].start_s == 0
    for before, after in itertools.pairwise(bars):
        assert after.start_s == pytest.approx(before.end_s)
    assert bars[-1].end_s == pytest.approx(sum(lengths))
    assert picture.ready_x == pytest.approx(100 * sum(lengths[:-1]) / sum(lengths))
    assert [lane.name for lane in picture.parties] == ["coordinator", "rank 0", "rank 1", "rank 2", "rank 3"]
    drawn = [bar for lane in [*picture.phases, *picture.parties] for bar in lane.bars]
    assert all(bar.width >= waterfall.MIN_WIDTH and bar.x >= 0 and bar.x + bar.width <= 100.001 for bar in drawn)
    assert {bar.style for bar in drawn} == set(PHASES)
    assert picture.problem == ""


def test_a_recovery_that_has_not_ended_says_where_it_stands() -> None:
    lengths = dict.fromkeys(PHASES, None) | {"detect": 0.002, "quiesce": 0.006}
    picture = waterfall.build({"phases": lengths, "recovery_s": None, "downtime_s": None})
    assert picture.problem == "Not complete: the replace phase has not ended."
    assert picture.phases[2].value == "not ended" and picture.phases[2].bars == []
    assert picture.ready_x is None


def test_clocks_that_disagree_are_an_error_and_no_bar() -> None:
    recovery = recovery_json("f1", "process_kill", 2, "w2", (0.1, -0.05, 0.1, 0.1, 0.1, 0.1))
    assert "negative length" in waterfall.build(recovery).problem


def test_a_phase_that_took_no_time_has_a_number_and_no_bar() -> None:
    recovery = recovery_json("f1", "process_kill", 2, "w2", (0.1, 0.02, 0.0, 0.03, 0.01, 0.2))
    replace = waterfall.build(recovery).phases[2]
    assert replace.bars[0].width == 0 and replace.value.replace(text.THIN, " ") == "0.0 ms"


def test_rank_ten_comes_after_rank_nine() -> None:
    bars = [{"row": f"rank {r}", "label": "restore", "start_s": 0.0, "end_s": 1.0} for r in (10, 9, 2)]
    recovery = {**recovery_json("f", "process_kill", 2, "w2", KILL_S), "bars": bars}
    assert [lane.name for lane in waterfall.build(recovery, 0.0).parties] == ["rank 2", "rank 9", "rank 10"]


@pytest.mark.parametrize(("span", "last"), [(0.0, 0.0), (0.449, 0.4), (2.05, 2.0), (0.0031, 0.003), (17.0, 15.0)])
def test_ticks_are_round_and_few(span: float, last: float) -> None:
    ticks = waterfall.ticks(span)
    assert ticks[0] == 0 and ticks[-1] == pytest.approx(last) and len(ticks) <= 6


@pytest.mark.parametrize("total", [0.0004, 0.45, 1.44, 2.1, 17.0])
def test_words_below_a_waterfall_do_not_lie_over_each_other(total: float) -> None:
    recovery = recovery_json("f", "process_kill", 2, "w2", (total, 0.0, 0.0, 0.0, 0.0, 0.0))
    for steps in ([], [{"at_s": -0.8 * total}, {"at_s": 1.5 * total}]):
        shown = [tick for tick in waterfall.build(recovery, 0.0, steps).ticks if not tick.minor]
        begin = {"start": 0.0, "middle": 0.5, "end": 1.0}
        spans = [
            (tick.x - begin[tick.anchor] * wide, tick.x + (1 - begin[tick.anchor]) * wide)
            for tick, wide in ((tick, waterfall.LETTER * len(tick.label)) for tick in shown)
        ]
        assert len(shown) >= 2 and all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        assert spans[0][0] >= 0 and spans[-1][1] <= 100 + waterfall.LETTER


def test_a_form_follows_the_schema() -> None:
    schema = {
        "required": ["signal"],
        "properties": {
            "ttl_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "default": 60, "title": "Lasts"},
            "signal": {"enum": ["KILL", "TERM"], "description": "which one"},
            "core": {"type": "boolean", "default": False},
            "delay": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
            "shape": {"type": "object"},
        },
    }
    ttl, signal, core, delay, shape = forms.fields(schema)
    assert (ttl.title, ttl.type, ttl.default, ttl.least, ttl.most) == ("Lasts", "number", "60", 0, 3600)
    assert (signal.type, signal.required, signal.choices, signal.hint) == (
        "choice",
        True,
        ["KILL", "TERM"],
        "which one",
    )
    assert (core.type, core.default) == ("boolean", "false")
    assert (delay.type, delay.least, delay.default, delay.required) == ("integer", 1, "", False)
    assert shape.type == "json"
    assert [kind.targets for kind in forms.kinds(KINDS)] == ["rank random_rank spare", "rank random_rank"]


def test_a_choice_of_numbers_is_sent_as_a_number() -> None:
    (field,) = forms.fields({"properties": {"xid": {"type": "integer", "enum": [13, 79]}}, "required": ["xid"]})
    assert (field.type, list(field.choices), field.required) == ("integer", ["13", "79"], True)


@pytest.mark.parametrize("cuts", [range(1, 30), [29], [1], []])
def test_words_above_a_history_lie_neither_over_each_other_nor_over_an_end(cuts: Sequence[int]) -> None:
    history = fake_history.history("stop-one", "recovery")
    history["breaks"] = [{"index": index, "kind": "machine", "fields": []} for index in cuts]
    history["annotations"] = []
    for figure in (history_figure(history), phases_figure({"detect": history})):
        words = [chip for chip in figure["layout"]["annotations"] if chip["text"] == "other machine"]
        wide = LETTER * len("other machine") * 30
        begin = {"left": 0.0, "center": wide / 2, "right": wide}
        spans = sorted(
            (word["x"] - begin[word["xanchor"]], word["x"] - begin[word["xanchor"]] + wide) for word in words
        )
        assert len(words) >= min(1, len(cuts)) and all(
            end <= start for (_, end), (start, _) in itertools.pairwise(spans)
        )
        assert all(start >= -0.6 and end <= 29.6 for start, end in spans)
        lines = [shape for shape in figure["layout"]["shapes"] if shape["line"]["color"] == "@muted"]
        assert len(lines) == len(cuts), "each has its line"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.00004, "0.0 ms"), (0.0021, "2.1 ms"), (0.2613, "261 ms"), (2.048, "2 048 ms"), (None, "–")],
)
def test_milliseconds(seconds: float | None, shown: str) -> None:
    assert text.milliseconds(seconds).replace(text.THIN, " ") == shown


def test_times_are_read_as_utc_and_told_in_one_unit() -> None:
    assert text.clock("2026-11-29T13:00:00+02:00") == "2026-11-29 11:00:00 UTC"
    assert text.clock("2026-11-29T11:00:00") == "2026-11-29 11:00:00 UTC"
    assert text.age("2026-11-29T11:57:00Z", NOW).replace(text.THIN, " ") == "3 min ago"
    assert text.age("2026-11-29T12:00:09Z", NOW).replace(text.THIN, " ") == "0 s ago", "clocks may differ a little"
    assert text.span("2026-11-29T11:58:45Z", None, NOW).replace(text.THIN, " ") == "1 min 15 s"


def test_the_announcement_changes_by_tenths_and_not_by_steps() -> None:
    said = {run.announcement(run_json("r", step=step), []) for step in range(200)}
    assert len(said) == 11
    assert run.announcement(run_json("r", step=99), []) == "Run running, 50 percent of the steps, no recovery so far."


@pytest.mark.parametrize(
    ("trigger", "shown"),
    [
        ({"now": True}, "now"),
        ({"at_step": 20}, "at step 20"),
        ({"after_s": 5.0}, "after 5.0 s"),
        ({"phase": "backward", "step": 7, "occurrence": 2}, "on entering backward of step 7, time 2"),
        ({"phase": "optimizer", "occurrence": 1}, "on entering optimizer"),
    ],
)
def test_triggers_in_words(trigger: dict[str, Any], shown: str) -> None:
    assert trigger_text(trigger).replace(text.THIN, " ") == shown


def test_the_pages_import_nothing_of_the_other_packages() -> None:
    """They know the service by HTTP alone, and draw without importing Plotly."""
    for path in Path(dashboards.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = {"phoenix_core", "chaos", "service", "benchmarks", "plotly"}
            assert not foreign & {name.split(".")[0] for name in names}, path


def test_own_scripts_and_styles_stay_small() -> None:
    static = Path(dashboards.__path__[0]) / "static"
    for suffix, most in (("js", 300), ("css", 400)):
        assert {path.name for path in static.glob(f"*.{suffix}") if len(path.read_text().splitlines()) > most} == set()
