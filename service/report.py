"""Recoveries and verdicts for people at a terminal, and the one JSON document that programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from chaos.scenario import CHECKS

Json = Mapping[str, Any]

PHASES: Final = ("detect", "quiesce", "replace", "reconstruct", "restore", "recompute")
MOST_BESIDE: Final = 2
"""Of more columns the 80 characters of a log have no room for: the names of the rows went first."""
STYLES: Final = {"PASS": "bold green", "FAIL": "bold red", "UNKNOWN": "bold yellow"}


def document(verdict: str, url: str | None, recoveries: Sequence[Json]) -> dict[str, object]:
    """What `--json` prints. `overhead` is measured by `make bench` and not by a demonstration."""
    return {"verdict": verdict, "url": url, "recoveries": [dict(recovery) for recovery in recoveries], "overhead": None}


def recovery_table(recoveries: Sequence[Json]) -> Group:
    """One column per recovery: the phases below each other add up to the recovery time."""
    starts = range(0, len(recoveries), MOST_BESIDE)
    return Group(*(_table(recoveries[start : start + MOST_BESIDE]) for start in starts))


def _table(recoveries: Sequence[Json]) -> Table:
    table = Table(title="Recoveries (milliseconds)", title_justify="left", title_style="bold")
    table.add_column("")
    for recovery in recoveries:
        head = f"{cause(recovery)}\n{place(recovery.get('target') or {})}"
        table.add_column(head, justify="right", no_wrap=True)
    for phase in PHASES:
        table.add_row(phase, *(milliseconds(recovery["phases"].get(phase)) for recovery in recoveries))
    table.add_section()
    for name, key in (("recovery time", "recovery_s"), ("downtime", "downtime_s")):
        table.add_row(Text(name, style="bold"), *(milliseconds(recovery[key]) for recovery in recoveries))
    table.add_row("lost steps", *(_plain(recovery["lost_steps"]) for recovery in recoveries))
    if any(recovery.get("replacement") for recovery in recoveries):
        table.add_row("new spare", *(new_spare(recovery) for recovery in recoveries))
    table.add_row("blamed", *(blamed(recovery) for recovery in recoveries))
    table.add_section()
    for check in (name for name in CHECKS if any(name in recovery["checks"] for recovery in recoveries)):
        table.add_row(check, *(verdict_text(recovery["checks"].get(check, "UNKNOWN")) for recovery in recoveries))
    return table


def headline(recovery: Json) -> str:
    """What happened to whom, in one line."""
    return f"{cause(recovery)}, {place(recovery.get('target') or {})}"


def cause(recovery: Json) -> str:
    """The fault; a recovery that none of ours explains is called a failure."""
    fault = recovery.get("fault")
    return str(fault["kind"]) if fault else "failure"


def place(target: Json) -> str:
    rank, worker = target.get("rank"), target.get("worker")
    where = "spare" if rank is None else f"rank {rank}"
    return f"{where} ({worker})" if worker else where


def blamed(recovery: Json) -> str:
    who = recovery.get("blamed")
    return f"{place(who)}: {who['cause']}" if who else "nobody"


def new_spare(recovery: Json) -> str:
    """For a fault on a spare: which worker is parked in its place, and after how long."""
    new = recovery.get("replacement")
    return f"{new['worker']} after {new['after_s']:.1f} s" if new else "-"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def verdict_text(verdict: str) -> Text:
    return Text(verdict, style=STYLES.get(verdict, ""))


def _plain(value: object) -> str:
    return "-" if value is None else str(value)
