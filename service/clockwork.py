"""What happens by the clock, beside the trials: schedules fire and become stale; what came of them is compared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import select

from service import endings, retention, schedules, store
from service.control_tables import Firing, Schedule
from service.database import Database
from service.settings import Settings
from service.states import RunState
from service.tables import Run

WATCH_EVERY_S = 30.0
TIDY_EVERY_S = 3600.0
PREVIOUS = "previous"

# Of two commits (base, head): the document of their comparison. May raise whatever it likes.
Compare = Callable[[str, str], dict[str, object]]

log = logging.getLogger("phoenix.service")


class Clockwork:
    """`tick()` does what is due; cheap while nothing is."""

    def __init__(self, settings: Settings, database: Database, compare: Compare | None = None) -> None:
        self._settings = settings
        self._database = database
        self._compare = compare
        self._watched_at = self._tidied_at = float("-inf")

    def tick(self) -> None:
        with self._database.read() as session:
            due = bool(schedules.due(session))
        if due:
            with self._database.write() as session:
                for firing in schedules.fire_due(session, self._settings):
                    log.info("schedule %s: %s %s", firing.schedule_id, firing.outcome, firing.run_id or firing.detail)
        if time.monotonic() - self._watched_at >= WATCH_EVERY_S:
            self._watched_at = time.monotonic()
            self.watch()
        self.compare()
        if time.monotonic() - self._tidied_at >= TIDY_EVERY_S:
            self._tidied_at = time.monotonic()
            retention.tidy(self._database)
            if self._settings.keep_days is not None:
                retention.archive(self._database, timedelta(days=self._settings.keep_days))

    def watch(self) -> None:
        with self._database.write() as session:
            for schedule in schedules.watch(session):
                log.warning("schedule %s is stale: no run of it has ended for a while", schedule.name)

    def compare(self) -> None:
        """Compare runs of schedules that have a base and have just ended, then tell of them.

        The comparison is made outside of any transaction, since it may take seconds; one that fails is told as such.
        """
        with self._database.read() as session:
            query = (
                select(Firing, Schedule, Run)
                .join(Schedule, Schedule.id == Firing.schedule_id)
                .join(Run, Run.id == Firing.run_id)
                .where(Schedule.base.is_not(None), Firing.compared_at.is_(None), Run.finished_at.is_not(None))
                .order_by(Firing.due_at)
            )
            waiting = [(row[0], row[1], row[2]) for row in session.execute(query)]
        for firing, schedule, run in waiting:
            comparison = self._comparison(schedule, run)
            with self._database.write() as session:
                row = session.get_one(Firing, (firing.schedule_id, firing.due_at))
                if row.compared_at is not None:
                    continue  # Another service was quicker.
                row.compared_at, row.comparison = store.now(), comparison
                here = session.get_one(Schedule, schedule.id)
                endings.tell_of_run(session, store.find_run(session, run.id) or run, here, comparison)

    def _comparison(self, schedule: Schedule, run: Run) -> dict[str, object]:
        base = self._previous(schedule, run) if schedule.base == PREVIOUS else schedule.base
        if base is None or run.commit is None:
            return {"error": "there is no earlier run of this schedule with another commit to compare with"}
        if self._compare is None:
            return {"error": "this service cannot compare", "base": base, "head": run.commit}
        try:
            return self._compare(base, run.commit)
        except Exception as error:  # whatever is wrong with it must not keep the message back
            log.exception("run %s could not be compared with %s", run.id, base)
            return {"error": f"could not be compared: {error}", "base": base, "head": run.commit}

    def _previous(self, schedule: Schedule, run: Run) -> str | None:
        """The commit that the run before was made with."""
        query = (
            select(Run.commit)
            .where(
                Run.schedule_id == schedule.id,
                Run.seq < run.seq,
                Run.state == RunState.FINISHED,
                Run.commit.is_not(None),
                Run.commit != run.commit,
            )
            .order_by(Run.seq.desc())
            .limit(1)
        )
        with self._database.read() as session:
            return session.scalars(query).one_or_none()
