"""A comparison for people and for machines: text, Markdown, JUnit, annotations of a GitHub job. Pure.

All of them read the one document `Comparison.to_json()`, so that no two show different numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree import ElementTree

Json = Mapping[str, Any]

MARKER: Final = "<!-- phoenix-compare -->"
_BAD: Final = ("regression", "reliability regression")
_HEADER: Final = ("scenario", "fault", "metric", "base", "head", "ratio", "p", "verdict")


def text(document: Json) -> str:
    """One line a row under a heading, and the reason of each that is not stable."""
    lines = [f"{_side(document['base'])}  ->  {_side(document['head'])}", *map(_note, document["notes"])]
    rows = [_cells(row) for row in document["rows"]]
    widths = [max(len(line[column]) for line in [_HEADER, *rows]) for column in range(len(_HEADER))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in ([_HEADER, *rows] if rows else [])
    ]
    lines += [f"{_name(row)}: {row['verdict']}: {row['reason']}" for row in document["rows"] if _needs_a_look(row)]
    return "\n".join([*lines, f"verdict: {document['verdict']}"])


def markdown(document: Json) -> str:
    """One table, what needs a look first, what is stable folded; the marker lets a bot update its comment in place."""
    open_rows = [row for row in document["rows"] if _needs_a_look(row)]
    folded = [row for row in document["rows"] if not _needs_a_look(row)]
    parts = [
        MARKER,
        f"### Recovery compared: {document['verdict']}",
        f"`{_side(document['base'])}` → `{_side(document['head'])}`",
        *(f"> {note}" for note in document["notes"]),
    ]
    if open_rows:
        parts.append(_table(open_rows))
        parts.append("\n".join(f"- {_name(row)}: {row['reason']}; `{row['reproduce']}`" for row in open_rows))
    if folded:
        title = f"<summary>{len(folded)} more</summary>"
        parts.append(f"<details>{title}\n\n{_table(folded)}\n</details>")
    return "\n\n".join(parts) + "\n"


def junit(document: Json) -> str:
    """One test case for each scenario, fault and metric: regressions fail, what could not be told is skipped."""
    rows = document["rows"]
    suite = ElementTree.Element("testsuite", name="phoenix compare", tests=str(len(rows)))
    failures = skipped = 0
    for row in rows:
        case = ElementTree.SubElement(suite, "testcase", classname=row["scenario"], name=_case(row))
        if row["verdict"] in _BAD and (row["gates"] or row["confirmed"]):
            failures += 1
            failure = ElementTree.SubElement(case, "failure", type=row["verdict"], message=row["reason"])
            failure.text = f"{_measured(row)}\n{row['reproduce']}"
        elif row["verdict"] not in ("stable", "improvement"):
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=f"{row['verdict']}: {row['reason']}")
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def github(document: Json) -> str:
    """Annotations: an error for what fails, a warning for what the screen flagged, a notice with the verdict."""
    lines = []
    for row in document["rows"]:
        if row["verdict"] in _BAD and (row["gates"] or row["confirmed"]):
            lines.append(_annotation("error", row))
        elif row["screened"] or (row["gates"] and row["verdict"] == "not comparable"):
            lines.append(_annotation("warning", row))
    said = f"{_side(document['base'])} -> {_side(document['head'])}: {document['verdict']}"
    return "\n".join([*lines, f"::notice title=phoenix compare::{_escaped(said)}"]) + "\n"


def _annotation(level: str, row: Json) -> str:
    title = _escaped(_name(row)).replace(":", "%3A").replace(",", "%2C")
    message = f"{row['verdict']}: {row['reason']}; {_measured(row)}"
    return f"::{level} title={title}::{_escaped(message)}"


def _escaped(message: str) -> str:
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _needs_a_look(row: Json) -> bool:
    return row["screened"] or row["verdict"] in _BAD or (row["gates"] and row["verdict"] != "stable")


def _table(rows: Sequence[Json]) -> str:
    lines = [_HEADER, ("---", "---", "---", "---:", "---:", "---:", "---:", "---"), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _cells(row: Json) -> tuple[str, ...]:
    sides = [_group(row, row[name]) for name in ("base", "head")]
    p = row["p_adjusted"] if row["p_adjusted"] is not None else row["p"]
    verdict = row["verdict"] + (" (confirmed)" if row["confirmed"] else "")
    return row["scenario"], row["fault"], row["metric"], *sides, ratio(row), "-" if p is None else f"{p:.2g}", verdict


def ratio(row: Json) -> str:
    """`1.21 [1.12, 1.30]`, a dash where there is none."""
    if row["ratio"] is None:
        return "-"
    bounds = ["?" if bound is None else f"{bound:.2f}" for bound in (row["low"], row["high"])]
    return f"{row['ratio']:.2f} [{', '.join(bounds)}]"


def _group(row: Json, group: Json) -> str:
    if row["metric"] == "success":
        return f"{group['succeeded']}/{group['trials'] - group['unjudged']}"
    if group["median"] is None:
        return f"- (n={group['n']})"
    lost = f", {group['not_recovered']} not recovered" if group["not_recovered"] else ""
    return f"{seconds(group['median'])} (n={group['n']}{lost})"


def seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.3f} s"


def _measured(row: Json) -> str:
    return f"base {_group(row, row['base'])}, head {_group(row, row['head'])}, ratio {ratio(row)}"


def _name(row: Json) -> str:
    return f"{row['scenario']} {_case(row)}"


def _case(row: Json) -> str:
    return " ".join(part for part in (row["fault"], row["metric"]) if part)


def _side(side: Json) -> str:
    code = "" if side["name"] == side["short"] or side["commit"] is None else f" ({side['short']})"
    return f"{side['name']}{code}"


def _note(note: str) -> str:
    return f"note: {note}"
