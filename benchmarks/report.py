"""Published results: one JSON document with every sample, and a Markdown page for people, per benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.provenance import provenance
from chaos.record import utc_now

RESULTS = Path(__file__).resolve().parent / "results"


def circumstances() -> dict[str, object]:
    """Which code ran where and when; `load` is what else the machine was doing at the start."""
    code = provenance().to_json()
    return {"at": utc_now(), **code, "load": round(os.getloadavg()[0], 2)}


def publish(name: str, document: Mapping[str, object], page: str, directory: Path = RESULTS) -> tuple[Path, Path]:
    """Write NAME.json and NAME.md; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    data, text = directory / f"{name}.json", directory / f"{name}.md"
    data.write_text(json.dumps(document, indent=1) + "\n")
    text.write_text(page)
    return data, text


def fill(page: Path, name: str, text: str) -> None:
    """Put text between `<!-- NAME -->` and `<!-- /NAME -->` of a page. Raises ValueError where it has no such place."""
    before, opened, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, closed, after = rest.partition(f"<!-- /{name} -->")
    if not (opened and closed):
        raise ValueError(f"{page} has no place for {name}")
    page.write_text(f"{before}{opened}{text}{closed}{after}")


def heading(title: str, where: Mapping[str, object], command: str) -> str:
    """The top of a page: what was measured, by which command, on what."""
    host, versions = where["machine"], where["versions"]
    assert isinstance(host, Mapping)
    assert isinstance(versions, Mapping)
    commit = f"{where['commit'] or 'unknown commit'}{' with uncommitted changes' if where['dirty'] else ''}"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"# {title}\n\n"
        f"- command: `{command}`\n"
        f"- code: {commit}\n"
        f"- machine: {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB; load before {where['load']}\n"
        f"- software: {software}\n"
        f"- at: {where['at']}\n\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
