"""Puts the story on disk and into the database, as real trials would have left it.

Trial directories first, rows after; the newest nights with all their events, the older ones as retention leaves them:
specification, result and recoveries, without events.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from chaos.compare.samples import Code
from chaos.provenance import Provenance
from chaos.record import Spec, TrialDirectory
from chaos.scenario import Scenario
from chaos.verdict import worst
from service import baselines, catalog, history, store
from service.callers import LOCAL
from service.database import Database
from service.history import Finished
from service.history_tables import BaselineRow
from service.hub import Hub
from service.ingest import TrialReader, replace_recoveries
from service.runfile import RunFile
from service.seeding.script import SeededResult, play
from service.seeding.story import NIGHTS, SCENARIOS, Night, SeededTrial, nights
from service.states import FaultState, RunState
from service.tables import FaultRow, Run, Trial

KEPT_NIGHTS: Final = 3
SEED: Final = 20261130
REASON: Final = "made up by phoenix demo --seed-data"


class SeedingError(Exception):
    """The message says why this database is not filled, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """How much was written."""

    nights: int
    trials: int


def last_night(now: datetime) -> datetime:
    """The newest two o'clock (UTC) by which a night can be over."""
    begun = now.astimezone(UTC).replace(hour=2, minute=0, second=0, microsecond=0)
    return begun if now - begun > timedelta(hours=1) else begun - timedelta(days=1)


def seed(
    directory: Path,
    database: Database,
    *,
    last: datetime,
    count: int = NIGHTS,
    number: int = SEED,
    told: Callable[[str], None] = lambda line: None,
) -> Seeded:
    """Fill an empty data directory, or go on where this was interrupted.

    Raises SeedingError for one that holds other runs: made-up ones stay by themselves.
    """
    scenarios = {name: catalog.scenario_named(name) for name in SCENARIOS}
    told_nights = list(nights(scenarios, seed=number, last=last, count=count))
    there = _written(directory, database, {_name(night) for night in told_nights})
    written = 0
    for night in told_nights:
        kept = night.started > last - timedelta(days=KEPT_NIGHTS)
        written += _write_night(directory, database, night, kept=kept, there=_name(night) in there)
        told(f"{night.started:%Y-%m-%d}  {night.suite}  commit {night.commit[:9]}  {len(night.trials)} trials")
    _choose_baselines(database, told_nights)
    return Seeded(nights=len({night.started for night in told_nights}), trials=written)


def _written(directory: Path, database: Database, told: Collection[str]) -> set[str]:
    """The runs that are there already; each lies in the database whole, or not at all. Raises SeedingError."""
    with database.read() as session:
        others = select(Run.seeded).where(Run.id.not_in(told)).order_by(Run.seeded).limit(1)
        seeded = session.scalars(others).first()
        if seeded is not None:
            what = (
                "made-up runs of other nights than those until now"
                if seeded
                else "runs, and made-up ones never go beside real ones"
            )
            raise SeedingError(f"{directory} already holds {what}; choose another directory with --dir")
        return set(session.scalars(select(Run.id)))


def _choose_baselines(database: Database, told: Sequence[Night]) -> None:
    """Of each scenario that has none the first night on the machine that is used now."""
    first = next(night for night in told if night.machine == told[-1].machine)
    with database.write() as session:
        for scenario in SCENARIOS:
            if session.get(BaselineRow, scenario) is not None:
                continue
            row = baselines.choose(
                session, LOCAL, scenario, Code(commit=first.commit), "the first night here (made up)"
            )
            row.at = first.started + timedelta(hours=7)


def _name(night: Night) -> str:
    return f"seed-{night.started:%m%d}-{night.suite}-{night.commit[:6]}"


def _write_night(directory: Path, database: Database, night: Night, *, kept: bool, there: bool) -> int:
    """`there`: its rows are, but its events, if they are `kept`, may not all have been read."""
    if there and not kept:
        return len(night.trials)
    run = _name(night)
    plays = [(trial, play(night, trial)) for trial in night.trials]
    places = [directory / "trials" / f"{run}-{number}" for number in range(1, len(plays) + 1)]
    specs = [_spec(place, night, trial) for place, (trial, _) in zip(places, plays, strict=True)]
    if not there:
        for number, (place, spec, (_, played)) in enumerate(zip(places, specs, plays, strict=True), start=1):
            _write_directory(place, spec, played, kept=kept)
            _run_file(run, number, night).write(place)
        with database.write() as session:
            _add_rows(session, run, night, plays, places, kept=kept)
            over = zip(places, specs, plays, strict=True)
            history.add(session, [Finished.of(spec, played.result, place) for place, spec, (_, played) in over])
    if kept:
        for place in places:
            TrialReader(database, Hub(), run, place.name, place).read()
        with database.write() as session:  # as the end of a trial does: with the verdicts, which events do not hold
            for place, (_, played) in zip(places, plays, strict=True):
                replace_recoveries(session, place.name, [record.to_json() for record in played.result.recoveries])
    return len(plays)


# --- the directories -------------------------------------------------------------------------------------------------


def _spec(place: Path, night: Night, trial: SeededTrial) -> Spec:
    made_of = Provenance(
        commit=night.commit,
        dirty=False,
        versions={"python": "3.11.9", "torch": "2.13.0+cpu"},
        machine=night.machine,
        boot=night.boot,
    )
    return Spec(
        trial=place.name, scenario=trial.scenario, provenance=made_of, created_at=_iso(trial.started), seeded=True
    )


def _write_directory(place: Path, spec: Spec, played: SeededResult, *, kept: bool) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of a seeding that was interrupted
    directory = TrialDirectory(place)
    events = directory.run.events if kept else directory.path
    events.mkdir(parents=True)
    # Not atomically, as a trial would: there is nobody yet who could read half of it, and thousands of flushes.
    directory.spec_file.write_text(json.dumps(spec.to_json(), indent=1))
    directory.result_file.write_text(json.dumps(played.result.to_json(), indent=1))
    if kept:
        for process, written in played.events.items():
            (events / f"{process}.jsonl").write_text("".join(event.to_json() + "\n" for event in written))


def _run_file(run: str, number: int, night: Night) -> RunFile:
    return RunFile(
        run=run,
        number=number,
        suite=night.suite,
        schedule=None,
        reason=REASON,
        requested_by=None,
        created_at=night.trials[0].started,
    )


# --- the rows --------------------------------------------------------------------------------------------------------


def _add_rows(
    session: Session,
    name: str,
    night: Night,
    plays: Sequence[tuple[SeededTrial, SeededResult]],
    places: Sequence[Path],
    *,
    kept: bool,
) -> None:
    ends = [trial.started + timedelta(seconds=played.seconds) for trial, played in plays]
    last_trial, last = plays[-1]
    run = Run(
        id=name,
        suite=night.suite,
        seeded=True,
        archived_at=None if kept else max(ends),
        reason=REASON,
        state=RunState.FINISHED,
        verdict=worst(played.result.verdict for _, played in plays),
        part="done",
        step=last.result.steps_committed - 1,
        commit=night.commit,
        dirty=False,
        created_at=plays[0][0].started,
        started_at=plays[0][0].started,
        finished_at=max(ends),
        workload=last_trial.scenario.workload,
        nodes=last_trial.scenario.cluster.nodes,
        ranks_per_node=last_trial.scenario.cluster.ranks_per_node,
        spares=last_trial.scenario.cluster.spares,
        **_of_scenario(last_trial.scenario),
    )
    session.add(run)
    session.flush()
    for number, (place, ended, (trial, played)) in enumerate(zip(places, ends, plays, strict=True), start=1):
        row = Trial(
            id=place.name,
            run_id=name,
            number=number,
            position=run.seq * store.POSITIONS + number,
            commit=night.commit,
            dirty=False,
            directory=str(place),
            state=RunState.FINISHED,
            spawned=True,
            verdict=played.result.verdict,
            checks={check: found.to_json() for check, found in played.result.checks.items()},
            started_at=trial.started,
            finished_at=ended,
            **_of_scenario(trial.scenario),
        )
        session.add(row)
        session.flush()
        session.add_all(_faults(row, trial, played))
        replace_recoveries(session, row.id, [recovery.to_json() for recovery in played.result.recoveries])


def _of_scenario(scenario: Scenario) -> dict[str, Any]:
    """The columns that runs and trials share."""
    return {
        "scenario": scenario.name,
        "document": scenario.to_json(),
        "runtime": scenario.runtime,
        "seed": scenario.seed,
        "steps": scenario.steps,
    }


def _faults(row: Trial, trial: SeededTrial, played: SeededResult) -> Iterator[FaultRow]:
    """With the receipt that the events hold: of an archived night nobody could read it any more."""
    receipts = ("fault_injected", "fault_missed")
    written = [event for event in played.events["injector"] if event.kind in receipts]
    for seq, fault in enumerate(trial.scenario.faults):
        told = next(event for event in written if event.data["fault"] == fault.id)
        fired = told.kind == "fault_injected"
        yield FaultRow(
            trial_id=row.id,
            run_id=row.run_id,
            id=fault.id,
            seq=seq,
            kind=fault.kind,
            target=fault.target.to_json(),
            trigger=fault.trigger.to_json(),
            params=dict(fault.params),
            live=False,
            delivered=True,
            state=FaultState.INJECTED if fired else FaultState.MISSED,
            detail=None if fired else told.data.get("reason"),
            requested_at=trial.started,
            injected_at=told.at if fired else None,
            worker=told.worker,
            rank=told.rank,
            pid=told.data.get("pid"),
            fidelity=told.data.get("fidelity"),
        )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
