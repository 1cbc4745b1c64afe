"""The published page: one table of recovery, one of cost, the phases, who was compared how, and a plot. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from benchmarks.peers.cells import METRICS, NOT_YET, Cell, Cells, lost_text, phase_text, shown, time_text
from benchmarks.peers.contenders import Contender
from benchmarks.peers.entries import KINDS
from benchmarks.report import heading, table
from chaos.compare.ranks import hodges_lehmann
from phoenix_core.timeline import Phase

TITLES: Final = {"kill": "kill -9", "hang": "SIGSTOP", "node": "node lost", "partition": "node cut off"}
OVERHEAD: Final = ("overhead", "charged")
PACKAGES: Final = ("torchft-nightly", "nvidia-resiliency-ext", "torch", "numpy")
COLOURS: Final = {"kill": "#3b6fb6", "hang": "#c2571a", "node": "#4c8c4a", "partition": "#8e5aa8"}
METHOD: Final = """\
Seconds from the injection of the fault until every rank has committed a new step that it began after the fault: median
(least-greatest), detection and recomputation included. Four ranks, each a node of its own where whole nodes are lost or
cut off (network namespaces on one machine; the first node, which keeps the rendezvous of most, is spared). The same
model, data, seed, ranks hit and instants within the step for everybody. For runtimes that train on with fewer ranks it
also says when those have done so (“goes on”)."""
RATIOS: Final = """\
The median of all ratios of two recoveries (95 % interval, where there are enough of both); whoever did not recover took
for ever."""
PHASES: Final = """\
Median seconds of each phase, as far as the runtime's own events tell; what a dash hides is part of the next. “goes on”
is when all ranks but the one that was hit have committed such a step. “lost” counts steps begun a second time, the
interrupted one included. “twin”: are the losses after the fault those of an undisturbed run of the same runtime, in
every bit? A difference of about 1e-07 is rounding, not other data: DDP lays its buckets out anew after its first step,
so one that was made anew adds up gradients in another order once."""
COST: Final = """\
Step time over plain DDP (95 % interval); the same, charged with all that the job uses of the processors while it waits;
and what it takes beyond plain DDP."""
NOTHING: Final = "Not measured on this machine yet: `make bench-peers` does it.\n"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table and what its numbers mean: of the published page, and of the page of the service."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(contenders: Sequence[Contender], cells: Cells) -> tuple[Section, ...]:
    who, faults = ("runtime", "setting"), tuple(TITLES[kind] for kind in KINDS)
    phases = tuple(phase.value for phase in Phase)
    software = f"In environments of their own: {'; '.join(_software(contenders, cells))}."
    parts: tuple[tuple[str, str, tuple[str, ...], Sequence[Sequence[str]]], ...] = (
        ("Recovery", METHOD, faults, _recovery_rows(contenders, cells)),
        ("Times as long as PHOENIX", RATIOS, faults, _ratio_rows(contenders, cells)),
        ("After a kill", PHASES, ("goes on", *phases, "lost", "twin"), _kill_rows(contenders, cells)),
        ("Without a failure", COST, (*OVERHEAD, "spare ranks", "processes", "memory"), _cost_rows(contenders, cells)),
        ("Settings", software, ("what was set",), [[c.title, c.setting, c.note] for c in contenders]),
    )
    return tuple(
        Section(title=title, text=text, header=(*who, *header), rows=tuple(tuple(row) for row in rows))
        for title, text, header, rows in parts
    )


def page(contenders: Sequence[Contender], cells: Cells, where: Mapping[str, Any], command: str) -> str:
    parts = [f"\n## {s.title}\n\n{s.text}\n\n{table(s.header, s.rows)}" for s in sections(contenders, cells)]
    return f"{heading('PHOENIX and its peers', where, command)}![Recovery times](peers.svg)\n{''.join(parts)}"


def readme(contenders: Sequence[Contender], cells: Cells) -> str:
    """The table of the README: everybody in every setting; the page has what explains it."""
    if not cells:
        return NOTHING
    kinds = ("kill", "hang")
    rows = [
        [
            c.title,
            c.setting,
            *(_recovery_text(c, shown(c, kind, cells), kind) for kind in kinds),
            _ratio_texts(shown(c, "overhead", cells))[0],
        ]
        for c in contenders
    ]
    return table(["runtime", "setting", *(TITLES[kind] for kind in kinds), OVERHEAD[0]], rows)


def _software(contenders: Sequence[Contender], cells: Cells) -> list[str]:
    """The versions that the cells were measured with."""
    found: dict[str, str] = {}
    for contender in contenders:
        for cell in (shown(contender, metric, cells) for metric in METRICS):
            versions = cell.stamp.get("versions", {})
            if contender.environment is not None and versions:
                told = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
                found[contender.environment] = ", ".join(told)
    return list(found.values()) or [NOT_YET]


def _recovery_rows(contenders: Sequence[Contender], cells: Cells) -> list[list[str]]:
    return [
        [c.title, c.setting, *(_recovery_text(c, shown(c, kind, cells), kind) for kind in KINDS)] for c in contenders
    ]


def _recovery_text(contender: Contender, cell: Cell, kind: str) -> str:
    if kind in contender.alone and cell.samples and not cell.recovered:
        return f"never whole ({contender.alone[kind]}); goes on {time_text(cell, goes_on=True)}"
    return time_text(cell)


def _ratio_rows(contenders: Sequence[Contender], cells: Cells) -> list[list[str]]:
    ours, *others = contenders
    return [[c.title, c.setting, *(_times(ours, c, kind, cells) for kind in KINDS)] for c in others]


def _times(ours: Contender, theirs: Contender, kind: str, cells: Cells) -> str:
    alone = kind in theirs.alone
    base, head = (
        [
            math.inf if seconds is None else seconds
            for sample in shown(who, kind, cells).samples
            for seconds in [sample.goes_on_s if alone else sample.recovery_s]
        ]
        for who in (ours, theirs)
    )
    if not base or not head:
        return "no value (see above)"
    ratio = hodges_lehmann(base, head)
    if math.isinf(ratio.value):
        return "for ever"
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.1f}-{ratio.high:.1f})"
    return f"{ratio.value:.1f}{interval}{' to go on' if alone else ''}"


def _kill_rows(contenders: Sequence[Contender], cells: Cells) -> list[list[str]]:
    rows = []
    for contender in contenders:
        cell = shown(contender, "kill", cells)
        phases = [phase_text(cell, phase.value) for phase in Phase]
        twin = (
            "-" if cell.twin is None else cell.twin[0] if cell.twin[0] == "PASS" else f"{cell.twin[0]}: {cell.twin[1]}"
        )
        goes_on = time_text(cell, goes_on=True) if cell.samples else cell.reason
        rows.append([contender.title, contender.setting, goes_on, *phases, lost_text(cell), twin])
    return rows


def _cost_rows(contenders: Sequence[Contender], cells: Cells) -> list[list[str]]:
    rows = []
    for contender in (contender for contender in contenders if "overhead" not in contender.cannot):
        overhead, cost = shown(contender, "overhead", cells), shown(contender, "cost", cells)
        rows.append([contender.title, contender.setting, *_ratio_texts(overhead), *_cost_texts(cost)])
    return rows


def _ratio_texts(cell: Cell) -> list[str]:
    if not cell.value:
        return [cell.reason] * 2
    ratio = cell.value["ratio"]
    charged = ratio["value"] * (1 + cell.value["hidden"])
    return [f"{ratio['value']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})", f"{charged:.3f}"]


def _cost_texts(cell: Cell) -> list[str]:
    if not cell.value:
        return [cell.reason] * 3
    plain = cell.value["plain"]
    more, memory = cell.value["processes"] - plain["processes"], cell.value["memory_bytes"] - plain["memory_bytes"]
    return [str(cell.value["spares"]), f"{more:+d}", f"{memory / 2**30:+.2f} GiB"]


# --- the plot ---------------------------------------------------------------------------------------------------------

_LEFT, _WIDE, _ROW, _TOP = 400, 520, 26, 54


def plot(contenders: Sequence[Contender], cells: Cells) -> str:
    """Every recovery as a dot over a logarithmic axis of seconds; a cross where there was none. SVG."""
    rows = [contender for contender in contenders if any(shown(contender, kind, cells).samples for kind in KINDS)]
    values = [value for c in rows for kind in KINDS for value in _values(c, kind, cells)]
    low = math.floor(math.log10(min(values, default=0.1)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=100.0))))
    height = _TOP + _ROW * len(rows) + 34
    body = [_legend(), *_grid(low, high, height - 30)]
    for number, contender in enumerate(rows):
        y = _TOP + _ROW * number + _ROW / 2
        body.append(_text(_LEFT - 10, y + 4, f"{contender.title} · {contender.setting}", anchor="end"))
        for offset, kind in enumerate(KINDS):
            body += _dots(contender, kind, cells, y + (offset - 1.5) * 5, (low, high))
    size = f'width="{_LEFT + _WIDE + 40}" height="{height}"'
    style = "font-family:system-ui,sans-serif;font-size:12px;background:#fff"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="{style}">\n'
        "<title>Seconds from a fault to the first new step of the whole world</title>\n"
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _values(contender: Contender, kind: str, cells: Cells) -> list[float]:
    samples = shown(contender, kind, cells).samples
    return [sample.recovery_s for sample in samples if sample.recovery_s is not None]


def _dots(contender: Contender, kind: str, cells: Cells, y: float, span: tuple[int, int]) -> list[str]:
    colour = COLOURS[kind]
    found = [
        f'<circle cx="{_x(value, span):.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.6"/>'
        for value in _values(contender, kind, cells)
    ]
    if any(sample.recovery_s is None for sample in shown(contender, kind, cells).samples):
        found.append(_text(_LEFT + _WIDE + 12, y + 4, "×", colour=colour))
    return found


def _x(value: float, span: tuple[int, int]) -> float:
    low, high = span
    return _LEFT + _WIDE * (math.log10(value) - low) / (high - low)


def _grid(low: int, high: int, bottom: float) -> list[str]:
    lines = []
    for power in range(low, high + 1):
        x = _x(10.0**power, (low, high))
        lines.append(f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#ddd"/>')
        lines.append(_text(x, bottom + 16, f"{10.0**power:g} s", anchor="middle"))
    return lines


def _legend() -> str:
    parts = [
        _text(_LEFT + 120 * number, 20, f"● {TITLES[kind]}", colour=COLOURS[kind]) for number, kind in enumerate(KINDS)
    ]
    return "\n".join([*parts, _text(_LEFT, 38, "× the world did not come back", colour="#555")])


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
