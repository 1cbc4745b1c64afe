"""What users read where isolated nodes or their faults are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from chaos import runtimes
from chaos.cluster.abilities import Abilities
from chaos.cluster.refusal import why_refused
from chaos.errors import InvalidScenario
from chaos.runtimes import runtime_for
from chaos.scenario import Scenario
from phoenix_core.errors import UsageError
from phoenix_core.hosts import Hosts


def refused(number: int, settings: dict[str, str] | None = None) -> str:
    return why_refused(OSError(number, os.strerror(number)), lambda path: (settings or {}).get(path, ""))


@pytest.mark.parametrize(
    ("number", "settings", "fix"),
    [
        (errno.EPERM, {"/proc/sys/kernel/unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        (errno.ENOSPC, {"/proc/sys/user/max_user_namespaces": "0"}, "user.max_user_namespaces=15000"),
        (errno.EPERM, {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, "apparmor_restrict"),
        (errno.EINVAL, {}, "CONFIG_USER_NS"),
        (errno.EOPNOTSUPP, {}, "modprobe bridge veth"),
        (errno.EPERM, {}, "docker run --security-opt seccomp=unconfined"),
    ],
)
def test_each_refusal_names_its_fix(number: int, settings: dict[str, str], fix: str) -> None:
    said = refused(number, settings)
    assert fix in said and os.strerror(number) in said and "\n" not in said


def scenario(isolation: str = "namespaces", **fault: Any) -> Scenario:
    planned = {"kind": "network_partition", "target": {"rank": 1}, **fault}
    cluster = {"isolation": isolation}
    return Scenario.from_json(
        {"name": "x", "workload": "gpt-tiny", "steps": 9, "cluster": cluster, "faults": [planned]}
    )


@pytest.mark.parametrize(
    ("can", "field"),
    [(Abilities(isolation="no"), "cluster.isolation"), (Abilities(network_partition="no"), "faults[0].kind")],
)
def test_what_the_machine_cannot_do_is_refused_before_the_start(
    can: Abilities, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "abilities", lambda: can)
    with pytest.raises(InvalidScenario) as caught:
        runtime_for(scenario())
    assert (caught.value.field, caught.value.reason) == (field, "no")


def test_nobody_is_asked_about_namespaces_who_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "abilities", lambda: pytest.fail("half a second for nothing"))
    assert runtime_for(Scenario.from_json({"name": "x", "workload": "gpt-tiny", "steps": 9})).name == "phoenix"


def test_a_network_fault_needs_nodes_with_a_network() -> None:
    with pytest.raises(InvalidScenario, match=r"faults\[0\].kind: .*set cluster.isolation to namespaces"):
        scenario(isolation="none")


def test_a_shape_needs_enough_nodes() -> None:
    with pytest.raises(InvalidScenario, match=r"majority_ring needs 4 nodes or more, there are 3"):
        Scenario.from_json({**scenario(params={"shape": "majority_ring"}).to_json(), "cluster": {
            "nodes": 2, "spares": 1, "isolation": "namespaces",
        }})  # fmt: skip


def test_a_partition_always_has_an_end() -> None:
    (fault,) = scenario().faults
    assert fault.params == {"shape": "isolate", "plane": "both", "ttl_s": 60, "count": 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it does not describe hosts"),
        ('{"coordinator": "127.0.0.1", "nodes": []}', "it does not describe hosts"),
        ('{"coordinator": "nowhere", "nodes": {}}', "'nowhere' does not appear to be an IPv4 or IPv6 address"),
        ('{"coordinator": "127.0.0.1", "nodes": {}}', "it names no host for n0"),
    ],
)
def test_a_list_of_hosts_that_cannot_be_used(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=says):
        Hosts.read(tmp_path / "hosts", ["n0"])
