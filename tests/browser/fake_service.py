"""Schedules, halts, tokens, webhooks and what else the service knows, with believable contents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]


def iso(seconds_from_now: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds_from_now)).isoformat().replace("+00:00", "Z")


def run(**chosen: object) -> Json:
    """What a schedule runs."""
    return {
        "scenario_name": None,
        "scenario": None,
        "suite": None,
        "seed": None,
        "trials": 1,
        "revision": None,
        "reason": "",
        **chosen,
    }


def schedules() -> list[Json]:
    nightly: Json = {
        "id": "sch-1", "name": "nightly", "kind": "cron", "cron": "0 2 * * *", "every_s": None, "at": None,
        "timezone": "Europe/Berlin", "run": run(suite="nightly", trials=5), "overlap": "skip",
        "misfire_grace_s": 3600.0, "paused": False, "paused_reason": None, "base": "previous",
        "webhook": "wh-1", "stale_after_s": 129600.0, "next_due": iso(7300), "next_due_local": "02:00 CET",
        "last": {"due_at": iso(-79000), "fired_at": iso(-78990), "outcome": "started", "run": "r2", "detail": None,
                 "verdict": "PASS"},
        "stale": False, "created_at": iso(-9e6), "created_by": "ada",
    }  # fmt: skip
    hourly = {
        **nightly, "id": "sch-2", "name": "every-six-hours", "kind": "interval", "cron": None, "every_s": 21600.0,
        "run": run(scenario_name="kill-one"), "paused": True, "paused_reason": "the machine is lent", "base": None,
        "next_due": None, "next_due_local": None, "stale": True,
        "last": {"due_at": iso(-300000), "fired_at": iso(-299000), "outcome": "missed", "run": None,
                 "detail": "no service was running", "verdict": None},
    }  # fmt: skip
    return [nightly, hourly]


def halt(**changes: object) -> Json:
    return {"id": "h1", "reason": "the switch is being replaced", "by": "ada", "at": iso(-600), "until": None,
            "active": True, "released_at": None, "released_by": None, "release_reason": None, "reverts": 1,
            "withdraws": 2, **changes}  # fmt: skip


SERVICES: list[Json] = [
    {"id": "svc-1", "host": "bench-1", "fingerprint": "3fa9c2d4e1b0", "pid": 811, "version": "0.1.0", "url": "http://127.0.0.1:8642",
     "started_at": iso(-90000), "heartbeat_at": iso(-3), "alive": True, "max_active": 1, "trials": ["t-r3"],
     "stopped_at": None, "trouble": None},
    {"id": "svc-2", "host": "bench-2", "fingerprint": "77b0aa19c3d2", "pid": 90, "version": "0.1.0", "url": "http://127.0.0.1:8642",
     "started_at": iso(-200000), "heartbeat_at": iso(-5000), "alive": False, "max_active": 1, "trials": [],
     "stopped_at": None, "trouble": "the disk is full"},
]  # fmt: skip
TOKENS: list[Json] = [
    {"id": "tok-1", "name": "ada", "role": "admin", "created_at": iso(-8e6), "created_by": "local",
     "last_used_at": iso(-5400), "expires_at": None, "revoked_at": None, "revoked_by": None, "valid": True,
     "token": None},
    {"id": "tok-2", "name": "ci", "role": "operator", "created_at": iso(-7e6), "created_by": "ada",
     "last_used_at": None, "expires_at": iso(-100), "revoked_at": None, "revoked_by": None, "valid": False,
     "token": None},
    {"id": "tok-3", "name": "old", "role": "viewer", "created_at": iso(-9e6), "created_by": "ada",
     "last_used_at": None, "expires_at": None, "revoked_at": iso(-5e6), "revoked_by": "ada", "valid": False,
     "token": None},
]  # fmt: skip
WEBHOOKS: list[Json] = [
    {"id": "wh-1", "url": "https://chat.example/hook", "events": ["run.failed", "schedule.stale"],
     "description": "the team's chat", "created_at": iso(-7e6), "created_by": "ada", "secret": None},
]  # fmt: skip
DELIVERIES: list[Json] = [
    {"id": "d1", "webhook": "wh-1", "event": "run.failed", "created_at": iso(-80000), "attempts": 3,
     "state": "DELIVERED", "status": 200,
     "error": None, "next_at": None, "delivered_at": iso(-79990)},
    {"id": "d2", "webhook": "wh-1", "event": "run.failed", "created_at": iso(-60), "attempts": 1,
     "state": "PENDING", "status": 503,
     "error": "the receiver said 503", "next_at": iso(30), "delivered_at": None},
]  # fmt: skip
ANNOTATIONS: list[Json] = [
    {"id": "n1", "at": iso(-9e5), "commit": "0000", "text": "expected: copies are verified now", "by": "ada",
     "scenario": None, "run": None},
]  # fmt: skip


def triage(state: str, code: str = "0016" * 10) -> Json:
    decision: Json = {"code": code, "state": state, "reason": "copies are verified now", "owner": "eve",
                      "link": "https://bugs.example/7", "by": "ada", "at": iso(-7000)}  # fmt: skip
    earlier = {**decision, "state": "acknowledged", "reason": "seen", "owner": None, "link": None, "at": iso(-9000)}
    return {"code": code, "state": state, "decisions": [decision, earlier]}


def beside() -> Json:
    """A trial of another code than the baseline, whose medians are of the fault f1."""
    baseline = {"scenario": "kill-in-backward", "code": "5e" * 20, "short": "5e5e5e5e5", "reason": "what is in use",
                "by": "ada", "at": iso(-3e5)}  # fmt: skip
    medians = {"f1": {"recovery": 0.40, "downtime": 0.15, "detect": 0.002, "quiesce": 0.006, "replace": 0.1,
                      "reconstruct": 0.02, "restore": 0.04, "recompute": 0.25}}  # fmt: skip
    return {"code": "9f2c41d7a0b35e86c1d4f7720a9be5c3d8e6f014", "baseline": baseline, "trials": 12,
            "medians": medians, "why_not": None}  # fmt: skip


AUDIT: list[Json] = [
    {"id": "2", "at": iso(-600), "actor": "ada", "role": "admin", "action": "halt", "target": "h1",
     "reason": "the switch is being replaced", "detail": {}},
    {"id": "1", "at": iso(-7000), "actor": "ci", "role": "operator", "action": "run.submit", "target": "r3",
     "reason": None, "detail": {}},
]  # fmt: skip
EVERYBODY: Json = {"required": False, "authenticated": True, "name": "local", "role": "admin", "csrf": None,
                   "expires_at": None}  # fmt: skip


def lists() -> dict[str, list[Json]]:
    """What GET /api/v1/<name> lists; a test may change it."""
    return {
        "schedules": schedules(),
        "services": list(SERVICES),
        "tokens": list(TOKENS),
        "webhooks": list(WEBHOOKS),
        "annotations": list(ANNOTATIONS),
        "audit": list(AUDIT),
        "triage": [],
        "halts": [],
        "suites": [
            {
                "name": "nightly",
                "title": "Every night",
                "description": "",
                "scenarios": ["kill-one", "stop-one"],
                "trials": 10,
            }
        ],
        "schedules/sch-1/firings": [schedules()[0]["last"]],
        "schedules/sch-2/firings": [],
        "webhooks/wh-1/deliveries": list(DELIVERIES),
    }


def peers() -> Json:
    """As `make bench-peers` publishes it; one section of several, with a value and a reason."""
    return {
        "at": iso(-4000),
        "commit": "9f2c41d7a0b35e86c1d4f7720a9be5c3d8e6f014",
        "dirty": False,
        "machine": {"cpu": "Test CPU", "cores": 2, "memory_gib": 24},
        "versions": {"torch": "2.13.0"},
        "command": "python -m benchmarks.peers",
        "sections": [
            {
                "title": "Recovery",
                "text": "Seconds from the injection of the fault until every rank has committed a new step.",
                "header": ["runtime", "setting", "kill -9", "SIGSTOP"],
                "rows": [
                    ["PHOENIX, 1 spare", "default", "0.61 s (0.58-0.66) n=5", "0.83 s n=1"],
                    ["torchft", "tuned", "3.46 s (3.42-3.78) n=5", "never whole (nobody ends the stopped process)"],
                ],
            }
        ],
    }
