"""Every change of level in the histories: what became slower with which commit, whether it is so still, and what was
decided about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.history import compare_href
from dashboards.pages.shown import Shown
from dashboards.series import SLOWER, all_histories, history_href

LIMIT = 200
STATES = {
    "new": "new",
    "acknowledged": "acknowledged",
    "wont_fix": "won't fix",
    "false_alarm": "false alarm",
    "resolved": "resolved",
}
"""What somebody may decide, in the words of the page."""
ASIDE = ("wont_fix", "false_alarm")
"""Nobody has to look at these any more."""
NOBODY_YET = {"state": "new", "decisions": ()}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of level of one series. `over`: a later change took it back; `faster`: it was for the better.

    `moved`: another machine or another scenario came after it, so nobody can say whether it is so still.
    """

    scenario: str
    fault: str
    ratio: float
    change: str
    before: str
    after: str
    at: str
    href: str
    over: bool
    moved: bool
    faster: bool

    @property
    def open(self) -> bool:
        return not (self.over or self.moved or self.faster)


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """What changed between two codes, in all series together."""

    code: str
    previous: str
    subject: str
    compare: str
    when: str
    at: str
    changes: Sequence[Change]
    notes: Sequence[Json] = field(default=())
    triage: Json = field(default_factory=lambda: NOBODY_YET)

    @property
    def slower(self) -> bool:
        """Some level is as high still."""
        return any(change.open for change in self.changes)

    @property
    def untold(self) -> bool:
        """Some level rose, and nobody can say whether it is as high still."""
        return any(change.moved and not (change.over or change.faster) for change in self.changes)

    @property
    def open(self) -> bool:
        """To be looked at: also what is called resolved and is as slow as before."""
        return self.slower and self.triage["state"] not in ASIDE

    @property
    def state(self) -> tuple[str, str]:
        """The class of its chip, and its words."""
        state: str = self.triage["state"]
        if state == "resolved":
            return ("warn", "resolved, but as slow still: verify") if self.slower else ("pass", "fixed")
        if state == "new" and not self.slower:
            return "", "slower until another machine or scenario came" if self.untold else "nothing to decide"
        return {"new": "fail", "acknowledged": "warn"}.get(state, ""), STATES[state]


async def page(request: Request, api: Api) -> Shown:
    overview, notes, triage = await asyncio.gather(
        all_histories(api, limit=LIMIT), api.items("annotations"), api.get("triage")
    )
    everything = request.query_params.get("show") == "all"
    suspects = suspects_of(overview.histories, notes, triage["items"], datetime.now(UTC))
    context: dict[str, Any] = {
        "suspects": [suspect for suspect in suspects if everything or suspect.open],
        "open": sum(suspect.open for suspect in suspects),
        "new": sum(suspect.open and suspect.triage["state"] == "new" for suspect in suspects),
        "all": len(suspects),
        "untold": sum(suspect.untold and not suspect.slower for suspect in suspects),
        "everything": everything,
        "series": len(overview.histories),
        "remarks": sorted({line for history in overview.histories for line in history["notes"]}),
        "states": STATES,
        "triage": triage,
        "seeded": overview.seeded,
    }
    return Shown(template="regressions.html", context=context)


def suspects_of(
    histories: Sequence[Json], notes: Sequence[Json], triage: Sequence[Json], now: datetime
) -> list[Suspect]:
    """Grouped by the code that they began with, the newest first."""
    decided = {item["code"]: item for item in triage}
    found: dict[str, list[tuple[Json, Json, Json]]] = {}
    for history in histories:
        points = {point["index"]: point for point in history["points"]}
        for change in history["change_points"]:
            if change["index"] in points and (change["ratio"] >= SLOWER or change["ratio"] <= 1 / SLOWER):
                found.setdefault(change["code"], []).append((history, change, points[change["index"]]))
    suspects = [
        replace(_suspect(code, members, notes, now), triage=decided.get(code, NOBODY_YET))
        for code, members in found.items()
    ]
    return sorted(suspects, key=lambda suspect: suspect.at, reverse=True)


def _suspect(code: str, members: Sequence[tuple[Json, Json, Json]], notes: Sequence[Json], now: datetime) -> Suspect:
    _, first, point = members[0]
    return Suspect(
        code=code,
        previous=first["previous"],
        subject=point.get("subject") or "",
        compare=compare_href(first["previous"], code),
        when=text.age(point["at"], now),
        at=str(point["at"]),
        changes=[_change(history, change, at) for history, change, at in members],
        notes=[note for note in notes if note.get("commit") and code.startswith(note["commit"])],
    )


def _change(history: Json, change: Json, point: Json) -> Change:
    later = [other for other in history["change_points"] if other["index"] > change["index"]]
    return Change(
        scenario=history["scenario"],
        fault=history["fault"],
        ratio=change["ratio"],
        change=text.percent(change["ratio"]),
        before=text.milliseconds(change["before"]),
        after=text.milliseconds(change["after"]),
        at=text.clock(point["at"]),
        href=history_href(history),
        over=any(other["after"] <= change["before"] * SLOWER for other in later),
        moved=not history["current"] or any(cut["index"] > change["index"] for cut in history["breaks"]),
        faster=change["ratio"] < 1,
    )
