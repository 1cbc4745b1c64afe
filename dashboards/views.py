"""What each page shows, computed from the API's JSON. Pure: the time of day comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards import forms, text, waterfall
from dashboards.api import Json, RunData
from dashboards.figures import finite, loss_figure

ENDED = ("FINISHED", "CANCELLED", "ABANDONED")
PARTS = {"run": "disturbed run", "twin": "undisturbed twin", "checks": "checks", "done": "done"}
CHECKS = {
    "fired": "every planned fault has a receipt",
    "recovered": "every recovery went through all its phases",
    "twin": "losses and final digest equal the undisturbed run of the same seed, bit for bit",
    "agreement": "all ranks end with the same state",
    "no_leak": "no process, socket, memory, namespace, mount or file is left behind",
    "attribution": "the detector named those that were hit, for a cause that fits, and nobody else",
    "data_once": "each rank used its data in order, none twice and none left out",
}
TABLE_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in the list."""

    id: str
    scenario: str
    workload: str
    state: str
    verdict: str | None
    part: str
    done: int
    steps: int
    cluster: str
    recoveries: int
    created: str
    age: str
    took: str


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
    lost_steps: str
    resume_step: str
    generation: str
    checks: Sequence[tuple[str, str]]
    picture: waterfall.Waterfall
    needless: str = ""
    """Why this fault needed no recovery, in a sentence or two; there are then no phases to show."""


def run_row(run: Json, now: datetime) -> RunRow:
    return RunRow(
        id=run["id"],
        scenario=run["scenario"],
        workload=run["workload"],
        state=run["state"],
        verdict=run.get("verdict"),
        part=PARTS.get(run.get("part") or "", "") if run["state"] == "RUNNING" else "",
        done=committed(run),
        steps=run["steps"],
        cluster=cluster_text(run["cluster"]),
        recoveries=run["recoveries"],
        created=text.clock(run["created_at"]),
        age=text.age(run["created_at"], now),
        took=text.span(run.get("started_at"), run.get("finished_at"), now) if run.get("started_at") else text.NONE,
    )


def run_page(data: RunData, now: datetime) -> dict[str, Any]:
    """The context of run.html."""
    run = data.run
    raw = [recovery for timeline in data.timelines for recovery in timeline["recoveries"]]
    numbers = {fault["id"]: number for number, fault in enumerate(data.faults, 1)}
    recoveries = recovery_views(raw, numbers)
    world = run["cluster"]["nodes"] * run["cluster"]["ranks_per_node"]
    return {
        "run": run,
        "row": run_row(run, now),
        "facts": run_facts(run, now),
        "announcement": announcement(run, recoveries),
        "workers": sorted(data.workers, key=_worker_order),
        "faults": fault_rows(data.faults, {view.number: view for view in recoveries}),
        "recoveries": recoveries,
        "trials": data.trials,
        "figure": clean(loss_figure(data.steps, data.faults, raw, key=run["id"])),
        "steps": table_rows(data.steps),
        "step_count": len(data.steps),
        "not_finite": sum(1 for step in data.steps if step.get("loss") is not None and not finite(step["loss"])),
        "kinds": forms.kinds(data.kinds),
        "targets": forms.TARGETS,
        "triggers": forms.TRIGGERS,
        "phases": forms.PHASES,
        "world": world,
        "spares": run["cluster"]["spares"],
        "ranks": range(world) if world <= forms.LIST_RANKS_UP_TO else None,
        "ended": run["state"] in ENDED,
        # Once the disturbed run is over, what still runs is its twin and the checks: nothing to strike there.
        "can_strike": run["state"] == "RUNNING" and run.get("part") in (None, "run"),
        "summary_phases": list(waterfall.PHASES),
    }


def trial_page(trial: Json, timeline: Json, faults: Sequence[Json], now: datetime) -> dict[str, Any]:
    """The context of trial.html."""
    numbers = {fault["id"]: number for number, fault in enumerate(faults, 1)}
    return {
        "trial": trial,
        "checks": [
            (name, CHECKS.get(name, ""), check.get("verdict") or "UNKNOWN", check.get("detail") or "")
            for name, check in (trial.get("checks") or {}).items()
        ],
        "recoveries": recovery_views(timeline["recoveries"], numbers),
        "took": text.span(trial.get("started_at"), trial.get("finished_at"), now),
        "started": text.clock(trial.get("started_at")),
        "finished": text.clock(trial.get("finished_at")),
        "ended": trial["state"] in ENDED,
        "summary_phases": list(waterfall.PHASES),
    }


def recovery_views(raw: Sequence[Json], numbers: Mapping[str, int]) -> list[RecoveryView]:
    return [_recovery_view(index, recovery, numbers) for index, recovery in enumerate(raw, 1)]


def _recovery_view(index: int, recovery: Json, numbers: Mapping[str, int]) -> RecoveryView:
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
        lost_steps=text.NONE if recovery.get("lost_steps") is None else str(recovery["lost_steps"]),
        resume_step=text.NONE if recovery.get("resume_step") is None else str(recovery["resume_step"]),
        generation=text.NONE if recovery.get("generation") is None else str(recovery["generation"]),
        checks=[(name, verdict) for name, verdict in (recovery.get("checks") or {}).items()],
        picture=waterfall.build(recovery, recovery.get("started_s")),
        needless=_needless(recovery),
    )


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


def run_facts(run: Json, now: datetime) -> list[tuple[str, str]]:
    commit = (run.get("commit") or "")[:12]
    return [
        ("Scenario", run["scenario"]),
        ("Workload", run["workload"]),
        ("Runtime", run["runtime"]),
        ("Cluster", cluster_text(run["cluster"])),
        ("Seed", str(run["seed"])),
        ("Commit", (f"{commit} (dirty)" if run.get("dirty") else commit) or text.NONE),
        ("Created", text.clock(run["created_at"])),
        ("Started", text.clock(run.get("started_at"))),
        ("Finished", text.clock(run.get("finished_at"))),
        ("Took", text.span(run.get("started_at"), run.get("finished_at"), now)),
    ]


def announcement(run: Json, recoveries: Sequence[RecoveryView]) -> str:
    """For screen readers: changes every tenth of the run and every recovery, not with every step."""
    tenths = 10 * committed(run) // max(1, run["steps"])
    state = f"Run {run['state'].lower()}" + (
        f", {10 * tenths} percent of the steps" if run["state"] == "RUNNING" else ""
    )
    needed = [view for view in recoveries if not view.needless]
    recovered = sum(1 for view in needed if not view.picture.problem)
    counted = f"{recovered} of {len(needed)} recoveries complete" if needed else "no recovery so far"
    verdict = f" Verdict {run['verdict']}." if run.get("verdict") else ""
    return f"{state}, {counted}.{verdict}"


def committed(run: Json) -> int:
    """Steps are counted from 0, so the last committed step k makes k + 1 committed steps."""
    return 0 if run.get("step") is None else int(run["step"]) + 1


def cluster_text(cluster: Json) -> str:
    ranks = cluster["nodes"] * cluster["ranks_per_node"]
    return f"{plural(ranks, 'rank')} on {plural(cluster['nodes'], 'node')}, {plural(cluster['spares'], 'spare')}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    return "now"


def table_rows(steps: Sequence[Json], most: int = TABLE_ROWS) -> list[Json]:
    """The first, the last, and steps evenly between: enough to read the chart without seeing it."""
    if len(steps) <= most:
        return list(steps)
    gap = (len(steps) - 1) / (most - 1)
    return [steps[round(index * gap)] for index in range(most)]


def clean(value: Any) -> Any:
    """NaN and infinity are no JSON; a browser that finds one drops the whole chart."""
    if isinstance(value, float):
        return value if finite(value) else None
    if isinstance(value, dict):
        return {key: clean(part) for key, part in value.items()}
    return [clean(part) for part in value] if isinstance(value, list) else value


def _worker_order(worker: Json) -> tuple[int, int, str]:
    """Ranks in order, then spares, then those that are gone, the newest first."""
    group = {"active": 0, "starting": 1, "spare": 2}.get(worker["state"], 3)
    rank = worker.get("rank")
    order = rank if group == 0 and rank is not None else -int(1000 * (worker.get("since_s") or 0))
    return (group, order, worker["worker"])
