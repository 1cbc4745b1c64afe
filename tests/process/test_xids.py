"""Xids of emulated GPUs in whole trials: what the monitor sees, what the runtime does, and the run that comes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaos.record import Result, TrialDirectory
from chaos.scenario import Scenario, load_scenario
from chaos.trial import run_trial
from chaos.verdict import Verdict
from phoenix_core.events import Event, read_events

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler (apt-get install gcc libc6-dev)"),
]

LIBRARY = Path(__file__).resolve().parents[2] / "scenarios"


class Trial:
    def __init__(self, run_dir: Path, scenario: Scenario) -> None:
        self.directory = TrialDirectory.create(run_dir / "trial", scenario)
        self.result: Result = run_trial(self.directory)
        self.events = read_events(self.directory.run.events)
        assert self.result.verdict is Verdict.PASS, self.result.to_json()

    def told(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def quarantined(self) -> set[str | None]:
        return {event.node for event in self.told("node_quarantined")}


def test_a_lost_gpu_is_replaced_before_anybody_waits_for_it(run_dir: Path) -> None:
    """Seen by NVML's event alone: the process would have gone on."""
    document = load_scenario(LIBRARY / "xid-79-lost-gpu.yaml").to_json()
    fault = {"id": "lost", "kind": "gpu_xid", "target": {"rank": 1}, "trigger": {"at_step": 20}}
    fault["params"] = {"xid": 79, "effect": "none", "witnesses": "nvml"}
    small = {"faults": [fault], "steps": 40, "cluster": {"nodes": 2, "spares": 1, "gpus": "r570"}}
    trial = Trial(run_dir, Scenario.from_json({**document, **small}))
    (receipt,), (failure,) = trial.told("fault_injected"), trial.told("failure_detected")
    proof = receipt.data["proof"]
    assert isinstance(proof, dict) and (proof["events"], proof["delivered"]) == (1, 1)
    assert (failure.rank, failure.node, failure.data["cause"], failure.data["xids"]) == (1, "n1", "device_error", [79])
    assert trial.quarantined() == {"n1"}
    (recovery,) = trial.result.recoveries
    assert recovery.blamed == {"rank": 1, "worker": "w1", "cause": "device_error"}
    assert not [event for event in trial.told("worker_spawned") if event.node == "n1" and event.at > receipt.at]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "quarantined"),
    [
        ("xid-79-lost-gpu", {"n2"}),
        ("xid-45-after-kill", set()),
        ("xid-94-contained", set()),
        ("xid-13-and-119", {"n3"}),
        ("xid-62-45-119-154", {"n2"}),
        ("xid-memory-decay", {"n2"}),
        ("xid-149-45-154", {"n2"}),
        ("xid-145-all-gpus", {"n1"}),
    ],
)
def test_a_scenario_of_the_library_does_what_the_catalogue_asks_for(
    run_dir: Path, name: str, quarantined: set[str]
) -> None:
    trial = Trial(run_dir, load_scenario(LIBRARY / f"{name}.yaml"))
    assert trial.quarantined() == quarantined
