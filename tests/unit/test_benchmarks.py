"""The benchmarks' arithmetic and their pages; what they measure is measured by `make bench`."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import overhead, recovery
from benchmarks.gated import Snapshots
from benchmarks.overhead import Pair
from benchmarks.report import circumstances
from benchmarks.stats import Spread, paired_ratio
from chaos.faults import Rank
from chaos.triggers import OnPhase

TIMES = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=20)


def test_a_spread_is_median_and_range() -> None:
    assert Spread(values=(0.1, 0.3, 0.2)).text(unit=1000) == "200 (100-300)"
    assert Spread(values=()).text() == "-"


@settings(deadline=None)  # a deadline would judge the machine
@given(TIMES)
def test_exchanging_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    treated, baseline = zip(*pairs, strict=True)
    there = paired_ratio(treated, baseline, draws=200)
    back = paired_ratio(baseline, treated, draws=200)
    assert there.value * back.value == pytest.approx(1.0)
    assert there.low <= there.value * (1 + 1e-9)
    assert there.high >= there.value * (1 - 1e-9)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """400 experiments of 24 noisy pairs with a true ratio of 1.02; a percentile interval of 24 covers about 93 %."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        treated = 1.02 * np.exp(generator.normal(0, 0.05, 24))
        ratio = paired_ratio(treated.tolist(), [1.0] * 24, draws=500)
        covered += ratio.low <= 1.02 <= ratio.high
    assert 0.89 <= covered / 400 <= 0.98


def test_one_pair_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two pairs, there is 1"):
        paired_ratio([1.0], [1.0])


def test_the_recovery_scenario_spreads_faults_over_phases_and_ranks() -> None:
    scenario = recovery.scenario_of(1, recovery.parse_options(["--spacing", "20"]))
    assert len(scenario.faults) == 8
    steps = [fault.trigger.step for fault in scenario.faults if isinstance(fault.trigger, OnPhase)]
    assert steps == [20 * number for number in range(1, 9)]
    assert scenario.steps > max(step or 0 for step in steps)
    assert {fault.target.rank for fault in scenario.faults if isinstance(fault.target, Rank)} == {0, 1, 2, 3}
    for kind in recovery.KINDS:
        triggers = [fault.trigger for fault in scenario.faults if fault.kind == kind]
        assert {trigger.phase for trigger in triggers if isinstance(trigger, OnPhase)} == set(recovery.PHASES)


def a_sample(recovery_s: float) -> dict[str, object]:
    phases = {"detect": 0.01, "quiesce": 0.02, "replace": 0.1, "reconstruct": 0.0, "restore": None, "recompute": 0.3}
    fault = {"id": "process_kill-in-backward-of-trial-0", "kind": "process_kill"}
    return {
        "fault": fault,
        "phases": phases,
        "recovery_s": recovery_s,
        "downtime_s": None,
        "lost_steps": 1,
        "spare_ready": True,
    }


def test_a_recovery_page_shows_what_is_known_and_dashes_for_the_rest() -> None:
    rows = recovery.rows([a_sample(0.5), a_sample(0.7)])
    assert [row[0].strip() for row in rows] == ["process_kill", "in backward"]
    assert rows[0][1] == "2"
    assert rows[0][recovery.COLUMNS.index("recovery") + 2] == "600 (500-700)"
    assert rows[0][recovery.COLUMNS.index("restore") + 2] == "-"
    assert rows[0][-1] == "1"


def test_an_overhead_page_charges_what_the_waiting_job_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    pair = Pair(
        session=0,
        treated_s=1.0,
        baseline_s=1.0,
        treated_cpu_s=2.2,
        baseline_cpu_s=2.0,
        treated_idle_cores=0.05,
        baseline_idle_cores=0.01,
        snapshots=Snapshots(stall_share=0.002, copied=32e6, sent=16e6),
    )
    assert overhead.hidden([pair, pair]) == pytest.approx(0.02)
    where = circumstances()
    page = overhead.page([pair, pair], where, "make bench")
    assert "**1.000** (1.000-1.000)" in page
    assert "hardly touches: 1.100" in page
    assert "the ratio is 1.020 (1.020-1.020)" in page
    assert "0.20 % of the step" in page and "copied 32.0 MB and sent 16.0 MB in a step" in page


@pytest.mark.parametrize("arguments", [["--pairs", "1"], ["--block-steps", "1"], ["--sessions", "0"], ["--ranks", "0"]])
def test_too_little_to_measure_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        overhead.parse_options(arguments)
    assert ended.value.code == 2
    assert "needs at least 2 pairs" in capsys.readouterr().err


def test_options_of_the_workload_follow_two_dashes() -> None:
    options: argparse.Namespace = overhead.parse_options(["--pairs", "3", "--", "--layers", "2"])
    assert options.workload == ["--layers", "2"]
