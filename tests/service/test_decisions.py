"""Notes and decisions in an export: they come along, once, and overrule nothing."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import select

from service import archive, decisions, importing, store
from service.archive import ArchiveError
from service.control_tables import TriageRow
from service.database import Database
from service.history_tables import BaselineRow
from tests.service.helpers import Harness, Json
from tests.service.test_archive import a_run, elsewhere
from tests.service.test_baselines import CHOICE, NEW, measured


def taken(database: Database, file: Path) -> int:
    return importing.import_decisions(database, archive.read_decisions([file]))


@pytest.mark.both_databases
async def test_notes_and_decisions_go_with_an_export_of_all_runs(api: Harness, tmp_path: Path) -> None:
    measured(api)
    await api.post("/baselines", CHOICE)
    await api.post("/annotations", {"text": "a new kernel", "scenario": "kill-one"})
    await api.post("/triage", {"code": NEW, "state": "acknowledged", "reason": "it is known"})
    file = tmp_path / "all.tar.gz"
    archive.export(api.service.database, [], file)
    other = elsewhere(api.service.settings, tmp_path)
    assert taken(other, file) == 3
    assert taken(other, file) == 0, "what is there already is left alone"
    assert list(importing.import_all(other, [file], tmp_path / "there")) == []
    with api.service.database.read() as here, other.read() as there:
        assert decisions.export(here) == decisions.export(there)
    with other.write() as session:
        session.scalars(select(BaselineRow)).one().commit = NEW
        session.add(TriageRow(at=store.now(), code=NEW, state="resolved", reason="", owner=None, link=None, by="there"))
    assert taken(other, file) == 0, "nor does it overrule what was decided there since"
    archive.export(api.service.database, [(await a_run(api))["id"]], tmp_path / "one.tar.gz")
    assert taken(other, tmp_path / "one.tar.gz") == 0
    other.close()


ROWS: Json = {
    "annotations": {"id": "n1", "text": "a kernel", "commit": None, "scenario": None, "run_id": None},
    "triage": {"code": NEW, "state": "acknowledged", "reason": "known", "owner": None, "link": None},
    "baselines": {"scenario": "kill-one", "commit": NEW, "diff": "", "reason": "in use"},
}
MADE = {"at": "2026-11-01T00:00:00Z", "by": "x"}


def a_file(path: Path, *rows: tuple[str, Json], name: str = "decisions.json", more: tuple[str, ...] = ()) -> Path:
    """An export of nothing but these rows, each with what it says in place of what is valid. `more`: files before."""
    document: dict[str, list[Json]] = {table: [] for table in ROWS}
    for table, changes in rows:
        document[table].append({**ROWS[table], **MADE, **changes})
    text = json.dumps(document).encode()
    with tarfile.open(path, "w:gz") as archived:
        for other in more:
            archived.addfile(tarfile.TarInfo(other))
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        archived.addfile(entry, io.BytesIO(text))
    return path


@pytest.mark.parametrize(
    ("table", "changes", "said"),
    [
        ("triage", {"state": "bogus"}, "triage.0.state: Input should be 'new'"),
        ("triage", {"link": "javascript:alert(1)"}, "triage.0.link: "),
        ("triage", {"code": "A B"}, "triage.0.code: "),
        ("triage", {"owner": "a\nb"}, "triage.0.owner: "),
        ("triage", {"reason": "x" * 2001}, "triage.0.reason: "),
        ("triage", {"reason": " "}, "triage.0.reason: "),
        ("triage", {"more": 1}, "triage.0.more: "),
        ("annotations", {"text": "x" * 2001}, "annotations.0.text: "),
        ("annotations", {"commit": "abc"}, "annotations.0.commit: "),
        ("annotations", {"at": "0001-01-01T00:00:00+14:00"}, "annotations.0.at: "),
        ("annotations", {"at": "9999-12-31T23:59:59-14:00"}, "annotations.0.at: "),
        ("annotations", {"at": "2026-11-01T00:00:00"}, "annotations.0.at: "),
        ("baselines", {"scenario": ""}, "baselines.0.scenario: "),
        ("baselines", {"commit": "x y"}, "baselines.0.commit: "),
        ("baselines", {"reason": ""}, "baselines.0.reason: "),
    ],
)
def test_what_rest_would_refuse_is_refused_in_a_file(tmp_path: Path, table: str, changes: Json, said: str) -> None:
    file = a_file(tmp_path / "x.tar.gz", (table, changes))
    with pytest.raises(ArchiveError, match=re.escape(f"{file}: decisions.json: {said}")):
        archive.read_decisions([file])


@pytest.mark.parametrize(("table", "field"), [("annotations", "id 'n1'"), ("baselines", "scenario 'kill-one'")])
def test_what_is_in_a_file_twice_is_refused(tmp_path: Path, table: str, field: str) -> None:
    file = a_file(tmp_path / "x.tar.gz", (table, {}), (table, {}))
    with pytest.raises(ArchiveError, match=f"{table}: the {field} is there more than once"):
        archive.read_decisions([file])


@pytest.mark.parametrize("more", [(), ("./a/spec.json", "b")], ids=["the first", "the last"])
@pytest.mark.parametrize("name", ["decisions.json", "./decisions.json"])
def test_decisions_are_found_wherever_a_file_has_them(tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    file = a_file(tmp_path / "x.tar.gz", *((table, {}) for table in ROWS), name=name, more=more)
    (found,) = archive.read_decisions([file])
    assert (len(found.annotations), len(found.triage), len(found.baselines)) == (1, 1, 1)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_decisions_that_are_no_file_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archived:
        entry = tarfile.TarInfo("decisions.json")
        entry.type, entry.linkname = kind, "nowhere"
        archived.addfile(entry)
    with pytest.raises(ArchiveError, match=r"decisions\.json: is no file"):
        archive.read_decisions([tmp_path / "x.tar"])
