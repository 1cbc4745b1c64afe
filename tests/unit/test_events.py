"""Events: nothing that was reported is lost, whatever happens to the process that reported it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phoenix_core.events import KINDS, Event, EventTail, EventWriter, read_events
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20)
DATA = st.dictionaries(st.text(max_size=10), SCALARS | st.lists(SCALARS, max_size=3), max_size=4)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(sorted(KINDS)),
    at=st.integers(0, 2**62),
    host=st.text(max_size=8),
    node=st.none() | st.text(max_size=4),
    worker=st.none() | st.text(max_size=4),
    generation=st.none() | st.integers(0, 99),
    rank=st.none() | st.integers(0, 99),
    step=st.none() | st.integers(0, 10**6),
    data=DATA,
)


@given(EVENTS)
def test_json_round_trip_on_one_line(event: Event) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert Event.from_json(line) == event


def test_floats_are_kept_exactly(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "w0.jsonl", worker="w0")
    losses = [0.1 + 0.2, 5.562684059143066, 1e-300, float.fromhex("0x1.fffffffffffffp+0")]
    for loss in losses:
        writer.emit("step_committed", step=0, loss=loss)
    writer.close()
    assert [event.data["loss"] for event in read_events(tmp_path)] == losses


def test_named_fields_and_data_are_told_apart(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "deep" / "n0.jsonl", node="n0")
    emitted = writer.emit("worker_spawned", worker="w3", pid=12, start_ticks=34)
    writer.close()
    (read,) = read_events(tmp_path / "deep")
    assert read == emitted
    assert (read.node, read.worker, dict(read.data)) == ("n0", "w3", {"pid": 12, "start_ticks": 34})


def test_an_injected_fault_carries_its_kind_in_data(tmp_path: Path) -> None:
    """`kind` is the event's own and, of a fault, a datum: the two must not clash."""
    writer = EventWriter(tmp_path / "injector.jsonl")
    event = writer.emit("fault_injected", worker="w1", rank=1, fault="f1", kind="process_kill")
    writer.close()
    assert (event.kind, event.data["kind"]) == ("fault_injected", "process_kill")
    assert read_events(tmp_path) == [event]


def test_a_writer_without_path_drops_events_and_a_closed_one_stays_quiet() -> None:
    writer = EventWriter(None)
    assert writer.emit("job_started").kind == "job_started"
    writer.close()
    writer.close()


def test_an_unknown_kind_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown event kind"):
        EventWriter(tmp_path / "x.jsonl").emit("no_such_kind")


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"kind": "job_started"}', '{"at": 1}'])
def test_what_is_not_an_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Event.from_json(line)


@given(st.lists(EVENTS, min_size=1, max_size=8), st.integers(0, 10**6))
def test_a_tail_returns_each_event_once_wherever_the_file_is_cut(events: list[Event], cut: int) -> None:
    """Write the file in two pieces, cut at any byte, and read after each: no event twice, none missing."""
    whole = "".join(event.to_json() + "\n" for event in events).encode()
    cut %= len(whole) + 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "w0.jsonl"
        tail = EventTail(Path(directory))
        path.write_bytes(whole[:cut])
        first = tail.read()
        resumed = EventTail(Path(directory), tail.offsets)  # a reader that starts again from saved offsets
        with path.open("ab") as file:
            file.write(whole[cut:])
        read = first + resumed.read()
        assert resumed.read() == []
    assert sorted(event.to_json() for event in read) == sorted(event.to_json() for event in events)


def test_a_record_torn_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    good = Event(kind="job_started", at=1).to_json()
    (tmp_path / "a.jsonl").write_text(f"{good}\n{good[:10]}\nnonsense\n{good}\n{good[:12]}")
    assert len(read_events(tmp_path)) == 2


def test_a_record_with_unknown_fields_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"kind":"job_started","at":1,"colour":"red"}\n')
    assert read_events(tmp_path) == []


def test_a_directory_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert read_events(tmp_path / "later") == []


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    for name, times in (("b", (1, 4)), ("a", (2, 3))):
        writer = EventWriter(tmp_path / f"{name}.jsonl", worker=name)
        for at in times:
            writer.emit("worker_exited", at=at)
        writer.close()
    assert [event.at for event in read_events(tmp_path)] == [1, 2, 3, 4]


def test_threads_and_writers_on_one_file_tear_no_record(tmp_path: Path) -> None:
    """Two writers on the same file, four threads each: O_APPEND and one write a record keep them whole."""
    writers = [EventWriter(tmp_path / "one.jsonl", worker=f"w{number}") for number in range(2)]

    def emit(writer: EventWriter, thread: int) -> None:
        for step in range(100):
            writer.emit("step_committed", step=step, thread=thread, filler="x" * 200)

    threads = [threading.Thread(target=emit, args=(writer, n)) for writer in writers for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.close()
    seen = [(event.worker, event.data["thread"], event.step) for event in read_events(tmp_path)]
    assert len(seen) == 800
    assert len(set(seen)) == 800


@pytest.mark.process
def test_a_killed_writer_loses_nothing_that_it_reported(tmp_path: Path) -> None:
    """The process tells through a pipe which step it has emitted; at SIGKILL all of these are in the file."""
    code = (
        "import os, sys, pathlib\n"
        "from phoenix_core.events import EventWriter\n"
        "writer = EventWriter(pathlib.Path(sys.argv[1]) / 'w0.jsonl', worker='w0')\n"
        "for step in range(10**9):\n"
        "    writer.emit('step_committed', step=step)\n"
        "    os.write(1, b'.')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = len(process.stdout.read(2000))
        process.send_signal(signal.SIGKILL)
        told += len(process.stdout.read())  # what was in the pipe when it died
    steps = [event.step for event in read_events(tmp_path)]
    assert process.returncode == -signal.SIGKILL
    assert steps == list(range(len(steps)))
    assert len(steps) >= told >= 2000
    content = (tmp_path / "w0.jsonl").read_bytes()
    assert content.endswith(b"\n")


@pytest.mark.process
def test_the_descriptor_is_not_inherited(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "w0.jsonl")
    code = "import os, sys; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
    listing = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, close_fds=False)
    writer.close()
    assert "w0.jsonl" not in listing.stdout


def test_a_writer_and_a_reader_side_by_side(tmp_path: Path) -> None:
    """A tail that polls while records are appended sees each exactly once, in the order of the file."""
    writer, tail = EventWriter(tmp_path / "w0.jsonl"), EventTail(tmp_path)
    seen: list[Event] = []

    def emit() -> None:
        for step in range(500):
            writer.emit("step_committed", step=step)

    thread = threading.Thread(target=emit)
    thread.start()
    wait_until(lambda: seen.extend(tail.read()) or len(seen) >= 500, "500 events to be read")  # type: ignore[func-returns-value]
    thread.join()
    writer.close()
    assert [event.step for event in seen] == list(range(500))
    assert os.path.getsize(tmp_path / "w0.jsonl") == tail.offsets["w0.jsonl"]


def test_a_full_disk_loses_a_record_or_raises_as_was_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    strict, forgiving = EventWriter(tmp_path / "full.jsonl"), EventWriter(tmp_path / "full.jsonl", forgiving=True)
    with pytest.raises(OSError, match="No space left"):
        strict.emit("job_started")
    for _ in range(3):
        forgiving.emit("job_started")
    assert capsys.readouterr().err.count("events are being lost: No space left") == 1
    assert read_events(tmp_path) == []  # what is no file is not read: /dev/full would never end
    strict.close()
    forgiving.close()


def test_a_file_that_cannot_be_opened_loses_records_or_raises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "events").write_text("")  # no directory
    with pytest.raises(OSError, match="File exists"):
        EventWriter(tmp_path / "events" / "w0.jsonl")
    EventWriter(tmp_path / "events" / "w0.jsonl", forgiving=True).emit("job_started")
    assert "events are being lost: File exists" in capsys.readouterr().err


def test_every_record_of_the_protocol_is_a_kind_of_event() -> None:
    sources = (ROOT / "phoenix_core").glob("*.py")
    told = {kind for source in sources for kind in re.findall(r'Record\(\s*kind="(\w+)"', source.read_text())}
    assert told and told <= set(KINDS)
