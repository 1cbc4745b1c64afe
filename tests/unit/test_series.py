"""A series as one line of Home: what it says of trials that nobody could judge."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dashboards.series import line_of


@pytest.mark.parametrize(
    ("succeeded", "judged", "trials", "said", "failed"),
    [(0, 0, 1, "not judged", False), (1, 1, 3, "1/1", False), (1, 2, 3, "1/2", True)],
)
def test_a_trial_that_was_not_judged_has_not_failed(
    succeeded: int, judged: int, trials: int, said: str, *, failed: bool
) -> None:
    point: dict[str, Any] = {
        "index": 0, "at": "2026-01-03T09:00:00Z", "n": 0, "median": None, "low": None, "high": None,
        "not_recovered": 0, "succeeded": succeeded, "judged": judged, "trials": ["t"] * trials,
    }  # fmt: skip
    history = {"scenario": "s", "fault": "", "metric": "recovery", "change_points": [], "breaks": [], "points": [point]}
    line = line_of(history, datetime(2026, 1, 3, tzinfo=UTC))
    assert (line.success, line.failed, line.sparks[0].failed) == (said, failed, failed)
