"""Faults as values: JSON forms, and every refusal names its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import InvalidFault, UnknownFaultKind
from chaos.faults import (
    Coordinator,
    Injection,
    Node,
    PlannedFault,
    RandomRank,
    Rank,
    Spare,
    Store,
    target_from_json,
)
from chaos.injectors import INJECTORS
from chaos.injectors.gpu import GpuXid
from chaos.injectors.inside import inside_injectors
from chaos.injectors.storage import storage_injectors
from chaos.kinds import FAULT_KINDS, Fidelity, Scope
from chaos.record import PartDirectory
from chaos.scenario import Cluster
from chaos.triggers import (
    RECOVERY_PHASES,
    TRAINING_PHASES,
    AfterSeconds,
    AtStep,
    Now,
    OnPhase,
    OnRecovery,
    Poisson,
    Trace,
    trigger_from_json,
)
from phoenix_core.events import EventWriter

KILL: dict[str, Any] = {"id": "a", "kind": "process_kill", "target": {"rank": 2}, "trigger": {"at_step": 3}}

targets = st.one_of(
    st.builds(Rank, rank=st.integers(0, 999)),
    st.builds(RandomRank),
    st.builds(Spare),
    st.builds(Node, node=st.integers(0, 999).map(lambda index: f"n{index}")),
    st.builds(Coordinator),
    st.builds(Store),
)
triggers = st.one_of(
    st.builds(Now),
    st.builds(AtStep, at_step=st.integers(0, 10**6), repeat=st.integers(1, 9)),
    st.builds(AfterSeconds, after_s=st.floats(0, 1e6), if_running=st.booleans()),
    st.builds(
        OnPhase,
        phase=st.sampled_from(TRAINING_PHASES),
        step=st.none() | st.integers(0, 10**6),
        occurrence=st.integers(1, 99),
        offset_s=st.floats(0, 1e6),
        repeat=st.integers(1, 9),
    ),
    st.builds(
        OnRecovery,
        recovery_phase=st.sampled_from(RECOVERY_PHASES),
        occurrence=st.integers(1, 99),
        offset_s=st.floats(0, 9),
    ),
    st.builds(Poisson, mtbf_s=st.floats(0.1, 1e6), count=st.integers(1, 999)),
    st.builds(Poisson, mtbf_s=st.floats(1, 1e6), horizon_s=st.floats(1, 400)),
    st.builds(Trace, trace=st.lists(st.floats(0, 1e6), min_size=1, max_size=9).map(tuple)),
)


@given(target=targets, trigger=triggers)
def test_json_forms_lose_nothing(target: Any, trigger: Any) -> None:
    assert target_from_json(target.to_json()) == target
    assert trigger_from_json(trigger.to_json()) == trigger


def test_defaults_of_params_are_filled_in() -> None:
    fault = PlannedFault.from_json({"kind": "process_stop", "target": {"spare": True}}, id="x")
    assert fault.params == {"ttl_s": 60}
    assert fault.trigger == Now()
    assert PlannedFault.from_json(fault.to_json()) == fault


def test_a_live_request_names_its_id_under_fault() -> None:
    assert PlannedFault.from_json({"fault": "f9", "kind": "process_kill", "target": {"rank": 0}}).id == "f9"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"target": {}}, "target"),
        ({"target": {"rank": 1, "spare": True}}, "target"),
        ({"target": None}, "target"),
        ({"target": {"rank": -1}}, "target.rank"),
        ({"target": {"rank": True}}, "target.rank"),
        ({"target": {"rank": "1"}}, "target.rank"),
        ({"target": {"spare": False}}, "target.spare"),
        ({"target": {"everyone": True}}, "target"),
        ({"target": {"node": 1}}, "target.node"),
        ({"target": {"node": "n01"}}, "target.node"),
        ({"target": {"store": 1}}, "target.store"),
        ({"kind": "process_segfault", "target": {"node": "n1"}}, "target"),
        ({"trigger": {}}, "trigger"),
        ({"trigger": {"at_step": 1.5}}, "trigger.at_step"),
        ({"trigger": {"after_s": -1}}, "trigger.after_s"),
        ({"trigger": {"after_s": float("nan")}}, "trigger.after_s"),
        ({"trigger": {"after_s": float("inf")}}, "trigger.after_s"),
        ({"trigger": {"phase": "lunch"}}, "trigger.phase"),
        ({"trigger": {"phase": "forward", "occurrence": 0}}, "trigger.occurrence"),
        ({"trigger": {"phase": "forward", "at_step": 1}}, "trigger"),
        ({"trigger": {"phase": "forward", "offset_s": -1}}, "trigger.offset_s"),
        ({"trigger": {"at_step": 1, "repeat": 0}}, "trigger.repeat"),
        ({"trigger": {"recovery_phase": "lunch"}}, "trigger.recovery_phase"),
        ({"trigger": {"poisson": {"mtbf_s": 5}}}, "trigger.poisson"),
        ({"trigger": {"poisson": {"mtbf_s": 5, "count": 2, "horizon_s": 9}}}, "trigger.poisson"),
        ({"trigger": {"poisson": {"mtbf_s": 0, "count": 2}}}, "trigger.poisson.mtbf_s"),
        ({"trigger": {"poisson": {"mtbf_s": 1, "horizon_s": 501}}}, "trigger.poisson.horizon_s"),
        ({"trigger": {"trace": []}}, "trigger.trace"),
        ({"trigger": {"trace": [1, -1]}}, "trigger.trace[1]"),
        ({"params": {"ttl_s": 1}}, "params.ttl_s"),
        ({"params": [1]}, "params"),
        ({"kind": "process_stop", "params": {"ttl_s": 0}}, "params.ttl_s"),
        ({"kind": "process_stop", "params": {"ttl_s": float("nan")}}, "params.ttl_s"),
        ({"kind": "process_stop", "params": {"ttl_s": "long"}}, "params.ttl_s"),
        ({"kind": ""}, "kind"),
        ({"when": "now"}, "when"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFault) as caught:
        PlannedFault.from_json({**KILL, **change})
    assert caught.value.field == field
    assert caught.value.reason


def test_an_unknown_kind_is_told_apart_and_lists_the_known() -> None:
    with pytest.raises(UnknownFaultKind, match=r"'meteor'.*process_kill, process_stop"):
        PlannedFault.from_json({**KILL, "kind": "meteor"})


def test_a_target_must_exist_in_the_cluster() -> None:
    fault = PlannedFault.from_json(KILL)
    Cluster(nodes=3, spares=0).check(fault)
    with pytest.raises(InvalidFault, match=r"rank 2 does not exist: ranks are 0\.\.1"):
        Cluster(nodes=2, spares=0).check(fault)
    flip = PlannedFault.from_json({**KILL, "kind": "snapshot_bitflip", "params": {"of_rank": 3}})
    with pytest.raises(InvalidFault, match=r"rank 3 does not exist: ranks are 0\.\.2") as caught:
        Cluster(nodes=3, spares=0).check(flip)
    assert caught.value.field == "params.of_rank"
    with pytest.raises(InvalidFault, match="no spare"):
        Cluster(nodes=2, spares=0).check(PlannedFault.from_json({**KILL, "target": {"spare": True}}))
    node = PlannedFault.from_json({**KILL, "target": {"node": "n3"}})
    Cluster(nodes=3, spares=1).check(node)
    with pytest.raises(InvalidFault, match=r"node n3 does not exist: nodes are n0\.\.n2"):
        Cluster(nodes=3, spares=0).check(node)


def test_a_receipt_survives_the_event_file() -> None:
    receipt = Injection(
        fault="a",
        kind="process_kill",
        at=5,
        worker="w2",
        rank=2,
        node="n2",
        pid=77,
        fidelity=Fidelity.REAL,
        trigger={"at_step": 3},
        proof={"passed": 3},
    )
    event = EventWriter(None).emit("fault_injected", **receipt.event_fields())  # type: ignore[arg-type]
    assert (event.at, event.worker, event.rank, event.data["fidelity"]) == (5, "w2", 2, "real")
    assert Injection.from_event(event) == receipt


def test_each_kind_has_an_injector_of_that_kind_and_says_all_that_a_form_needs() -> None:
    gpu, run = GpuXid(Path("gpus"), Path("agents")), PartDirectory(path=Path("run"))
    injectors = {**INJECTORS, **inside_injectors(run), **storage_injectors(run.checkpoints), gpu.kind.kind: gpu}
    assert set(injectors) == {name for name, kind in FAULT_KINDS.items() if kind.scope is not Scope.NETWORK}
    for name, kind in FAULT_KINDS.items():
        assert name not in injectors or injectors[name].kind is kind
        told = kind.to_json()
        assert told["title"] and told["description"] and told["targets"] and told["triggers"]
        assert kind.params_schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("kind", "params", "field", "says"),
    [
        ("network_partition", {"period_s": 10, "count": 5, "ttl_s": 44}, "ttl_s", "take 45 s: make it longer"),
        ("network_partition", {"period_s": 10, "count": 7}, "ttl_s", "is over after 60 s"),
        ("gpu_xid", {"xid": 13, "numberless": True}, "xid", "lost GPU (79)"),
        ("gpu_xid", {"xid": 79, "numberless": True, "words": "gone"}, "words", "words of its own"),
        ("gpu_xid", {"xid": 13, "witnesses": "nvml", "words": "gone"}, "words", "nothing is written to the log"),
        ("gpu_xid", {"xid": 79, "recovery": 2}, "recovery", "only Xid 154 announces it"),
        ("gpu_xid", {"xid": 13, "effect": "none", "code": 700}, "code", "no error is raised"),
        ("gpu_xid", {"xid": 119, "code": 700}, "code", "the effect of this Xid is hang"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(kind: str, params: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidFault) as refusal:
        PlannedFault.from_json({"id": "f", "kind": kind, "target": {"rank": 0}, "params": params})
    assert refusal.value.field == f"params.{field}" and says in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("network_partition", {"period_s": 10, "count": 5, "ttl_s": 45}),
        ("gpu_xid", {"xid": 79, "then": [154], "recovery": 2}),
        ("gpu_xid", {"xid": 119, "effect": "raise", "code": 700}),
        ("gpu_xid", {"xid": 79, "numberless": True}),
    ],
)
def test_parameters_that_go_together_survive_their_json(kind: str, params: dict[str, Any]) -> None:
    fault = PlannedFault.from_json({"id": "f", "kind": kind, "target": {"rank": 0}, "params": params})
    assert PlannedFault.from_json(fault.to_json()) == fault


def test_a_count_of_periods_needs_periods() -> None:
    flapping = {"id": "f", "kind": "network_partition", "target": {"rank": 0}, "params": {"count": 3}}
    with pytest.raises(InvalidFault) as refusal:
        PlannedFault.from_json(flapping)
    assert refusal.value.field == "params.count" and "period_s" in str(refusal.value)
    fault = PlannedFault.from_json({**flapping, "params": {"count": 3, "period_s": 2}})
    assert PlannedFault.from_json(fault.to_json()) == fault
