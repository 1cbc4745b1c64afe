"""What came of a suite, as a value and in the three forms that others read: JSON, Markdown and JUnit. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree

from chaos.goodput import Goodput, total
from chaos.provenance import Provenance
from chaos.verdict import CheckResult, Verdict


class State(StrEnum):
    """What came of one trial: its verdict, KNOWN for a failure that the suite knows of and explains, or SKIPPED for one
    that this machine cannot do, which is no verdict."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    KNOWN = "KNOWN"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One trial. `reason` says why it did not pass; `twin_of`: the trial whose undisturbed run it was compared with.

    `recovery_s` is that of each fault that led to a recovery, in the order of the faults.
    """

    name: str
    scenario: str
    seed: int
    state: State
    reason: str = ""
    seconds: float = 0.0
    directory: str | None = None
    checks: Mapping[str, CheckResult] = field(default_factory=dict)
    faults: int = 0
    recovery_s: tuple[float, ...] = ()
    goodput: Goodput | None = None
    twin_of: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "scenario": self.scenario,
            "seed": self.seed,
            "state": self.state.value,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "directory": self.directory,
            "checks": {name: check.to_json() for name, check in self.checks.items()},
            "faults": self.faults,
            "recovery_s": list(self.recovery_s),
            "goodput": None if self.goodput is None else self.goodput.to_json(),
            "twin_of": self.twin_of,
        }


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of a whole suite, or of as much as has run: `finished_at` is None until its end.

    `strict`: a skipped trial fails the suite.
    """

    suite: str
    description: str
    entries: Sequence[Entry]
    provenance: Provenance
    started_at: str
    finished_at: str | None
    elapsed_s: float
    strict: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst; where nothing was judged, or trials may still come, UNKNOWN. What was skipped counts only if that
        is asked for."""
        states = {entry.state for entry in self.entries}
        if State.FAIL in states or (self.strict and State.SKIPPED in states):
            return Verdict.FAIL
        judged = states - {State.SKIPPED}
        whole = bool(judged) and self.finished_at is not None
        return Verdict.PASS if whole and judged <= {State.PASS, State.KNOWN} else Verdict.UNKNOWN

    @property
    def counts(self) -> dict[str, int]:
        seen = Counter(entry.state for entry in self.entries)
        return {state.value: seen[state] for state in State}

    @property
    def goodput(self) -> Goodput | None:
        return total([entry.goodput for entry in self.entries if entry.goodput is not None])

    def to_json(self) -> dict[str, object]:
        return {
            "suite": self.suite,
            "description": self.description,
            "verdict": self.verdict.value,
            "strict": self.strict,
            "counts": self.counts,
            "goodput": None if self.goodput is None else self.goodput.to_json(),
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "elapsed_s": round(self.elapsed_s, 3),
            **self.provenance.to_json(),
            "trials": [entry.to_json() for entry in self.entries],
        }


def tally(summary: Summary) -> str:
    """`9 PASS, 1 SKIPPED in 2 min 5 s`."""
    counted = ", ".join(f"{number} {state}" for state, number in summary.counts.items() if number) or "nothing ran"
    minutes, seconds = divmod(round(summary.elapsed_s), 60)
    return f"{counted} in {f'{minutes} min ' if minutes else ''}{seconds} s"


# --- Markdown --------------------------------------------------------------------------------------------------------


def markdown(summary: Summary) -> str:
    """A page with one row for each trial; what did not pass says why below."""
    commit = summary.provenance.commit or "unknown"
    dirty = " with changes that are in no commit" if summary.provenance.dirty else ""
    share = summary.goodput
    lines = [
        f"# Suite {summary.suite}: {summary.verdict.value}",
        "",
        *([summary.description, ""] if summary.description else []),
        f"{tally(summary)}. Commit {commit}{dirty}, begun {summary.started_at}{_where(summary)}.",
    ]
    if share is not None:
        lines.append(
            f"Goodput of all disturbed runs: {share.share:.1%} ({share.kept_s:.1f} of {share.elapsed_s:.1f} s)."
        )
    lines += ["", "| trial | result | seconds | faults | recovery time (s) | goodput | checks that did not pass |"]
    lines.append("| --- | --- | ---: | ---: | --- | ---: | --- |")
    lines += [_row(entry) for entry in summary.entries]
    told = [entry for entry in summary.entries if entry.reason]
    if told:
        lines += ["", "## Why", ""]
        lines += [f"- **{entry.name}** ({entry.state.value}): {_one_line(entry.reason)}" for entry in told]
    return "\n".join(lines) + "\n"


def _where(summary: Summary) -> str:
    host = summary.provenance.machine
    return f", on {host['cpu']}, {host['cores']} cores" if {"cpu", "cores"} <= host.keys() else ""


def _row(entry: Entry) -> str:
    bad = [f"{name} {check.verdict.value}" for name, check in entry.checks.items() if check.verdict is not Verdict.PASS]
    times = ", ".join(f"{seconds:.2f}" for seconds in entry.recovery_s) or "-"
    share = f"{entry.goodput.share:.1%}" if entry.goodput else "-"
    cells = (
        entry.name,
        entry.state.value,
        f"{entry.seconds:.1f}",
        str(entry.faults),
        times,
        share,
        ", ".join(bad) or "-",
    )
    return f"| {' | '.join(cells)} |"


def _one_line(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "; ".join(line for line in lines if line).replace("|", "\\|")


# --- JUnit -----------------------------------------------------------------------------------------------------------

# What XML 1.0 has no way to write: a log's last lines may hold any of it.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS: Final = {State.FAIL: "failure", State.UNKNOWN: "error", State.KNOWN: "skipped", State.SKIPPED: "skipped"}


def junit(summary: Summary) -> str:
    """The XML that continuous-integration servers read: FAIL is a failure, UNKNOWN an error.

    It has no word for a failure that is known; as pytest does, it is written as skipped, with the reason.
    """
    counts = summary.counts
    numbers = {
        "tests": str(len(summary.entries)),
        "failures": str(counts["FAIL"]),
        "errors": str(counts["UNKNOWN"]),
        "skipped": str(counts["SKIPPED"] + counts["KNOWN"]),
        "time": f"{summary.elapsed_s:.3f}",
    }
    root = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": summary.suite, "timestamp": summary.started_at, **numbers}
    )
    for entry in summary.entries:
        suite.append(_case(entry, summary.suite))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(entry: Entry, suite: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", {"classname": suite, "name": entry.name, "time": f"{entry.seconds:.3f}"})
    told: dict[str, object] = {"scenario": entry.scenario, "seed": entry.seed, "faults": entry.faults}
    if entry.recovery_s:
        told["recovery_s"] = " ".join(f"{seconds:.4f}" for seconds in entry.recovery_s)
    if entry.goodput is not None:
        told["goodput"] = f"{entry.goodput.share:.4f}"
    properties = ElementTree.SubElement(case, "properties")
    for name, value in told.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": str(value)})
    reason = _NOT_XML.sub("�", entry.reason)
    if (tag := _TAGS.get(entry.state)) is not None:
        ElementTree.SubElement(case, tag, {"message": reason.partition("\n")[0]}).text = reason
    checks = "\n".join(f"{name} {check.verdict.value} {check.detail}" for name, check in entry.checks.items())
    ElementTree.SubElement(case, "system-out").text = _NOT_XML.sub("�", checks)
    return case
