"""History, comparisons and machines as the API answers them: thirty nights of two series on two machines."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]

NIGHTS = 30
STEP_AT, MACHINE_AT, FAILED_AT = 12, 22, 17
METRICS = ["success", "recovery", "downtime", "detect", "quiesce", "replace", "reconstruct", "restore", "recompute"]
SHARES = {"recovery": 1.0, "downtime": 0.42, "detect": 0.05, "quiesce": 0.04, "replace": 0.1, "reconstruct": 0.08,
          "restore": 0.15, "recompute": 0.58}  # fmt: skip
FINGERPRINTS = ("3fa9c2d4e1b0", "77b0aa19c3d2")
MACHINES: list[Json] = [
    {"fingerprint": FINGERPRINTS[0], "machine": {"cpu": "EPYC 7B13", "cores": 8, "kernel": "6.8"}, "trials": 110,
     "sessions": 22},
    {"fingerprint": FINGERPRINTS[1], "machine": {"cpu": "EPYC 9B14", "cores": 8, "kernel": "6.8"}, "trials": 40,
     "sessions": 8},
]  # fmt: skip
# The newest nights of each are what was measured of it.
BRANCHES = {"main": NIGHTS, "feature/faster": 6}
SERIES = (("kill-one", "kill", 0.45), ("stop-one", "stop", 1.2))


def code(night: int) -> str:
    return f"{0xABC + night * 7919:040x}"[::-1]


def at(night: int) -> str:
    moment = datetime.now(UTC).replace(hour=2, minute=10, second=0, microsecond=0) - timedelta(days=NIGHTS - night)
    return moment.isoformat().replace("+00:00", "Z")


def series() -> Json:
    items = [
        {"scenario": scenario, "fault": fault, "current": True, "metrics": METRICS, "trials": 150, "sessions": NIGHTS,
         "last_at": at(NIGHTS - 1), "fingerprints": list(FINGERPRINTS)}
        for scenario, fault, _ in SERIES
    ]  # fmt: skip
    codes = [
        {"name": code(night), "short": code(night)[:9], "subject": f"change number {night}", "dirty": False,
         "trials": 10, "last_at": at(night)}
        for night in reversed(range(NIGHTS))
    ]  # fmt: skip
    return {"items": items, "codes": codes, "branches": list(BRANCHES), "machines": MACHINES, "seeded": False}


def newest(found: Json, count: int) -> Json:
    """Of a history the last nights, all of one machine."""
    points = [{**point, "index": index} for index, point in enumerate(found["points"][-count:])]
    level = {"first": 0, "last": count - 1, "median": found["segments"][-1]["median"]}
    return {**found, "points": points, "segments": [level], "change_points": [], "breaks": [], "annotations": []}


def history(scenario: str, metric: str, limit: int = 200) -> Json:
    fault, level = next((fault, level) for name, fault, level in SERIES if name == scenario)
    slower = 1.25 if scenario == "stop-one" else 1.0
    points = [_point(scenario, metric, night, level, slower) for night in range(NIGHTS)][-limit:]
    base = level * SHARES.get(metric, 1.0)
    moved = {"index": STEP_AT, "before": base, "after": base * slower, "ratio": slower, "code": code(STEP_AT),
             "previous": code(STEP_AT - 1)}  # fmt: skip
    last = base * slower * 0.8
    return {
        "scenario": scenario, "fault": fault, "metric": metric, "points": points,
        "segments": [{"first": 0, "last": STEP_AT - 1, "median": base},
                     {"first": STEP_AT, "last": MACHINE_AT - 1, "median": base * slower},
                     {"first": MACHINE_AT, "last": NIGHTS - 1, "median": last}],
        "change_points": [moved] if slower > 1 else [],
        "breaks": [{"index": MACHINE_AT, "kind": "machine", "fields": ["cpu: EPYC 7B13 -> EPYC 9B14"]}],
        "annotations": [{"at": at(9), "text": "kernel updated", "by": "ada", "commit": None, "index": 9}],
        "noise": [{"fingerprint": FINGERPRINTS[1], "machine": MACHINES[1]["machine"], "trial_cv": 0.08,
                   "session_cv": 0.03, "trials": 40, "sessions": 8, "needed": {"5": None, "10": 18, "20": 7},
                   "delta": 0.05}],
        "notes": [],
    }  # fmt: skip


def _point(scenario: str, metric: str, night: int, level: float, slower: float) -> Json:
    here = level * SHARES.get(metric, 1.0) * (slower if night >= STEP_AT else 1.0) * (0.8 if night >= MACHINE_AT else 1)
    lost, share = scenario == "kill-one" and night == FAILED_AT, metric == "success"
    values: list[float | None] = [here * (1 + 0.06 * math.sin(night * 3.1 + 1.7 * trial)) for trial in range(5)]
    if lost:
        values[2] = None
    return {
        "index": night, "session": f"s{night}", "code": code(night), "short": code(night)[:9],
        "subject": f"change number {night}", "dirty": False, "at": at(night),
        "fingerprint": FINGERPRINTS[night >= MACHINE_AT], "scenario_version": "8f00", "n": 5,
        "median": 1 - lost / 5 if share else sorted(value for value in values if value is not None)[2],
        "low": None if share else here * 0.95, "high": None if share else here * 1.05,
        "values": [] if share else values, "not_recovered": int(lost), "succeeded": 5 - int(lost), "judged": 5,
        "trials": [f"t-{scenario}-{night}-{trial}" for trial in range(5)], "segment": 0, "spike": False,
    }  # fmt: skip


def comparison(base: str, head: str) -> Json:
    rows = [
        _row("stop-one", "recovery", "regression", 1.24, confirmed=True, gates=True),
        _row("kill-one", "success", "stable", None, gates=True),
        _row("kill-one", "recovery", "inconclusive", 1.03, gates=True, needs=34),
        _row("stop-one", "detect", "regression", 1.6, gates=False),
        _row("stop-one", "restore", "stable", 1.0, gates=False),
    ]
    return {
        "base": _side(base, 11), "head": _side(head, 12), "verdict": "regression", "exit_code": 1,
        "counts": {"regression": 1, "stable": 1, "inconclusive": 1},
        "notes": ["head was measured with uncommitted changes (diff 9f2e)"], "rows": rows,
        "command": f"phoenix compare {base[:9]} {head[:9]}",
    }  # fmt: skip


def _side(name: str, night: int) -> Json:
    return {"name": name, "commit": name, "short": name[:9], "dirty": False, "trials": 10, "sessions": 1,
            "first_at": at(night), "last_at": at(night)}  # fmt: skip


def _row(scenario: str, metric: str, verdict: str, ratio: float | None, **more: Any) -> Json:
    plain: Json = {"confirmed": None, "needs": None, "screened": verdict == "regression"}
    return {
        "scenario": scenario, "fault": "kill", "metric": metric, "verdict": verdict,
        "reason": f"{metric} is {verdict}", "fields": [], "unit": "trial",
        "base": _group(0.4), "head": _group(0.4 * (ratio or 1)), "ratio": ratio,
        "low": None if ratio is None else ratio * 0.94, "high": None if ratio is None else ratio * 1.07,
        "p": 0.012, "p_adjusted": 0.024, "reproduce": f"phoenix compare --ab A B --scenario {scenario}",
        **plain, **more,
    }  # fmt: skip


def _group(level: float) -> Json:
    values: list[float | None] = [level * (1 + 0.05 * math.sin(trial)) for trial in range(9)]
    return {"n": 10, "median": level, "low": level * 0.97, "high": level * 1.03, "values": [*values, None],
            "not_recovered": 1, "succeeded": 9, "trials": 10, "unjudged": 0, "sessions": 2}  # fmt: skip
