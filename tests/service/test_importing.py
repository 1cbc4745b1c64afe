"""What an import takes over: trials that are whole, once, whatever the file or the import before went through."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from chaos.record import TrialDirectory
from chaos.scenario import Scenario
from service import archive, importing
from service.archive import ASIDE, ArchiveError
from service.cli import app
from service.database import Database
from service.history_tables import SampleRow
from service.importing import Imported
from service.ingest import TrialReader
from service.runfile import RunFile
from service.tables import EventRow, FaultRow, Run, Trial
from tests.service.helpers import TINY, Json, Script

RUN: Json = {
    "run": "run-1",
    "number": 1,
    "suite": "nightly",
    "schedule": None,
    "reason": "to keep",
    "requested_by": "somebody",
    "created_at": "2026-11-01T00:00:00Z",
}


@pytest.fixture
def database(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Database]:
    shutil.copy(migrated_sqlite, tmp_path / "phoenix.db")
    found = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    yield found
    found.close()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Where trials are unpacked."""
    return tmp_path / "there"


def a_trial(path: Path, run: Json | None = None) -> Path:
    """The directory of one that ended."""
    TrialDirectory.create(path, Scenario.from_json(TINY))
    script = Script(path)
    script.begin()
    script.step(0)
    script.result()
    script.close()
    if run is not None:
        (path / "run.json").write_text(json.dumps(run))
    return path


def packed(file: Path, *directories: Path, mode: Any = "w:gz") -> Path:
    with tarfile.open(file, mode) as archived:
        for directory in directories:
            archived.add(directory, directory.name)
    return file


def taken(database: Database, paths: list[Path], there: Path) -> list[Imported]:
    return list(importing.import_all(database, paths, there))


def rows(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {
            table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
            for table in (Run, Trial, EventRow, SampleRow)
        }


@pytest.mark.parametrize(("where", "name"), [(TrialReader, "read_into"), (importing, "_conclude")])
def test_a_trial_whose_import_was_interrupted_is_imported_by_the_next(
    database: Database, tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    directory = a_trial(tmp_path / "a", RUN)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            taken(database, [directory], there)
    assert rows(database) == {"runs": 0, "trials": 0, "events": 0, "samples": 0}
    (done,) = taken(database, [directory], there)
    assert done.trial == "run-1-1"
    with database.read() as session:
        assert session.scalars(select(Run.state)).one() == "FINISHED"
    assert rows(database)["events"] > 0 and rows(database)["samples"] == 1


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def bitten(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 60]) + content[middle + 60 :]


@pytest.mark.parametrize("damage", [cut, bitten], ids=["cut", "bitten"])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, bytes], ids=["gz", "xz", "bz2", "plain"])
def test_nothing_of_a_damaged_file_is_taken_over(
    database: Database,
    tmp_path: Path,
    there: Path,
    pack: Callable[[bytes], bytes],
    damage: Callable[[bytes], bytes],
) -> None:
    directories = [a_trial(tmp_path / name, {**RUN, "number": n}) for n, name in enumerate("abc", start=1)]
    (directories[1] / "big").write_bytes(os.urandom(100_000))
    whole = pack(packed(tmp_path / "whole.tar", *directories, mode="w").read_bytes())
    file = tmp_path / "file.tar"
    file.write_bytes(damage(whole))
    if pack is bytes and damage is bitten:  # no checksum tells; what is bitten is no document that is read
        file.write_bytes(whole.replace(b'"trial"', b"'trial'", 1))
        assert sorted((item.trial or item.reason[-40:]) for item in taken(database, [file], there))[1:] == [
            "run-1-2",
            "run-1-3",
        ]
    else:
        for look in (lambda: taken(database, [file], there), lambda: archive.read_decisions([file])):
            with pytest.raises(ArchiveError, match=r"cannot unpack .*file\.tar"):
                look()
        assert list(there.iterdir()) == [] and rows(database)["trials"] == 0
    file.write_bytes(whole)
    assert [item.broken for item in taken(database, [file], there)] == [False, False, False]
    assert rows(database)["trials"] == 3


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("inside", [0, 100], ids=["between two entries", "in a header"])
def test_a_file_that_was_cut_where_an_entry_begins_is_not_whole(
    database: Database, tmp_path: Path, there: Path, inside: int, pack: Callable[[bytes], bytes]
) -> None:
    whole = packed(tmp_path / "whole.tar", *(a_trial(tmp_path / name) for name in "ab"), mode="w")
    with tarfile.open(whole) as archived:
        before, second = next(pair for pair in pairwise(archived) if pair[1].name == "b")
        (tmp_path / "x.tar").write_bytes(pack(whole.read_bytes()[: second.offset + inside]))
    for look in (
        lambda: taken(database, [tmp_path / "x.tar"], there),
        lambda: archive.read_decisions([tmp_path / "x.tar"]),
    ):
        with pytest.raises(ArchiveError, match=rf"was cut behind {before.name} \(byte {second.offset} .*again"):
            look()
    assert list(there.iterdir()) == []


def test_what_ends_a_file_may_be_short(database: Database, tmp_path: Path, there: Path) -> None:
    """One block of zeros says that nothing is missing."""
    whole = packed(tmp_path / "whole.tar", a_trial(tmp_path / "a", RUN), mode="w")
    with tarfile.open(whole) as archived:
        archived.getmembers()
        end = archived.offset + tarfile.BLOCKSIZE
    (tmp_path / "x.tar").write_bytes(whole.read_bytes()[:end])
    assert [item.trial for item in taken(database, [tmp_path / "x.tar"], there)] == ["run-1-1"]


@pytest.mark.parametrize("name", [b"a/spec.json", b"b"], ids=["in the middle", "the last"])
def test_a_header_that_is_damaged_does_not_end_a_file_unnoticed(
    database: Database, tmp_path: Path, there: Path, name: bytes
) -> None:
    file = tmp_path / "x.tar"
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archived:
        archived.add(a_trial(tmp_path / "a"), "a")
        archived.addfile(tarfile.TarInfo("b"))
    content = file.read_bytes()
    at = content.index(name + bytes(100 - len(name)))
    file.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with pytest.raises(ArchiveError, match="it is damaged"):
        taken(database, [file], there)


@pytest.mark.parametrize("headers", [{"path": "a\0b"}, {"mtime": "1e300"}], ids=["name", "time"])
def test_what_no_file_can_have_is_refused(database: Database, tmp_path: Path, there: Path, headers: Json) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archived:
        entry = tarfile.TarInfo("a")
        entry.pax_headers = headers
        archived.addfile(entry)
    with pytest.raises(ArchiveError, match="cannot unpack"):
        taken(database, [tmp_path / "x.tar"], there)


@pytest.mark.parametrize(
    "text", ['{"verdict": "PASS", "checks": {"fired": "x"}, "recoveries": [], "error": null}', "[" * 100_000]
)
def test_results_that_are_none(database: Database, tmp_path: Path, there: Path, text: str) -> None:
    directory = a_trial(tmp_path / "a", RUN)
    (directory / "result.json").write_text(text)
    (done,) = taken(database, [directory], there)
    assert done.broken and str(directory / "result.json") in done.reason


def test_what_an_unpacking_that_was_killed_left_is_removed_and_two_do_not_meet(
    database: Database, tmp_path: Path, there: Path
) -> None:
    half = there / ASIDE / "files" / "a"
    half.mkdir(parents=True)
    (half / "spec.json").write_text("{")
    file = packed(tmp_path / "x.tar.gz", a_trial(tmp_path / "a", RUN))
    other = os.open(there / ASIDE / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ArchiveError, match="another import is unpacking"):
        taken(database, [file], there)
    assert half.exists()
    os.close(other)
    (done,) = taken(database, [file], there)
    assert done.trial == "run-1-1" and [path.name for path in there.iterdir()] == ["a"]


def test_a_full_disk_leaves_no_half_of_a_trial(
    database: Database, tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed(tmp_path / "x.tar.gz", a_trial(tmp_path / "a", RUN))

    def full(archived: tarfile.TarFile, path: Path, **_: object) -> None:
        archived.extract(archived.getmembers()[0], path, filter="data")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "extractall", full)
        with pytest.raises(ArchiveError, match="No space left on device"):
            taken(database, [file], there)
    assert list(there.iterdir()) == []
    assert [item.trial for item in taken(database, [file], there)] == ["run-1-1"]


def test_a_directory_that_is_no_trial_is_named_as_in_the_file(database: Database, tmp_path: Path, there: Path) -> None:
    good, bad = a_trial(tmp_path / "good", RUN), a_trial(tmp_path / "bad")
    (bad / "spec.json").write_text("{")
    file = packed(tmp_path / "x.tar.gz", good, bad)
    broken, done = taken(database, [file], there)
    assert broken.broken and f"cannot read {file}/bad/spec.json" in broken.reason and done.trial == "run-1-1"
    assert [path.name for path in there.iterdir()] == ["good"]


@pytest.mark.parametrize("run", [None, {**RUN, "number": 7}], ids=["by hand", "of a run"])
def test_a_trial_that_is_exported_and_imported_is_the_same(
    database: Database, tmp_path: Path, there: Path, run: Json | None
) -> None:
    """Also where its directory says nothing of a run: the export says it."""
    (first,) = taken(database, [a_trial(tmp_path / "by-hand", run)], there)
    archive.export(database, [], tmp_path / "x.tar.gz")
    for _ in range(2):
        (again,) = taken(database, [tmp_path / "x.tar.gz"], there)
        assert again.trial is None and f"{first.trial} is there already" in again.reason
    told = RunFile.read(there / str(first.trial))
    assert told is not None and f"{told.run}-{told.number}" == first.trial


def test_faults_that_were_asked_for_while_it_ran_are_taken_over(
    database: Database, tmp_path: Path, there: Path
) -> None:
    path = tmp_path / "struck"
    directory = TrialDirectory.create(path, Scenario.from_json(TINY))
    asked = {"fault": "by-hand", "kind": "process_stop", "target": {"rank": 1}, "trigger": {"now": True}, "reason": "r"}
    odd = ({**asked, "fault": name, "reason": "\ud800"} for name in ("a" * 65, "nul\0", "\ud800"))
    for request in (asked, asked, {**asked, "fault": "wrong", "kind": "none"}, *odd):
        directory.request_fault(request)
    script = Script(path)
    script.begin()
    script.emit("injector", "fault_missed", fault="by-hand", kind="process_stop", reason="halted")
    script.result()
    script.close()
    (first,) = taken(database, [path], there)
    with database.read() as session:
        (row,) = session.scalars(select(FaultRow).where(FaultRow.trial_id == first.trial))
        assert (row.id, row.live, row.delivered) == ("by-hand", True, True)
        assert (row.state, row.detail, row.reason) == ("MISSED", "halted", "r")


@pytest.mark.parametrize(("error", "state"), [("cancelled: no time", "CANCELLED"), (None, "FINISHED")])
def test_a_trial_that_was_cancelled_stays_so_unless_that_came_too_late(
    database: Database, tmp_path: Path, there: Path, error: str | None, state: str
) -> None:
    path = tmp_path / "stopped"
    TrialDirectory.create(path, Scenario.from_json(TINY)).request_cancel("no time")
    script = Script(path)
    script.begin()
    script.result(error=error)
    script.close()
    (first,) = taken(database, [path], there)
    with database.read() as session:
        assert session.get_one(Trial, first.trial).state == state


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run": "r" * 60}, "run"),
        ({"run": "../x"}, "run"),
        ({"run": "a\0b"}, "run"),
        ({"run": ["a"]}, "run"),
        ({"number": "1"}, "number"),
        ({"number": 0}, "number"),
        ({"number": 2**70}, "number"),
        ({"suite": "s" * 5000}, "suite"),
        ({"reason": {"a": 1}}, "reason"),
        ({"created_at": "2026-11-01"}, "created_at"),
        ({"created_at": "0001-01-01T00:00:00+14:00"}, "created_at"),
    ],
)
def test_a_run_file_that_is_none_is_told_with_its_field(
    database: Database, tmp_path: Path, there: Path, changes: Json, field: str
) -> None:
    directory = a_trial(tmp_path / "a", {**RUN, **changes})
    (done,) = taken(database, [directory], there)
    assert done.broken and f"{directory}/run.json: {field}: " in done.reason
    assert rows(database)["trials"] == 0


def test_times_that_are_none_and_fields_of_later_versions(database: Database, tmp_path: Path, there: Path) -> None:
    for name, file, field in (("a", "spec.json", "created_at"), ("b", "result.json", "finished_at")):
        path = a_trial(tmp_path / name, RUN) / file
        path.write_text(json.dumps({**json.loads(path.read_text()), field: "tomorrow"}))
        (done,) = taken(database, [path.parent], there)
        assert done.broken and f"{path}: 'tomorrow'" in done.reason
    (done,) = taken(database, [a_trial(tmp_path / "c", {**RUN, "later": 1})], there)
    assert done.trial == "run-1-1"


def test_the_command_tells_what_it_imported_before_it_failed(tmp_path: Path) -> None:
    directory = a_trial(tmp_path / "a", RUN)
    (tmp_path / "none").mkdir()
    home = ["--dir", str(tmp_path / "home")]
    done = CliRunner().invoke(app, ["import", str(directory), str(tmp_path / "none"), *home])
    assert done.exit_code == 2 and "1 trials imported" in done.stdout and "no trial directory" in done.stderr
    text = io.BytesIO(b"{}")
    with tarfile.open(tmp_path / "x.tar", "w") as archived:
        archived.add(directory, "a")
        entry = tarfile.TarInfo("decisions.json")
        entry.size = 2
        archived.addfile(entry, text)
    done = CliRunner().invoke(app, ["import", str(tmp_path / "x.tar"), "--dir", str(tmp_path / "other")])
    assert done.exit_code == 2 and done.stdout == "" and "decisions.json: annotations: Field required" in done.stderr
    assert not (tmp_path / "other" / "trials").exists(), "nothing was imported"
