"""Runs out of a database and into another: by directories, which hold all of a trial."""

from __future__ import annotations

import errno
import json
import tarfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from typer.testing import CliRunner, Result

from service import archive, importing, retention, store
from service.archive import ArchiveError
from service.cli import app
from service.context import opened_database
from service.database import Database
from service.settings import Settings
from service.tables import EventRow, Run, StepSample, Trial
from tests.service.helpers import TINY, Harness, Json, Script


async def a_run(api: Harness, trials: int = 1) -> Json:
    """One that ended, with a kill and its recovery in each trial."""
    body = {"scenario": TINY, "trials": trials, "reason": "to keep"}
    run: Json = (await api.post("/runs", body)).json()
    for _ in range(trials):
        api.tick()
        (active,) = [t for t in (await api.get(f"/runs/{run['id']}/trials"))["items"] if t["state"] == "RUNNING"]
        directory = Path(active["directory"])
        script = Script(directory)
        script.begin()
        script.step(0)
        script.kill_rank_1("kill", step=1)
        script.step(1, generation=1, workers=("w0", "w2"))
        script.result()
        script.close()
        (directory / "end").touch()
        await until_trial_ended(api, active["id"])
    return await api.get(f"/runs/{run['id']}")


async def until_trial_ended(api: Harness, trial: str) -> None:
    from tests.support import wait_until

    def ended() -> bool:
        api.tick()
        with api.service.database.read() as session:
            return session.get_one(Trial, trial).finished_at is not None

    wait_until(ended, "the end of the trial")


def elsewhere(settings: Settings, tmp_path: Path) -> Database:
    """Another, empty database."""
    del settings
    return opened_database(Settings(directory=tmp_path, database_url=f"sqlite:///{tmp_path / 'other.db'}"))


def told(database: Database, run: str) -> Json:
    """What matters of a run, wherever it lies."""
    with database.read() as session:
        row = store.find_run(session, run)
        assert row is not None
        trials = store.trials_of(session, run)
        return {
            "run": [row.id, row.scenario, row.seed, row.state, row.verdict, row.reason, row.created_at, row.step],
            "trials": [[t.id, t.number, t.seed, t.state, t.verdict, t.checks, t.first_at] for t in trials],
            "events": sorted((e.kind, e.at) for e in store.events(session, run, after=0, limit=10_000)),
            "recoveries": [[r.document for r in store.recoveries(session, t.id)] for t in trials],
            "steps": [store.step_rows(session, t.id, 100, after=-1, limit=100) for t in trials],
        }


async def test_a_lost_database_is_made_again_from_the_directories(api: Harness, tmp_path: Path) -> None:
    run = await a_run(api, trials=2)
    other = elsewhere(api.service.settings, tmp_path)
    trials = api.service.settings.trials
    done = list(importing.import_all(other, [trials], trials))
    assert sorted(str(item.trial) for item in done) == run["trials"]
    assert told(other, run["id"]) == told(api.service.database, run["id"])
    again = list(importing.import_all(other, [trials], trials))
    assert [item.trial for item in again] == [None, None] and "there already" in again[0].reason
    other.close()


async def test_an_export_is_read_anywhere(api: Harness, tmp_path: Path) -> None:
    run, other_run = await a_run(api), await a_run(api)
    file = tmp_path / "runs.tar.gz"
    assert archive.export(api.service.database, [run["id"]], file) == ([f"{run['id']}-1"], [])
    other = elsewhere(api.service.settings, tmp_path)
    (done,) = importing.import_all(other, [file], tmp_path / "there")
    assert done.trial == f"{run['id']}-1" and done.directory == tmp_path / "there" / f"{run['id']}-1"
    assert told(other, run["id"]) == told(api.service.database, run["id"])
    with other.read() as session:
        assert store.find_run(session, other_run["id"]) is None
    with pytest.raises(ArchiveError, match="there already"):
        archive.export(api.service.database, [], file)
    with pytest.raises(ArchiveError, match="no run 'nix'"):
        archive.export(api.service.database, ["nix"], tmp_path / "x.tar.gz")
    other.close()


async def test_what_is_no_trial_says_so(api: Harness, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no archive")
    for path in (tmp_path / "empty", tmp_path / "file"):
        with pytest.raises(ArchiveError, match=path.name):
            list(importing.import_all(api.service.database, [path], tmp_path))
    with tarfile.open(tmp_path / "outside.tar", "w") as archived:
        archived.addfile(tarfile.TarInfo("/etc/spec.json"))
    with pytest.raises(ArchiveError, match="names with /"):
        list(importing.import_all(api.service.database, [tmp_path / "outside.tar"], tmp_path))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "spec.json").write_text("{}")
    (done,) = importing.import_all(api.service.database, [tmp_path / "broken"], tmp_path)
    assert done.trial is None and "spec.json" in done.reason and "field 'trial' is missing" in done.reason


async def test_a_trial_by_hand_becomes_a_run_of_its_own(api: Harness, tmp_path: Path) -> None:
    run = await a_run(api)
    directory = api.service.settings.trials / run["trials"][0]
    (directory / "run.json").unlink()
    other = elsewhere(api.service.settings, tmp_path)
    (done,) = importing.import_all(other, [directory], tmp_path)
    assert done.trial is not None and done.trial.startswith("import-")
    (again,) = importing.import_all(other, [directory], tmp_path)
    assert again.trial is None and "there already" in again.reason
    other.close()


async def test_old_runs_lose_their_events_and_keep_what_is_compared(api: Harness) -> None:
    old, new = await a_run(api), await a_run(api)
    with api.service.database.write() as session:
        row = store.find_run(session, old["id"])
        assert row is not None
        row.finished_at = store.now() - timedelta(days=100)
    assert retention.archive(api.service.database, timedelta(days=90)) == [old["id"]]
    retention.tidy(api.service.database)
    with api.service.database.read() as session:
        for column in (EventRow.trial_id, StepSample.trial_id):
            assert set(session.scalars(select(column))) == {new["trials"][0]}
        assert {row.id for row in session.query(Run)} == {old["id"], new["id"]}
    seen = await api.get(f"/runs/{old['id']}")
    assert seen["archived"] and seen["verdict"] == "PASS" and not (await api.get(f"/runs/{new['id']}"))["archived"]
    trial = await api.get(f"/trials/{old['trials'][0]}")
    directory = Path(trial["directory"])
    assert (directory / "result.json").exists() and not (directory / "run").exists()
    assert (await api.get(f"/runs/{old['id']}/steps"))["items"] == []
    assert retention.archive(api.service.database, timedelta(days=90)) == []


async def test_the_commands(api: Harness, tmp_path: Path) -> None:
    run = await a_run(api)
    settings = api.service.settings
    base = ["--dir", str(settings.directory), *(["--database", settings.database_url] if settings.database_url else [])]

    def phoenix(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    file = tmp_path / "x.tar.gz"
    done = phoenix("export", str(file), *base, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"file": str(file), "trials": run["trials"], "missing": []}
    again = phoenix("export", str(file), *base)
    assert again.exit_code == 2 and "there already" in again.stderr
    there = phoenix("import", str(file), "--dir", str(tmp_path / "there"))
    assert there.exit_code == 0 and "1 trials imported" in there.stdout, there.output
    dry = phoenix("prune", "--keep-days", "0", "--dry-run", *base, "--json")
    assert json.loads(dry.stdout) == {"runs": [run["id"]], "dry_run": True}


def test_an_export_that_ends_early_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "runs.tar.gz"
    with closing(elsewhere(Settings(directory=tmp_path), tmp_path)) as database:
        with monkeypatch.context() as patched:
            patched.setattr("service.archive.tarfile.open", full)
            with pytest.raises(ArchiveError, match="No space left on device"):
                archive.export(database, [], target)
        assert not target.exists()
        archive.export(database, [], target)
        with pytest.raises(ArchiveError, match="is there already"):
            archive.export(database, [], target)
    assert target.stat().st_size


def test_a_directory_that_cannot_be_read_fails_the_import(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "spec.json").write_text("{")
    done = CliRunner().invoke(app, ["import", str(tmp_path / "trial"), "--dir", str(tmp_path / "home")])
    assert done.exit_code == 1 and "0 trials imported" in done.stdout and "spec.json" in done.stdout, done.output
