"""What an Xid asks for, and the check that compares it with what was done: it fails on each planted violation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checks import judge_recovery
from chaos.errors import InvalidScenario, Unsupported
from chaos.evidence import Evidence
from chaos.gpu_health import gpu_health
from chaos.kinds_gpu import GPU_XID
from chaos.nvml.effects import CUDA_ERRORS, asked_for, default_code, default_effect, error_text, healed, struck
from chaos.nvml.prepare import hosts, machine
from chaos.nvml.state import Gpu, NodeGpus
from chaos.nvml.xid_lines import DRIVERS
from chaos.record import PartDirectory
from chaos.recoveries import FaultOutcome, outcomes
from chaos.runtimes import Job, find_runtime, runtime_for
from chaos.scenario import Scenario
from chaos.schema import with_defaults
from chaos.verdict import Verdict
from chaos.wanted import wanted
from phoenix_core.device_errors import classify
from phoenix_core.events import Event
from phoenix_core.xids import Action, catalogue
from tests.records import MS, Events, event, evidence, undisturbed

PCI = "0000:1b:00"
WATCHED = event("gpus_watched", 0, node="n1", gpus=["GPU-1"], used=[0], log="", deaf="")


def injected(xid: int, *, rank: int | None = 1, then: tuple[int, ...] = (), gpus: int = 1, **params: Any) -> Event:
    asked = with_defaults({"xid": xid, "then": list(then), **params}, GPU_XID.params_schema)
    proof = {"xids": [xid, *then], "gpus": [PCI] * gpus}
    receipt = {"fault": "x", "kind": "gpu_xid", "pid": 7, "fidelity": "emulated", "trigger": {"now": True}}
    return event("fault_injected", 31, worker="w1", rank=rank, node="n1", params=asked, proof=proof, **receipt)


def seen(xid: int, at_ms: float = 31.2, node: str = "n1", pci: str = PCI) -> Event:
    return event("xid_seen", at_ms, node=node, xid=xid, source="nvml", gpu=0, pci=pci, words="", action="", told=True)


REPLACED = event("failure_detected", 32, worker="w1", node="n1", rank=1, generation=1, cause="device_error", detail="x")
FENCED = event("node_quarantined", 32, node="n1", reason="a GPU of it needs a reset")
BACK = event("spare_parked", 60, worker="w3", node="n1")
KILLED = event("fault_injected", 31.5, worker="w1", rank=1, node="n1", fault="k", kind="process_kill")
STOPPED = replace(KILLED, at=5 * MS, data={"fault": "s", "kind": "process_stop"})
WELL = event("fault_reverted", 6, worker="w1", node="n1", fault="s", kind="process_stop", alive=True, proof={})
LOST = replace(injected(79), at=KILLED.at, data={**injected(79).data, "fault": "y"})


def judged(*events: Event) -> Evidence:
    told: Events = [WATCHED, *undisturbed(), *events]
    return evidence(told)


@pytest.mark.parametrize(
    ("events", "verdict", "said"),
    [
        ([injected(45), seen(45)], "PASS", "nothing asked for and done"),
        ([injected(45), seen(45), REPLACED], "FAIL", "asks for nothing, and w1 was replaced"),
        ([injected(45), seen(45), FENCED], "FAIL", "asks for nothing, and n1 was quarantined"),
        ([injected(45), seen(45), KILLED, REPLACED], "PASS", "nothing asked for and done"),
        ([injected(45), seen(45), KILLED, REPLACED, FENCED], "FAIL", "asks for nothing, and n1 was quarantined"),
        ([injected(45), seen(45), REPLACED, replace(KILLED, at=40 * MS)], "FAIL", "and w1 was replaced"),
        ([injected(45), seen(45), replace(KILLED, worker="w9"), REPLACED], "FAIL", "and w1 was replaced"),
        ([STOPPED, injected(45), seen(45), REPLACED], "PASS", "nothing asked for and done"),
        ([STOPPED, WELL, injected(45), seen(45), REPLACED], "FAIL", "and w1 was replaced"),
        ([injected(45), seen(45), LOST, seen(79, 31.8), REPLACED, FENCED], "PASS", "y: seen by nvml"),
        ([injected(94), seen(94), LOST, seen(79, 31.8), REPLACED, FENCED], "PASS", "y: seen by nvml"),
        ([injected(94), seen(94), REPLACED, BACK], "PASS", "acted on after 1.0 ms (respawn)"),
        ([injected(94), seen(94), REPLACED], "UNKNOWN", "the job ended before n1 had a new worker"),
        ([injected(94), seen(94), REPLACED, BACK, FENCED], "FAIL", "asks for respawn, and n1 was quarantined"),
        ([injected(94, effect="none"), seen(94)], "FAIL", "w1 was to be replaced, and was not"),
        ([injected(79), seen(79), REPLACED, FENCED], "PASS", "seen by nvml after 0.2 ms"),
        ([injected(79), seen(79), REPLACED], "FAIL", "n1 was to be quarantined, and was not"),
        ([injected(79), REPLACED, FENCED], "FAIL", "nobody on n1 saw Xid 79"),
        ([injected(79), seen(79, node="n0"), REPLACED, FENCED], "FAIL", "nobody on n1 saw Xid 79"),
        ([injected(79), seen(79, pci="0000:99:00"), REPLACED, FENCED], "FAIL", "nobody on n1 saw Xid 79"),
        ([injected(79), seen(79, at_ms=20), REPLACED, FENCED], "FAIL", "nobody on n1 saw Xid 79"),
        ([injected(79, rank=None), seen(79), FENCED], "PASS", "quarantine_node"),
        ([injected(45, effect="kill"), seen(45), REPLACED, BACK], "PASS", "(respawn)"),
        ([injected(62, then=(45, 119)), seen(62), seen(45), REPLACED, FENCED], "FAIL", "nobody on n1 saw Xid 119"),
    ],
)
def test_what_was_done_is_what_was_asked_for(events: list[Event], verdict: str, said: str) -> None:
    result = gpu_health(judged(*events))
    assert (result.verdict, said in result.detail) == (Verdict(verdict), True), result


def test_a_runtime_that_does_not_watch_cannot_be_judged() -> None:
    told = [*undisturbed(), injected(79)]
    assert gpu_health(evidence(told)).verdict is Verdict.UNKNOWN
    assert gpu_health(evidence()).verdict is Verdict.PASS, "no GPU had an error"


def test_for_what_asks_for_nothing_nothing_has_to_be_recovered() -> None:
    for xid, verdict in ((45, Verdict.PASS), (79, Verdict.FAIL)):
        fault = injected(xid)
        outcome = FaultOutcome(fault=fault, recovery=None)
        assert judge_recovery(outcome, judged(fault, seen(xid))).verdict is verdict


def test_a_spare_whose_node_is_quarantined_needs_no_successor() -> None:
    fault = injected(79, rank=None)
    result = judge_recovery(FaultOutcome(fault=fault, recovery=None), judged(fault, seen(79), FENCED))
    assert (result.verdict, "quarantine of its node" in result.detail) == (Verdict.PASS, True)


@pytest.mark.parametrize(
    ("xids", "action"),
    [
        ((13,), Action.RESPAWN),
        ((119,), Action.QUARANTINE_GPU),
        ((79,), Action.QUARANTINE_NODE),
        ((45,), Action.NOTHING),
        ((45, 13), Action.RESPAWN),
        ((62, 45, 119, 154), Action.QUARANTINE_GPU),
        ((145,), Action.NOTHING),
        ((149,), Action.QUARANTINE_GPU),
    ],
)
def test_the_gravest_of_a_sequence_decides(xids: tuple[int, ...], action: Action) -> None:
    assert asked_for(xids, 1, all_gpus=False) is action


def test_links_of_all_gpus_are_the_nodes_and_a_recovery_action_its_own() -> None:
    assert asked_for((145,), 1, all_gpus=True) is Action.QUARANTINE_NODE
    assert asked_for((45, 154), 2, all_gpus=False) is Action.QUARANTINE_NODE
    assert asked_for((45, 154), 0, all_gpus=False) is Action.NOTHING
    assert wanted(injected(145, gpus=2, effect="none")) is Action.QUARANTINE_NODE


def test_every_entry_has_an_effect_that_the_runtime_tells_from_a_scripts_mistake() -> None:
    for xid in catalogue():
        if default_effect(xid) == "raise":
            code = default_code(xid)
            assert code in CUDA_ERRORS
            # An assertion in a kernel is the script's own: an index out of bounds would come again.
            assert (classify(error_text(code)) is None) == (code == 710), (xid, code)


def test_a_struck_gpu_shows_it_and_a_healed_one_only_what_it_counted() -> None:
    driver = DRIVERS["r535"]
    for xid, shown in (
        (79, {"lost": 1}),
        (119, {"block_ms": 6000}),
        (154, {"recovery_action": 4}),
        (48, {"ecc_uncorrected_volatile": 1, "ecc_uncorrected_aggregate": 1}),
        (63, {"remap_uncorrected": 1, "remap_pending": 1}),
        (74, {"links_down": 1 << 14, "nvlink_crc_data": 1}),
        (13, {}),
    ):
        well = Gpu(uuid="GPU-1", bus=1)
        hit = struck(well, xid, driver, 4)
        assert {name: value for name, value in hit.__dict__.items() if value != getattr(well, name)} == shown
        counted = ("ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remap_uncorrected", "nvlink_crc_data")
        kept = {name: value for name, value in shown.items() if name in counted}
        assert {name: value for name, value in healed(hit).__dict__.items() if value != getattr(well, name)} == kept


def test_nodes_are_started_with_their_own_gpus_wherever_they_are(tmp_path: Path) -> None:
    given = {"coordinator": "10.0.0.1", "nodes": {"n0": {"address": "10.0.0.2", "prefix": ["nsenter", "--"]}}}
    document = hosts(tmp_path, Path("/lib"), ["n0", "n1"], given)
    assert document["coordinator"] == "10.0.0.1" and document["nodes"]["n0"]["address"] == "10.0.0.2"
    prefix = document["nodes"]["n0"]["prefix"]
    assert prefix[:3] == ["nsenter", "--", "env"] and f"PHOENIX_NVML_DIR={tmp_path}/n0" in prefix
    assert any(part.startswith("LD_LIBRARY_PATH=/lib") for part in prefix)
    assert f"PHOENIX_KERNEL_LOG={NodeGpus(tmp_path / 'n1').kernel_log}" in document["nodes"]["n1"]["prefix"]
    assert json.loads(json.dumps(document)) == document


def test_the_gpus_of_a_node_are_the_same_in_every_trial_and_those_of_others_are_others() -> None:
    one, other = machine("n0", 8, "r570"), machine("n1", 8, "r570")
    assert one == machine("n0", 8, "r570") and one.driver == "570.148.08"
    assert not {gpu.uuid for gpu in one.gpus} & {gpu.uuid for gpu in other.gpus}
    assert len({gpu.pci for gpu in machine("n0", 32, "r570").gpus}) == 32


def planned(**cluster: object) -> Scenario:
    fault = {"kind": "gpu_xid", "target": {"rank": 1}, "params": {"xid": 79}}
    document = {"name": "x", "workload": "gpt-tiny", "steps": 5, "faults": [fault], "cluster": cluster}
    return Scenario.from_json(document)


def test_where_there_is_no_gpu_none_can_fail() -> None:
    with pytest.raises(InvalidScenario) as refused:
        planned()
    assert refused.value.field == "faults[0].kind" and "set cluster.gpus to a driver (r535, r570" in str(refused.value)
    assert planned(gpus="r570").cluster.gpus == "r570"


def test_a_scenario_is_refused_before_it_starts_where_no_gpu_can_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.runtimes.no_gpus", lambda: "emulated GPUs need a C compiler")
    with pytest.raises(Unsupported) as refused:
        runtime_for(planned(gpus="r570"))
    assert (refused.value.field, refused.value.reason) == ("cluster.gpus", "emulated GPUs need a C compiler")


def test_each_node_is_prepared_before_the_job_starts_isolated_or_not(tmp_path: Path) -> None:
    for isolation, makers in (
        ("none", ["chaos.nvml.prepare"]),
        ("namespaces", ["chaos.cluster.build", "chaos.nvml.prepare"]),
    ):
        cluster = planned(gpus="r580", isolation=isolation, ranks_per_node=2).cluster
        job = Job(workload=("x",), steps=5, seed=1, cluster=cluster, directory=PartDirectory(path=tmp_path))
        argv = find_runtime("phoenix").command(job).argv
        assert [part for part in argv if part.startswith("chaos.") and part != "chaos.agent"] == makers
        assert argv[argv.index("--gpus") + 1] == "2" and argv[argv.index("--driver") + 1] == "r580"
        last_hosts = len(argv) - 1 - argv[::-1].index("--hosts")
        assert argv[last_hosts + 1] == str(tmp_path / "gpus" / "hosts.json")


@pytest.mark.parametrize(("xid", "shares"), [(94, True), (63, False)])
def test_an_xid_shares_the_recovery_of_a_later_kill_unless_it_asks_for_nothing(xid: int, shares: bool) -> None:
    """That nothing of it lasts is said at once, and does not mean that it was without effect."""
    over = event("fault_reverted", 31.3, worker="w1", node="n1", fault="x", kind="gpu_xid", alive=False, proof={})
    found = outcomes([*undisturbed(), injected(xid), over, KILLED, REPLACED])
    assert {str(o.fault.data["fault"]): o.detected is not None for o in found if o.fault} == {"x": shares, "k": True}
