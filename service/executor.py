"""Runs trials as processes of their own, which outlive this one, and follows them into the database.

A run's trial is started once: the row says that it shall be, the lock in its directory whether it
was, and the row again that it is known. Killed between any two of these, the service finds out at
its next start which of them holds, and goes on from there.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import select, update

from chaos.errors import ChaosError
from chaos.record import Result, TrialDirectory
from chaos.scenario import Scenario
from service import lifeline, store
from service.database import Database
from service.hub import Hub
from service.ingest import TrialReader, replace_recoveries
from service.settings import Settings
from service.states import FaultState, RunState, state_of_ended_trial
from service.tables import FaultRow, Run, Trial

LOG_NAME = "trial.log"

log = logging.getLogger("phoenix.service")


class Executor:
    """`tick()` does everything that is due; a thread calls it over and over between `start` and `stop`."""

    def __init__(self, settings: Settings, database: Database, hub: Hub) -> None:
        self._settings = settings
        self._database = database
        self._hub = hub
        self._readers: dict[str, TrialReader] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._told_to_end: set[tuple[str, signal.Signals]] = set()
        self._cancels_delivered: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="executor", daemon=True)
        self._thread.start()

    @property
    def following(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stop following. Trials go on; the next service on this database finds them again."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for child in self._children.values():
            child.poll()
            # The child is meant to outlive this process: tell Popen that nobody waits for it any more.
            child.returncode = child.returncode if child.returncode is not None else 0

    def _loop(self) -> None:
        while not self._stopping.wait(self._settings.poll_s):
            try:
                self.tick()
            except Exception:
                # A full disk or a locked database passes; the offsets make sure that nothing is lost by it.
                log.exception("following the trials failed; trying again in %.1f s", 1.0)
                self._stopping.wait(1.0)

    def tick(self) -> None:
        """Follow what runs, then start what waits. Cheap while nothing happens: it shares the cores with training."""
        with self._database.read() as session:
            active = store.active_trials(session)
            asked = store.runs_with_requests(session) if active else set()
        for trial in active:
            self._follow(trial, asked=trial.run_id in asked)
        with self._database.read() as session:
            if store.next_queued(session) is None:
                return
            free = self._settings.max_active - len(store.active_trials(session))
        if free > 0:
            self._start_next()

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        with self._database.write() as session:
            run = store.next_queued(session)
            if run is None:
                return
            trial = store.add_trial(session, run, self._settings.trials)
        self._spawn(trial)

    def _spawn(self, trial: Trial) -> None:
        """Make the directory and start the process; a trial that cannot start ends its run with the reason."""
        try:
            directory = self._prepare(trial)
            with lifeline.locked(directory.path) as descriptor, (directory.path / LOG_NAME).open("ab") as output:
                self._children[trial.id] = subprocess.Popen(
                    [*self._settings.trial_command, str(directory.path)],
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

    def _prepare(self, trial: Trial) -> TrialDirectory:
        path = Path(trial.directory)
        directory = TrialDirectory(path)
        if not directory.spec_file.exists():
            with self._database.read() as session:
                run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            directory = TrialDirectory.create(path, Scenario.from_json(run.document), trial=trial.id)
        provenance = directory.read_spec().provenance
        with self._database.write() as session:
            values = {"commit": provenance.commit, "dirty": provenance.dirty}
            session.execute(update(Run).where(Run.id == trial.run_id).values(**values))
        return directory

    # --- following ---------------------------------------------------------------------------------------------------

    def _follow(self, trial: Trial, *, asked: bool) -> None:
        path = Path(trial.directory)
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
            path = Path(trial.directory)
            self._readers[trial.id] = TrialReader(self._database, self._hub, trial.run_id, trial.id, path)
        return self._readers[trial.id]

    def deliver(self, run: str) -> None:
        """Hand what was asked of a run to its trial now, rather than at the next tick."""
        with self._database.read() as session:
            trial = store.newest_trial(session, run)
        if trial is not None and trial.state == RunState.RUNNING and trial.spawned:
            self._deliver(trial)

    def _deliver(self, trial: Trial) -> None:
        """Append requests to the trial's file, each once.

        The row is written before the line and marked after it; a request whose mark is missing may
        be in the file already, which is why the file is looked at first.
        """
        directory = TrialDirectory(Path(trial.directory))
        with self._database.write() as session:  # Serialises two deliverers: a request and the ticking thread.
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            written = _lines(directory.requests_file)
            for fault in store.undelivered(session, run.id):
                if not any(f'"fault":"{fault.id}"' in line for line in written):
                    directory.request_fault(store.to_request(fault))
                fault.delivered = True
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
        directory = TrialDirectory(Path(trial.directory))
        try:
            result = directory.read_result()
        except ChaosError as error:
            self._end(trial, None, str(error))
            return
        self._end(trial, result, None if result else self._last_words(directory))

    def _last_words(self, directory: TrialDirectory) -> str:
        """Why a trial without a result may have ended: the end of what its process printed."""
        said = _lines(directory.path / LOG_NAME)
        reason = "the trial's process ended without a result (it was killed, or the machine went down)"
        return f"{reason}; its last line: {said[-1].strip()}" if said else reason

    def _end(self, trial: Trial, result: Result | None, error: str | None) -> None:
        """One transaction: nobody sees a finished run without its verdict and recoveries."""
        error = result.error if result else error
        with self._database.write() as session:
            run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
            row = session.get_one(Trial, trial.id)
            state = state_of_ended_trial(
                has_result=result is not None, error=error, cancelled=run.cancelled_at is not None
            )
            verdict = result.verdict.value if result else "UNKNOWN"
            for ended in (run, row):
                ended.state, ended.verdict, ended.error, ended.finished_at = state, verdict, error, store.now()
            row.spawned = True
            if result is not None:
                row.checks = {name: check.to_json() for name, check in result.checks.items()}
                replace_recoveries(session, trial.id, [recovery.to_json() for recovery in result.recoveries])
            missed = (FaultRow.run_id == run.id, FaultRow.state == FaultState.REQUESTED)
            detail = "the run ended before this fault was due"
            session.execute(update(FaultRow).where(*missed).values(state=FaultState.MISSED, detail=detail))
        self._hub.notify(trial.run_id)
        self._readers.pop(trial.id, None)
        self._children.pop(trial.id, None)


def _lines(path: Path, newest: int = 65536) -> list[str]:
    """The last lines of a file; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - newest))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
