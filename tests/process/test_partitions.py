"""The scenarios of a broken network, with the real runtime: whole trials that must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.record import TrialDirectory
from chaos.scenario import load_scenario
from chaos.trial import run_trial
from chaos.verdict import Verdict
from phoenix_core.events import read_events
from tests.process.isolated import skip_where_refused

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
pytestmark = [pytest.mark.process, pytest.mark.soak]


@pytest.mark.parametrize(
    ("name", "blamed"),
    [
        ("isolate-one", "w2"),
        ("cut-data-network", "w2"),
        ("slow-network", None),
        ("reset-data", None),
        ("flapping-link", None),
    ],
)
def test_a_broken_network_is_survived_bit_for_bit_and_is_whole_again(
    run_dir: Path, name: str, blamed: str | None
) -> None:
    skip_where_refused()
    directory = TrialDirectory.create(run_dir / "trial", load_scenario(SCENARIOS / f"{name}.yaml"))
    result = run_trial(directory)
    assert result.verdict is Verdict.PASS, result.to_json()
    (receipt,) = [event for event in read_events(directory.run.events) if event.kind == "fault_injected"]
    assert receipt.data["proof"]
    (recovery,) = result.recoveries
    assert (recovery.blamed["worker"] if recovery.blamed else None) == blamed
