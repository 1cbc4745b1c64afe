"""What can be compared: the trials below a data directory, those of the command line too."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.collect import Collector
from chaos.compare.comparison import Comparison, compare
from chaos.compare.samples import TrialSample
from chaos.git import GitError, Repository
from chaos.revisions import revision_side, with_baseline

# Of the service, `phoenix trial` and `--ab`; of `phoenix nightly`.
KEPT_IN = ("trials", "nightly")


@dataclass(frozen=True, kw_only=True)
class Known:
    """The samples of one data directory, and the checkout that knows their commits (None: nobody does)."""

    directory: Path
    repository: Repository | None
    _collector: Collector = field(default_factory=Collector)
    _subjects: dict[str, str | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def samples(self) -> tuple[TrialSample, ...]:
        """Of all finished trials, oldest first. Each directory is read once."""
        with self._lock:
            return self._collector.below(*(self.directory / name for name in KEPT_IN)).samples

    def compare(
        self, base: str, head: str, *, scenario: str | None = None, trials_as_units: bool = False
    ) -> Comparison:
        """What REST, the page and `phoenix compare BASE HEAD` show. Raises NoSamples for a revision without trials."""
        samples = [s for s in self.samples() if scenario is None or s.scenario == scenario]
        left = with_baseline(revision_side(base, samples, self.repository), samples, self.repository)
        return compare(left, revision_side(head, samples, self.repository), trials_as_units=trials_as_units)

    def subjects(self, samples: Sequence[TrialSample]) -> dict[str, str]:
        """The first line of each commit's message, where it is known; asked for once each."""
        commits = {sample.code.commit for sample in samples}
        new = commits - self._subjects.keys()
        if new and self.repository is not None:
            found = self.repository.subjects(new)
            self._subjects.update({commit: found.get(commit) for commit in new})
        return {commit: said for commit in commits if (said := self._subjects.get(commit)) is not None}


def known_in(directory: Path, repository: Path | None = None) -> Known:
    """`repository`: where to ask for names of commits (else the checkout that this code was imported from)."""
    own = Path(__file__).resolve().parents[1]
    if repository is None and not (own / ".git").exists():  # installed: what repository is around it is chance
        return Known(directory=directory, repository=None)
    try:
        found = Repository.around(repository or own)
    except GitError:
        found = None
    return Known(directory=directory, repository=found)
