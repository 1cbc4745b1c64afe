"""What can be compared: every finished trial that the database knows, of whichever machine."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from sqlalchemy.orm import Session

from chaos.compare.comparison import Comparison, compare
from chaos.compare.history import History, baseline
from chaos.compare.history import history as history_of
from chaos.compare.rows import BASELINE, Side
from chaos.compare.samples import Code, TrialSample
from chaos.git import GitError, Repository
from chaos.revisions import NoSamples, codes_named, missing_ancestors
from service import baselines, history
from service.branches import Branches
from service.database import Database
from service.remembered import Remembered

# Points of ancestors, of each scenario, among which a base looks for sessions since the last change of level.
MOST_ANCESTORS = 200
MOST_ANSWERS_BYTES = 64 << 20
# Lists of all codes, of one scenario or of all.
MOST_LISTS = 10


@dataclass(frozen=True, kw_only=True)
class Known:
    """The history in one database, and the checkout that knows its commits (None: nobody does)."""

    database: Database
    repository: Repository | None
    answers: Remembered[bytes] = field(default_factory=lambda: Remembered(most=MOST_ANSWERS_BYTES, weight=len))
    _codes: Remembered[list[Code]] = field(default_factory=lambda: Remembered(most=MOST_LISTS))
    _subjects: dict[str, str | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def history(
        self,
        scenario: str,
        fault: str,
        metric: str,
        *,
        fingerprint: str | None = None,
        branch: str | None = None,
        newest: int,
    ) -> History:
        """The newest points of it, none if there are none of this machine and branch. Raises UnknownBranch."""
        commits = None if branch is None else self.branches.line(branch)
        with self.database.read() as session:
            points, places = history.newest_points(
                session,
                scenario,
                newest,
                fault=fault,
                fingerprint=fingerprint,
                commits=commits,
                places=self.branches.places,
            )
            found = history.samples(session, points)
        return history_of(found, scenario, fault=fault, metric=metric, newest=newest, places=places)

    @cached_property
    def branches(self) -> Branches:
        return Branches(self.repository)

    def compare(
        self, base: str, head: str, *, scenario: str | None = None, trials_as_units: bool = False
    ) -> Comparison:
        """What REST, the page and `phoenix compare BASE HEAD` show. Raises NoSamples for a revision without trials."""
        left, right = self.base(base, scenario), self.side(head, scenario)
        return compare(left, right, trials_as_units=trials_as_units)

    def side(self, name: str, scenario: str | None = None) -> Side:
        """All trials of a revision. Raises NoSamples."""
        with self.database.read() as session:
            return self._side(session, name, scenario)

    def base(self, name: str, scenario: str | None = None) -> Side:
        """As `side`; with those of its ancestors where it has too few sessions of its own."""
        with self.database.read() as session:
            side = self._side(session, name, scenario)
            if name == BASELINE:
                return side  # it was chosen: nothing stands in for it
            ancestors = missing_ancestors(side, self.repository)
            if not ancestors:
                return side
            points = [
                point
                for each in sorted({sample.scenario for sample in side.samples})
                for point in history.newest_points(session, each, MOST_ANCESTORS, commits=ancestors)[0]
            ]
            older = history.samples(session, points)
        return replace(side, baseline=baseline(older, ancestors))

    def _side(self, session: Session, name: str, scenario: str | None) -> Side:
        if name == BASELINE:
            return _baseline_side(baselines.samples(session, scenario))
        key = (scenario, history.state(session, scenario))
        measured = self._codes.value(key, lambda: [code for code, _, _ in history.codes(session, scenario)])
        if scenario is not None and not measured:
            raise NoSamples(f"no trial of a scenario {scenario!r} is known")
        found = codes_named(name, measured, self.repository)
        return Side(name=name, samples=history.samples(session, history.points_of(session, found, scenario)))

    def subjects(self, commits: Collection[str]) -> dict[str, str]:
        """The first line of each commit's message, where it is known; asked for once each."""
        with self._lock:
            new = set(commits) - self._subjects.keys()
            if new and self.repository is not None:
                found = self.repository.subjects(new)
                self._subjects.update({commit: found.get(commit) for commit in new})
            return {commit: said for commit in commits if (said := self._subjects.get(commit)) is not None}


def _baseline_side(samples: tuple[TrialSample, ...]) -> Side:
    """Raises NoSamples."""
    if not samples:
        raise NoSamples("there is no baseline; choose one with: phoenix baseline choose SCENARIO COMMIT --reason WHY")
    codes = {sample.code for sample in samples}
    return Side(name=BASELINE if len(codes) > 1 else codes.pop().name, samples=samples)


def repository_of(place: Path | None = None) -> Repository | None:
    """Where to ask for names of commits (else the checkout that this code was imported from)."""
    own = Path(__file__).resolve().parents[1]
    if place is None and not (own / ".git").exists():  # installed: what repository is around it is chance
        return None
    try:
        return Repository.around(place or own)
    except GitError:
        return None
