"""Made-up history: the same story for the same seed, in the shape of real trials, never beside real ones."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chaos.reading import Phase
from chaos.record import TrialDirectory
from chaos.verdict import Verdict
from service import catalog, history, importing, store
from service.database import Database
from service.ingest import TrialReader
from service.seeding import story
from service.seeding.command import seed_directory
from service.seeding.script import play
from service.seeding.story import SCENARIOS, Night, Outcome
from service.seeding.write import SeedingError, last_night, seed
from service.settings import Settings
from service.tables import EventRow, Run
from tests.service.helpers import harness

LAST = datetime(2026, 11, 29, 2, tzinfo=UTC)


def told(seed: int = 1, count: int = story.NIGHTS) -> list[Night]:
    scenarios = {name: catalog.scenario_named(name) for name in SCENARIOS}
    return list(story.nights(scenarios, seed=seed, last=LAST, count=count))


def test_a_seed_tells_one_story() -> None:
    assert told() == told()
    assert [night.commit for night in told()] != [night.commit for night in told(seed=2)]
    assert told(count=3) == told()[-3:], "a shorter history is the end of the longer one"


def test_the_story_has_something_of_everything() -> None:
    nights = told()
    assert len({night.started for night in nights}) == story.NIGHTS - 1, "one night is missing"
    assert len({night.commit for night in nights if night.suite == "nightly"}) == story.NIGHTS - 1
    base, head = (night for night in nights if night.suite == "compare")
    assert base.boot == head.boot and base.commit != head.commit, "measured in turns, in one session"
    assert len({json.dumps(dict(night.machine)) for night in nights}) == 2
    outcomes = Counter(trial.outcome for night in nights for trial in night.trials)
    assert [outcomes[kind] for kind in Outcome if kind is not Outcome.PASSED] == [1, 1, 1]


def test_a_recovery_takes_as_long_as_the_story_says() -> None:
    """The lengths come back from the events by the same code that reads real ones."""
    night = told(count=1)[0]
    trial = next(trial for trial in night.trials if trial.outcome is Outcome.PASSED)
    (recovery,) = play(night, trial).result.recoveries
    assert recovery.phases == pytest.approx({phase.value: trial.phases[phase] for phase in Phase}, abs=1e-6)
    assert recovery.blamed is not None and recovery.blamed["worker"] == recovery.target["worker"]
    assert recovery.lost_steps == 1


def test_each_outcome_has_its_verdict() -> None:
    by_outcome = {trial.outcome: (night, trial) for night in told() for trial in night.trials}
    verdicts = {outcome: play(*found).result.verdict for outcome, found in by_outcome.items()}
    assert verdicts == {
        Outcome.PASSED: Verdict.PASS,
        Outcome.WRONG_TWIN: Verdict.FAIL,
        Outcome.NOT_RECOVERED: Verdict.FAIL,
        Outcome.TOO_LATE: Verdict.UNKNOWN,
    }


def test_a_night_that_is_not_over_is_not_told() -> None:
    assert last_night(datetime(2026, 11, 29, 12, tzinfo=UTC)) == LAST
    assert last_night(datetime(2026, 11, 29, 2, 30, tzinfo=UTC)) == LAST.replace(day=28)


async def test_it_reads_like_real_trials_and_says_that_it_is_none(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    database.migrate()
    seed(tmp_path, database, last=LAST, count=1)
    database.close()
    async with harness(Settings(directory=tmp_path)) as api:
        (run,) = (await api.get("/runs"))["items"]
        assert run["seeded"] and run["suite"] == "nightly" and run["verdict"] == "FAIL"
        assert run["progress"] == {"done": 24, "total": 24} and run["step"] == run["steps"] - 1
        trial = await api.get(f"/trials/{run['trials'][0]}")
        assert trial["verdict"] == "PASS" and len(trial["recoveries"]) == 1
        beside = await api.get(f"/trials/{trial['id']}/baseline")
        assert beside["trials"] == 6 and set(beside["medians"]) == {trial["recoveries"][0]["fault"]["id"]}
        timeline = await api.get(f"/trials/{trial['id']}/timeline")
        rows = {bar["row"] for bar in timeline["recoveries"][0]["bars"]}
        assert rows == {"coordinator", "rank 0", "rank 1", "rank 2", "rank 3"}
    spec = json.loads(TrialDirectory(Path(trial["directory"])).spec_file.read_text())
    assert spec["seeded"] is True
    assert TrialDirectory(Path(trial["directory"])).read_result() is not None
    other = Database(f"sqlite:///{tmp_path / 'other.db'}")
    other.migrate()
    assert importing.import_one(other, Path(trial["directory"])).trial is not None
    with other.read() as session:
        there = session.scalars(select(Run)).one()
        assert there.seeded, "made up is made up in another database too"
        assert (there.id, there.suite) == (run["id"], "nightly"), "and of the same run"
    other.close()


def test_what_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with directories and no rows, and once with rows whose events were read in part."""
    database = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    database.migrate()

    def interrupted(place: object, name: str, calls: int) -> None:
        count = itertools.count(1)
        real = getattr(place, name)

        def call(*arguments: Any) -> Any:
            if next(count) == calls:
                raise KeyboardInterrupt
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(place, name, call)
            with pytest.raises(KeyboardInterrupt):
                seed(tmp_path, database, last=LAST, count=1)

    interrupted(history, "add", 1)
    with database.read() as session:
        assert session.scalars(select(Run)).first() is None and any((tmp_path / "trials").iterdir())
    interrupted(TrialReader, "read", 5)
    seeded = seed(tmp_path, database, last=LAST, count=1)
    assert (seeded.nights, seeded.trials) == (1, 24)
    with database.read() as session:
        rows = Counter(session.scalars(select(EventRow.trial_id)))
        assert len(session.scalars(select(Run)).all()) == 1
    lines = {
        place.name: sum(len(file.read_text().splitlines()) for file in place.glob("run/events/*.jsonl"))
        for place in (tmp_path / "trials").iterdir()
    }
    assert rows == lines
    with pytest.raises(SeedingError, match="of other nights"):
        seed(tmp_path, database, last=LAST + timedelta(days=1), count=1)
    database.close()


def test_made_up_data_never_go_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    database = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    database.migrate()
    scenario = catalog.scenario_named("demo")
    with database.write() as session:
        store.add_run(session, [scenario], by="ada")
    database.close()
    assert seed_directory(tmp_path, as_json=False, now=now) == 2
    assert "already holds runs" in capsys.readouterr().err
