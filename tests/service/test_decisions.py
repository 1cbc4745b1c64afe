"""Notes and decisions in an export: they come along, once, and overrule nothing."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import select

from service import archive, decisions, store
from service.archive import ArchiveError
from service.control_tables import TriageRow
from service.history_tables import BaselineRow
from tests.service.helpers import Harness
from tests.service.test_archive import a_run, elsewhere
from tests.service.test_baselines import CHOICE, NEW, measured


@pytest.mark.both_databases
async def test_notes_and_decisions_go_with_an_export_of_all_runs(api: Harness, tmp_path: Path) -> None:
    measured(api)
    await api.post("/baselines", CHOICE)
    await api.post("/annotations", {"text": "a new kernel", "scenario": "kill-one"})
    await api.post("/triage", {"code": NEW, "state": "acknowledged", "reason": "it is known"})
    file = tmp_path / "all.tar.gz"
    archive.export(api.service.database, [], file)
    other = elsewhere(api.service.settings, tmp_path)
    assert archive.import_decisions(other, [file]) == 3
    assert archive.import_decisions(other, [file]) == 0, "what is there already is left alone"
    assert list(archive.import_all(other, [file], tmp_path / "there")) == []
    with api.service.database.read() as here, other.read() as there:
        assert decisions.export(here) == decisions.export(there)
    with other.write() as session:
        session.scalars(select(BaselineRow)).one().commit = NEW
        session.add(TriageRow(at=store.now(), code=NEW, state="resolved", reason="", owner=None, link=None, by="there"))
    assert archive.import_decisions(other, [file]) == 0, "nor does it overrule what was decided there since"
    archive.export(api.service.database, [(await a_run(api))["id"]], tmp_path / "one.tar.gz")
    assert archive.import_decisions(other, [tmp_path / "one.tar.gz"]) == 0
    other.close()


async def test_decisions_that_are_none_are_refused(api: Harness, tmp_path: Path) -> None:
    text = json.dumps({"annotations": [], "triage": [], "baselines": [{"scenario": "x"}]}).encode()
    with tarfile.open(tmp_path / "wrong.tar.gz", "w:gz") as archived:
        entry = tarfile.TarInfo("decisions.json")
        entry.size = len(text)
        archived.addfile(entry, io.BytesIO(text))
    with pytest.raises(ArchiveError, match=r"decisions\.json: baselines\.0\.commit: Field required"):
        archive.import_decisions(api.service.database, [tmp_path / "wrong.tar.gz"])
