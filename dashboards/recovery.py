"""Recoveries and faults in words and numbers, for every page that shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dashboards import text, waterfall
from dashboards.api import Json

STEPS_BEFORE, STEPS_AFTER = 8, 6
"""Around a recovery, in its throughput."""


@dataclass(frozen=True, kw_only=True)
class RecoveryView:
    """One recovery with its picture. `number` is that of its fault in the table of faults; 0 without a fault."""

    number: int
    anchor: str
    title: str
    target: str
    blamed: str
    blame_right: bool | None
    recovery: str
    downtime: str
    columns: Sequence[str]
    """Recovery time, downtime and the phases, in ms without the unit, for a table that says it once."""
    against: Sequence[str]
    """Each of these against the baseline's median, such as `+12 %`; empty where there is none."""
    lost_steps: str
    resume_step: str
    generation: str
    checks: Sequence[tuple[str, str]]
    picture: waterfall.Waterfall
    needless: str = ""
    """Why this fault needed no recovery, in a sentence or two; there are then no phases to show."""


Medians = Mapping[str, Mapping[str, float | None]]


def recovery_views(
    raw: Sequence[Json], numbers: Mapping[str, int], steps: Sequence[Json] = (), medians: Medians = MappingProxyType({})
) -> list[RecoveryView]:
    """`numbers`: by fault id, as in the table of faults; `steps` around the recoveries put throughput below each.

    `medians` of the baseline, by fault and metric.
    """
    return [_recovery_view(index, recovery, numbers, steps, medians) for index, recovery in enumerate(raw, 1)]


def _recovery_view(
    index: int, recovery: Json, numbers: Mapping[str, int], steps: Sequence[Json], medians: Medians
) -> RecoveryView:
    fault, target, blamed = recovery.get("fault") or {}, recovery.get("target") or {}, recovery.get("blamed") or {}
    number = numbers.get(str(fault.get("id")), 0)
    right = blamed.get("worker") == target.get("worker") if blamed and target.get("worker") else None
    return RecoveryView(
        number=number,
        anchor=f"recovery-{index}",
        title=f"{index}: {fault['kind'] if fault.get('kind') else 'no injected fault'}",
        target=party(target) if target else text.NONE,
        blamed=f"{party(blamed)}, {blamed.get('cause') or 'no cause given'}" if blamed else "nobody yet",
        blame_right=right,
        recovery=text.milliseconds(recovery.get("recovery_s")),
        downtime=text.milliseconds(recovery.get("downtime_s")),
        columns=[text.milliseconds(value, unit="") for value in _columns(recovery)],
        against=_against(recovery, medians),
        lost_steps=text.NONE if recovery.get("lost_steps") is None else str(recovery["lost_steps"]),
        resume_step=text.NONE if recovery.get("resume_step") is None else str(recovery["resume_step"]),
        generation=text.NONE if recovery.get("generation") is None else str(recovery["generation"]),
        checks=[(name, verdict) for name, verdict in (recovery.get("checks") or {}).items()],
        picture=waterfall.build(recovery, recovery.get("started_s"), _around(recovery, steps)),
        needless=_needless(recovery),
    )


def _around(recovery: Json, steps: Sequence[Json]) -> list[Json]:
    resume = recovery.get("resume_step")
    if resume is None:
        return []
    return [step for step in steps if resume - STEPS_BEFORE <= step["step"] <= resume + STEPS_AFTER]


def _needless(recovery: Json) -> str:
    if not recovery.get("fault") or recovery.get("generation") is not None:
        return ""
    new = recovery.get("replacement")
    if new:
        parked = f"A new one ({new['worker']}) was parked {text.duration(new['after_s'])} later."
        return f"It struck a spare, which holds no rank: nothing had to be recovered. {parked}"
    if (recovery.get("checks") or {}).get("recovered") == "PASS":
        return "It was taken back before it was taken for a failure: nothing had to be recovered."
    if (recovery.get("target") or {}).get("rank") is None:
        return "It struck a spare, which holds no rank: nothing has to be recovered. No new spare is parked yet."
    return ""


def _columns(recovery: Json) -> list[float | None]:
    phases = [recovery["phases"].get(name) for name in waterfall.PHASES]
    return [recovery.get("recovery_s"), recovery.get("downtime_s"), *phases]


def _against(recovery: Json, medians: Medians) -> list[str]:
    """A fault that stands for many (`mix`, struck as `mix-1`, `mix-2`, ...) has one median for all of them."""
    fault = str((recovery.get("fault") or {}).get("id") or "")
    usual = medians.get(fault) or medians.get(fault.rpartition("-")[0]) or {}
    names = ("recovery", "downtime", *waterfall.PHASES)
    pairs = zip(_columns(recovery), (usual.get(name) for name in names), strict=True)
    return [text.percent(value / median) if value is not None and median else "" for value, median in pairs]


def fault_rows(faults: Sequence[Json], recoveries: Mapping[int, RecoveryView]) -> list[dict[str, Any]]:
    """Faults with their receipts; `recovery` is the view of the recovery that each began."""
    return [
        {
            "number": number,
            "fault": fault,
            "target": target_text(fault["target"]),
            "trigger": trigger_text(fault["trigger"]),
            "receipt": _receipt(fault),
            "recovery": recoveries.get(number),
            "lasting": fault["state"] == "INJECTED" and fault.get("ttl_s") is not None,
        }
        for number, fault in enumerate(faults, 1)
    ]


def _receipt(fault: Json) -> str:
    injected = fault.get("injected")
    if not injected:
        return str(fault.get("detail") or "")
    at = f"{fault['injected_at_s']:.1f}{text.THIN}s" if fault.get("injected_at_s") is not None else "a time unknown"
    pid = f", pid {injected['pid']}" if injected.get("pid") is not None else ""
    return f"{party(injected)}{pid}, at {at}, {injected.get('fidelity') or 'fidelity unknown'}"


def party(who: Json) -> str:
    """`rank 2 (w2)`, or just the worker for a spare."""
    rank, worker = who.get("rank"), who.get("worker")
    if rank is None:
        return str(worker or "somebody unknown")
    return f"rank {rank} ({worker})" if worker else f"rank {rank}"


def target_text(target: Json) -> str:
    if "rank" in target:
        return f"rank {target['rank']}"
    if "node" in target:
        return f"node {target['node']}"
    names = {"random_rank": "a random rank", "coordinator": "the coordinator", "store": "the launcher"}
    return next((words for name, words in names.items() if target.get(name)), "a spare")


def trigger_text(trigger: Json) -> str:
    if "at_step" in trigger:
        return f"at step {trigger['at_step']}"
    if "after_s" in trigger:
        return f"after {text.duration(trigger['after_s'])}"
    if "phase" in trigger:
        step = f" of step {trigger['step']}" if trigger.get("step") is not None else ""
        times = f", time {trigger['occurrence']}" if trigger.get("occurrence", 1) != 1 else ""
        return f"on entering {trigger['phase']}{step}{times}"
    if "recovery_phase" in trigger:
        return f"in {trigger['recovery_phase']} of a recovery"
    if "poisson" in trigger:
        return f"at random, {text.duration(trigger['poisson']['mtbf_s'])} apart on average"
    return f"at {len(trigger['trace'])} given times" if "trace" in trigger else "now"
