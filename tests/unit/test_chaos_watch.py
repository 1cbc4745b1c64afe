"""The watch reads what was appended: all of it, once, in order, with and without inotify."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest

from chaos import watch
from chaos.watch import EventWatch
from phoenix_core.events import EventWriter


@pytest.fixture(params=["inotify", "polling"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "polling":
        monkeypatch.setattr(watch, "inotify_on", lambda directory, mask: None)
    return str(request.param)


def test_everything_is_read_once_and_in_order(tmp_path: Path, watching: str) -> None:
    first = EventWriter(tmp_path / "w0.jsonl", worker="w0")
    first.emit("worker_exited", at=3)
    with EventWatch(tmp_path) as events:
        second = EventWriter(tmp_path / "w1.jsonl", worker="w1")
        second.emit("spare_parked", at=1)
        first.emit("spare_parked", at=2)
        assert [event.at for event in events.read()] == [1, 2, 3]
        assert events.read() == []
        second.emit("phase_entered", at=4, step=1, phase="forward")
        second.emit("step_committed", at=5, step=1)
        assert [event.at for event in events.read(skip=["phase_entered"])] == [5]
        assert events.read() == []
    first.close()
    second.close()


def test_a_line_is_read_when_it_is_whole(tmp_path: Path, watching: str) -> None:
    path = tmp_path / "w0.jsonl"
    path.write_bytes(b'{"kind":"spare_parked","at":1}\n{"kind":"spare_')
    with EventWatch(tmp_path) as events:
        assert [event.at for event in events.read()] == [1]
        with path.open("ab") as file:
            file.write(b'parked","at":2}\nnot an event\n[]\n{"kind":"spare_parked","at":3}\n')
        assert [event.at for event in events.read()] == [2, 3]


def test_other_files_do_not_matter(tmp_path: Path, watching: str) -> None:
    with EventWatch(tmp_path / "new") as events:
        (tmp_path / "new" / "notes.txt").write_text("x\n")
        assert events.read() == []


def test_a_new_event_wakes_the_reader(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "w0.jsonl")
    with EventWatch(tmp_path) as events:
        events.read()
        descriptor = events.fileno()
        if descriptor is None:
            pytest.skip("this kernel refuses inotify")
        assert select.select([descriptor], [], [], 0)[0] == []
        writer.emit("spare_parked", at=time.monotonic_ns())
        assert select.select([descriptor], [], [], 5)[0] == [descriptor]
        assert len(events.read()) == 1
        assert select.select([descriptor], [], [], 0)[0] == []
    writer.close()
