"""Takes over what others have measured on this machine: trials of the command line, and those of earlier versions.

What the service itself ran is in the history with its end, and what is imported with its import; directories have all
of it, so that a database that was lost, or that knew no history yet, is filled again from them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sqlalchemy import select

from chaos.collect import Finder, Reader
from chaos.record import TrialDirectory
from service import history
from service.database import Database
from service.history import Finished
from service.tables import Trial

# Of the service, `phoenix trial` and `--ab`; of `phoenix nightly`.
KEPT_IN = ("trials", "nightly")
# Directories that are read for one transaction, for which other writers wait.
BATCH = 100

log = logging.getLogger("phoenix.service")


class Indexer:
    """`tick()` takes over all that is new; it costs a look at what is not over yet while nothing is."""

    def __init__(self, database: Database, directory: Path) -> None:
        self._database = database
        self._roots = [directory / name for name in KEPT_IN]
        self._finder = Finder()
        self._reader = Reader()
        self._looked_outside = False

    def tick(self) -> None:
        """Interrupted anywhere, the next call goes on from there."""
        news = self._news()
        while batch := list(islice(news, BATCH)):
            with self._database.read() as session:
                known = history.known_places(session, [directory.path for directory in batch])
            read = [(d.path, self._reader.read(d)) for d in batch if d.path not in known]
            finished = [
                Finished(spec=one[0], sample=one[1], directory=path) for path, one in read if not isinstance(one, str)
            ]
            for reason in (one for _, one in read if isinstance(one, str)):
                log.warning("this trial is in no history: %s", reason)
            if finished:
                with self._database.write() as session:
                    history.add(session, finished)
            for directory in batch:
                self._finder.done(directory)
        self._looked_outside = True

    def _news(self) -> Iterator[TrialDirectory]:
        yield from self._finder.below(*self._roots)
        if not self._looked_outside:
            yield from self._finder.below(*self._imported())

    def _imported(self) -> list[Path]:
        """Directories of imports, which may lie anywhere."""
        query = select(Trial.directory).where(Trial.service_id.is_(None), Trial.finished_at.is_not(None))
        with self._database.read() as session:
            return [Path(path) for path in session.scalars(query) if path is not None]
