"""The recoveries of a trial as people read them in a log."""

from __future__ import annotations

import pytest
from rich.console import Console

from service.report import PHASES, recovery_table


@pytest.mark.parametrize("number", [1, 3, 4, 12])
def test_each_row_has_its_name_in_a_log_however_many_recoveries_there_are(number: int) -> None:
    recovery = {
        "fault": {"kind": "checkpoint_truncate"},
        "target": {"rank": 1, "worker": "w1"},
        "blamed": {"rank": 1, "worker": "w1", "cause": "stopped"},
        "phases": dict.fromkeys(PHASES, 12.3456),
        "recovery_s": 74.1,
        "downtime_s": 74.1,
        "lost_steps": 2,
        "checks": {"fired": "PASS"},
    }
    console = Console(width=80)
    with console.capture() as captured:
        console.print(recovery_table([recovery] * number))
    told = captured.get()
    assert told.count("rank 1 (w1): stopped") == told.count("checkpoint_truncate") == number
    assert told.count("recovery time") == told.count("reconstruct") == (number + 1) // 2
