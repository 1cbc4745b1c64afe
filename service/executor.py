"""Runs trials as processes of their own, which outlive this one, and follows them into the database.

A trial is started once: the row says that it shall be, the lock in its directory whether it was, and the row again that
it is known. Killed between any two of these, the service finds out at its next start which of them holds, and goes on
from there.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from chaos.errors import ChaosError
from chaos.git import GitError
from chaos.record import Result, TrialDirectory
from chaos.scenario import Scenario
from service import courier, endings, halts, history, lifeline, queue, store
from service.checkouts import Checkouts
from service.database import Database
from service.files import last_lines, trouble_with
from service.hub import Hub
from service.ingest import TrialReader, replace_recoveries
from service.loops import Loop
from service.runfile import RunFile
from service.settings import Settings
from service.states import RunState, state_of_ended_trial
from service.tables import Run, Trial

LOG_NAME = "trial.log"

log = logging.getLogger("phoenix.service")


class Executor:
    """`tick()` does everything that is due; a thread calls it over and over between `start` and `stop`."""

    def __init__(self, settings: Settings, database: Database, hub: Hub, service: str) -> None:
        """`service` is the name of this service among those that share the database."""
        self._settings = settings
        self._database = database
        self._hub = hub
        self.service = service
        self.trouble = ""
        self._beat_at = float("-inf")
        self._readers: dict[str, TrialReader] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._told_to_end: set[tuple[str, signal.Signals]] = set()
        self._cancels_delivered: set[str] = set()
        self._loop = Loop("executor", settings.poll_s, self.tick)
        with database.write() as session:
            queue.register(session, service, settings)
            left = queue.given_up_by_others(session, service)
        for trial in left:
            # Its run is over for everybody: what still trains there trains for nobody.
            lifeline.send(_directory(trial).path, signal.SIGTERM)

    def start(self) -> None:
        self._loop.start()

    @property
    def following(self) -> bool:
        return self._loop.running

    def stop(self) -> None:
        """Stop following. Trials go on; the next service on this data directory finds them again."""
        if self._loop.stop():
            try:
                with self._database.write() as session:
                    queue.depart(session, self.service)
            except SQLAlchemyError:
                log.exception("the end of this service could not be noted; its lease will end by itself")
        for child in self._children.values():
            child.poll()
            # The child is meant to outlive this process: tell Popen that nobody waits for it any more.
            child.returncode = child.returncode if child.returncode is not None else 0

    def tick(self) -> None:
        """Follow what runs, then start what waits. Cheap while nothing happens: it shares the cores with training."""
        if time.monotonic() - self._beat_at >= self._settings.lease_s / 20:
            self._beat()
        with self._database.read() as session:
            active = store.running_trials(session, self.service)
            asked = courier.waiting(session) if active else set()
            expired = bool(halts.expired(session))
        if expired:
            with self._database.write() as session:
                halts.release_expired(session)
        for trial in active:
            self._follow(trial, asked=trial.run_id in asked)
        with self._database.read() as session:
            if queue.next_trial(session, self.service) is None:
                return
            free = self._settings.max_active - len(store.running_trials(session, self.service))
        if free > 0:
            self._start_next()

    def _beat(self) -> None:
        """Say that this service lives, and give up what others have left."""
        self._look_for_trouble()
        with self._database.write() as session:
            queue.beat(session, self.service, self.trouble)
            lost = queue.lost(session, self.service, self._settings.lease_s)
            for trial in lost:
                queue.give_up(session, trial)
            queue.free_orphans(session, self.service, self._settings.lease_s)
        self._beat_at = time.monotonic()
        for trial in lost:
            self._hub.notify(trial.run_id)

    def _look_for_trouble(self) -> None:
        before, self.trouble = self.trouble, trouble_with(self._settings.directory)
        if self.trouble and self.trouble != before:
            log.error("no trial is started: %s", self.trouble)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        """Nothing is started that could not be recorded: runs wait until there is room again."""
        self._look_for_trouble()
        if self.trouble:
            return
        with self._database.write() as session:
            if (found := queue.next_trial(session, self.service)) is None:
                return
            run, trial = found
            store.begin_trial(session, run, trial, self._settings.trials, self.service)
        self._spawn(trial)

    def _spawn(self, trial: Trial) -> None:
        """Make the directory and start the process; a trial that cannot start ends with the reason."""
        try:
            code = self._code(trial)
            directory = self._prepare(trial, code)
            with lifeline.locked(directory.path) as descriptor, (directory.path / LOG_NAME).open("ab") as output:
                self._children[trial.id] = subprocess.Popen(
                    [*self._settings.trial_command, str(directory.path)],
                    cwd=code,
                    env=None if code is None else _importing(code),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(descriptor,),
                    start_new_session=True,
                )
        except BlockingIOError:
            pass  # It was started before this process was killed, and lives.
        except (OSError, ChaosError) as error:
            self._end(trial, None, f"the trial could not be started: {error}")
            return
        self._mark_spawned(trial)
        self._hub.notify(trial.run_id)

    def _mark_spawned(self, trial: Trial) -> None:
        with self._database.write() as session:
            session.execute(update(Trial).where(Trial.id == trial.id).values(spawned=True))

    def _code(self, trial: Trial) -> Path | None:
        """Where the code lies that the run asked for; None: that of this service. Raises GitError.

        All trials of a run have the commit that the revision meant when the first one began.
        """
        with self._database.read() as session:
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            used = [other.commit or "" for other in store.running_trials(session, self.service)]
        if run.revision is None:
            return None
        if self._settings.repository is None:
            raise GitError("this service knows no repository any more; start it with --repository DIRECTORY")
        checkouts = Checkouts(self._settings.repository, self._settings.directory / "checkouts")
        return checkouts.at(run.commit or checkouts.commit(run.revision), in_use=used)

    def _prepare(self, trial: Trial, code: Path | None) -> TrialDirectory:
        directory = _directory(trial)
        if not directory.spec_file.exists():
            scenario = Scenario.from_json(trial.document)
            directory = TrialDirectory.create(directory.path, scenario, trial=trial.id, code=code)
        provenance = directory.read_spec().provenance
        values = {"commit": provenance.commit, "dirty": provenance.dirty}
        with self._database.write() as session:
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            RunFile.of(run, trial).write(directory.path)
            session.execute(update(Run).where(Run.id == trial.run_id).values(**values))
            session.execute(update(Trial).where(Trial.id == trial.id).values(**values))
        return directory

    # --- following ---------------------------------------------------------------------------------------------------

    def _follow(self, trial: Trial, *, asked: bool) -> None:
        path = _directory(trial).path
        child = self._children.get(trial.id)
        # Asked before reading: what a process wrote before it was seen dead is read after that.
        lives = (child is not None and child.poll() is None) or lifeline.lives(path)
        if not lives and not trial.spawned and not (path / "result.json").exists():
            self._spawn(trial)
            return
        if asked:
            self._deliver(trial)
        self._reader(trial).read()
        if not lives:
            self._conclude(trial)

    def _reader(self, trial: Trial) -> TrialReader:
        if trial.id not in self._readers:
            path = _directory(trial).path
            self._readers[trial.id] = TrialReader(self._database, self._hub, trial.run_id, trial.id, path)
        return self._readers[trial.id]

    def deliver(self, run: str | None = None) -> None:
        """Hand what was asked of a run (None: of any) to its trial now, rather than at the next tick."""
        with self._database.read() as session:
            asked = courier.waiting(session)
            trials = [
                trial
                for trial in store.running_trials(session, self.service)
                if trial.spawned and trial.run_id in asked and run in (None, trial.run_id)
            ]
        for trial in trials:
            self._deliver(trial)

    def _deliver(self, trial: Trial) -> None:
        directory = _directory(trial)
        with self._database.write() as session:  # Serialises two deliverers: a request and the ticking thread.
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            courier.hand_over(session, session.get_one(Trial, trial.id), directory)
        if run.cancelled_at is not None:
            self._cancel(trial, directory, run.cancelled_at, run.cancel_reason or "")

    def _cancel(self, trial: Trial, directory: TrialDirectory, since: datetime, reason: str) -> None:
        """Ask first; a trial that does not end by itself in time is told to, and in the end made to."""
        if trial.id not in self._cancels_delivered:
            directory.request_cancel(reason)
            self._cancels_delivered.add(trial.id)
        grace = timedelta(seconds=self._settings.cancel_grace_s)
        for number, due in ((signal.SIGTERM, since + grace), (signal.SIGKILL, since + 2 * grace)):
            if store.now() >= due and (trial.id, number) not in self._told_to_end:
                self._told_to_end.add((trial.id, number))
                lifeline.send(directory.path, number)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, trial: Trial) -> None:
        directory = _directory(trial)
        try:
            result = directory.read_result()
        except ChaosError as error:
            self._end(trial, None, str(error))
            return
        self._end(trial, result, None if result else self._last_words(directory))

    def _last_words(self, directory: TrialDirectory) -> str:
        """Why a trial without a result may have ended: the end of what its process printed."""
        said = last_lines(directory.path / LOG_NAME)
        reason = "the trial's process ended without a result (it was killed, or the machine went down)"
        return f"{reason}; its last line: {said[-1].strip()}" if said else reason

    def _end(self, trial: Trial, result: Result | None, error: str | None) -> None:
        """One transaction: nobody sees a finished trial without its verdict and recoveries."""
        error = result.error if result else error
        with self._database.write() as session:
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            row = session.get_one(Trial, trial.id)
            if row.state != RunState.RUNNING:
                return  # Others gave it up while this service was away: what ended stays ended.
            state = state_of_ended_trial(
                has_result=result is not None, error=error, cancelled=run.cancelled_at is not None
            )
            endings.end_trial(session, row, state, result.verdict if result else None, error)
            if result is not None:
                row.checks = {name: check.to_json() for name, check in result.checks.items()}
                replace_recoveries(session, trial.id, [recovery.to_json() for recovery in result.recoveries])
                history.add_directory(session, _directory(trial), result)
            endings.end_run_if_over(session, run)
        self._hub.notify(trial.run_id)
        self._readers.pop(trial.id, None)
        self._children.pop(trial.id, None)


def _importing(code: Path) -> dict[str, str]:
    """The environment of a process that imports from `code` first."""
    paths = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _directory(trial: Trial) -> TrialDirectory:
    assert trial.directory is not None, f"{trial.id} has not begun"
    return TrialDirectory(Path(trial.directory))
