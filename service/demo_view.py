"""What `phoenix demo` shows while it runs: a live picture on a terminal, a line per event elsewhere."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.report import headline, milliseconds

Json = dict[str, Any]

STATE_STYLES = {"active": "green", "spare": "cyan", "starting": "yellow", "failed": "red", "exited": "dim"}
PARTS = {
    None: "starting the workers",
    "run": "training, with faults",
    "twin": "training again without faults, to compare",
    "checks": "checking",
    "done": "done",
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The state of the run as REST tells it."""

    run: Json
    workers: list[Json]
    faults: list[Json]
    loss: float | None
    twin_step: int | None


class View(Protocol):
    """The whole of how the demo is watched: `say` a line that stays, `show` the present."""

    def say(self, line: str) -> None: ...

    def show(self, scene: Scene) -> None: ...

    def close(self) -> None: ...


class SilentView:
    """For --json: standard output belongs to the document."""

    def say(self, line: str) -> None:
        pass

    def show(self, scene: Scene) -> None:
        pass

    def close(self) -> None:
        pass


class PlainView:
    """For pipes and logs: a line when something changes, nothing that moves."""

    def __init__(self) -> None:
        self._part: str | None = "none yet"

    def say(self, line: str) -> None:
        print(line, flush=True)

    def show(self, scene: Scene) -> None:
        part = scene.run["part"]
        if part != self._part:
            self._part = part
            self.say(PARTS.get(part, str(part)))

    def close(self) -> None:
        pass


class LiveView:
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def say(self, line: str) -> None:
        self._live.console.print(line, highlight=False)

    def show(self, scene: Scene) -> None:
        self._live.update(picture(scene))

    def close(self) -> None:
        self._live.stop()


def view_for(*, as_json: bool) -> View:
    if as_json:
        return SilentView()
    return LiveView(Console()) if sys.stdout.isatty() else PlainView()


def picture(scene: Scene) -> RenderableType:
    """One frame: progress, who holds which rank, faults."""
    run = scene.run
    twin = run["part"] == "twin"
    last = scene.twin_step if twin else run["step"]
    done = 0 if last is None else last + 1
    title = PARTS.get(run["part"], str(run["part"]))
    if run["part"] == "run" and not any(worker["state"] == "active" for worker in scene.workers):
        title = PARTS[None]
    loss = "" if scene.loss is None or twin else f"loss {scene.loss:.4f}"
    progress = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=run["steps"], completed=done, width=40)
    progress.add_row(Text(title, style="bold"), bar, f"{done}/{run['steps']}", loss)
    workers = [_workers(scene.workers)] if run["part"] in (None, "run") else []
    return Group(progress, *workers, *(_fault(fault) for fault in scene.faults))


def _workers(workers: list[Json]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("rank", "worker", "node", "process", "state"):
        table.add_column(title)
    alive = [worker for worker in workers if worker["state"] != "exited"]
    for worker in sorted(alive, key=lambda w: (w["rank"] is None, w["rank"] or 0, w["worker"])):
        rank = "-" if worker["rank"] is None else str(worker["rank"])
        state = Text(worker["state"], style=STATE_STYLES.get(worker["state"], ""))
        table.add_row(rank, worker["worker"], str(worker["node"] or ""), str(worker["pid"] or ""), state)
    return table


def _fault(fault: Json) -> RenderableType:
    return Text(f"  {fault_line(fault)}", style="green" if healed(fault) else "red")


def healed(fault: Json) -> bool:
    return bool(fault["recovery"]) and fault["recovery"]["recovery_s"] is not None


def fault_line(fault: Json) -> str:
    """What became of a fault so far."""
    recovery = fault["recovery"]
    if healed(fault):
        spent = f"{milliseconds(recovery['recovery_s'])} ms, downtime {milliseconds(recovery['downtime_s'])} ms"
        return f"{headline(recovery)}: healed in {spent}"
    if fault["injected"]:
        injected = fault["injected"]
        return f"{fault['kind']}, rank {injected['rank']} ({injected['worker']}): injected, recovering"
    return f"{fault['kind']}: {fault['state'].lower()}" + (f" ({fault['detail']})" if fault["detail"] else "")
