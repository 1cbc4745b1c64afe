"""By what the home page can be narrowed, and what of it fits. Every choice stands in the address. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from dashboards.api import Json
from dashboards.series import Line

PICKED = ("suite", "scenario", "host", "branch")
NAMES = (*PICKED, "verdict")
VERDICTS = ("PASS", "FAIL", "UNKNOWN")
UNKNOWN = "unknown"
"""No machine is called so: their fingerprints are digests."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing to pick from; `values` are all that there are, also where another choice leaves none of them."""

    name: str
    label: str
    values: Sequence[str]
    chosen: str | None


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """`chosen`: by name, None for what is not narrowed. `scenarios`: those of the chosen suite, None for all.
    `fingerprint`: of the machine of the chosen host; UNKNOWN for one that no service has told of.
    """

    chosen: Mapping[str, str | None]
    choices: Sequence[Choice] = ()
    scenarios: frozenset[str] | None = None
    fingerprint: str | None = None

    @property
    def any(self) -> bool:
        return any(self.chosen.values())

    @property
    def runs(self) -> dict[str, str | None]:
        """For GET /runs: of each verdict, since they are counted beside each other."""
        return {name: self.chosen[name] for name in PICKED}

    @property
    def histories(self) -> dict[str, str | None]:
        """For GET /history."""
        return {"branch": self.chosen["branch"], "fingerprint": self.fingerprint}

    def href(self, **changes: str | None) -> str:
        """The address of the page with something else chosen."""
        return "/" + _query({**self.chosen, **changes})

    def runs_href(self, **more: str | None) -> str:
        """The list of what is counted here."""
        return "/runs" + _query({**self.runs, **more})

    def fits_series(self, item: Json) -> bool:
        if self.chosen["scenario"] not in (None, item["scenario"]):
            return False
        if self.fingerprint is not None and self.fingerprint not in item["fingerprints"]:
            return False
        return self.scenarios is None or item["scenario"] in self.scenarios

    def fits_line(self, line: Line) -> bool:
        """A series is what its last session was."""
        return self.chosen["verdict"] in (None, "FAIL" if line.failed else "PASS")

    def fits_verdict(self, run: Json) -> bool:
        return self.chosen["verdict"] in (None, run.get("verdict"))

    def fits_schedule(self, schedule: Json) -> bool:
        """By what it runs. Where it will run, and of which branch, is not known before."""
        run = schedule["run"]
        suite, scenario = self.chosen["suite"], self.chosen["scenario"]
        named = run.get("scenario_name") or (run.get("scenario") or {}).get("name")
        return suite in (None, run.get("suite")) and scenario in (None, named)


def narrowed(query: Mapping[str, str], series: Json, suites: Sequence[Json], services: Sequence[Json]) -> Narrowed:
    """What the address asks for. A name that is not known is kept, and fits nothing."""
    chosen = {name: query.get(name) or None for name in NAMES}
    if chosen["verdict"] not in VERDICTS:
        chosen["verdict"] = None
    hosts = {str(item["host"]): str(item["fingerprint"] or UNKNOWN) for item in services}
    there = {
        "suite": sorted(str(item["name"]) for item in suites),
        "scenario": list(dict.fromkeys(str(item["scenario"]) for item in series["items"])),
        "host": sorted(hosts),
        "branch": list(series["branches"]),
    }
    scenarios = {str(item["name"]): frozenset(map(str, item["scenarios"])) for item in suites}
    return Narrowed(
        chosen=chosen,
        choices=[
            Choice(name=name, label=name.capitalize(), values=_with(values, chosen[name]), chosen=chosen[name])
            for name, values in there.items()
            if len(values) > (name == "host") or chosen[name]
        ],
        scenarios=None if chosen["suite"] is None else scenarios.get(chosen["suite"], frozenset()),
        fingerprint=None if chosen["host"] is None else hosts.get(chosen["host"], UNKNOWN),
    )


def _with(values: Sequence[str], chosen: str | None) -> list[str]:
    return [*values, *([chosen] if chosen and chosen not in values else [])]


def _query(chosen: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in chosen.items() if value}
    return f"?{urlencode(given)}" if given else ""
