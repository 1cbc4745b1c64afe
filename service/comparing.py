"""`phoenix compare` and `phoenix bisect`.

Exit codes of `compare`: 0 nothing is slower, 1 a regression (of time, confirmed or significant for all that was
compared, or of reliability), 2 usage, 3 too little or nothing comparable (with --fail-inconclusive also: it could not
be told), 130 interrupted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.arms import WORKING_TREE, Workshop
from chaos.compare import present
from chaos.compare.comparison import Comparison, compare
from chaos.compare.plan import Bisection, Effort
from chaos.compare.rows import BASELINE, Side
from chaos.conductor import SelfPipe
from chaos.errors import ChaosError
from chaos.git import GitError, Repository
from chaos.interleaved import Bench, Interrupted, is_slower, measure, new_directory
from chaos.provenance import tree_diff
from chaos.record import check_report, write_text
from chaos.revisions import NoSamples, directory_side
from chaos.scenario import Scenario, load_scenario
from chaos.trial import interruptible
from service.database import Database
from service.indexer import Indexer
from service.known import Known, repository_of
from service.settings import Settings

OK, FAILED, USAGE, UNKNOWN, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True, kw_only=True)
class Output:
    """In which forms the result is told; paths may be `-` for standard output."""

    as_json: bool = False
    github: bool = False
    markdown: str | None = None
    junit: str | None = None
    fail_inconclusive: bool = False

    def check(self) -> None:
        """Before anything is measured. Raises ChaosError."""
        if [self.as_json, self.github, self.markdown == "-", self.junit == "-"].count(True) > 1:
            raise ChaosError("standard output takes one document: give `-`, --json or --github once")


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How `--ab` and `bisect` measure."""

    scenarios: tuple[str, ...]
    repo: Path
    directory: Path
    effort: Effort = field(default_factory=Effort)
    twin: bool = False


def compare_stored(
    base: str,
    head: str,
    *,
    scenario: str | None,
    repo: Path,
    stored: Callable[[], AbstractContextManager[tuple[Database, Settings]]],
    trials_as_units: bool,
    output: Output,
) -> int:
    """Directories of trials, or revisions whose trials are in the database, which is opened only for these."""

    def work() -> int:
        output.check()
        if repo != Path():
            Repository.around(repo)  # one that was named is one; around the current directory there need be none
        if _is_directory(base) and _is_directory(head):
            sides = [_of_scenario(directory_side(Path(name)), scenario) for name in (base, head)]
            return tell(compare(*sides, trials_as_units=trials_as_units), output)
        repository = repository_of(repo)
        absent = [name for name in (base, head) if not _is_directory(name) and not _is_revision(name, repository)]
        if paths := [name for name in absent if os.sep in name]:
            raise ChaosError(f"there is no directory {' and no directory '.join(paths)}")
        with stored() as (database, settings):
            Indexer(database, settings.directory).tick()
            known = Known(database=database, repository=repository)
            try:
                sides = [_side(base, known.base, known, scenario), _side(head, known.side, known, scenario)]
            except NoSamples as error:  # a name of no revision was most likely to be a directory
                raise ChaosError(f"{error}; nor is there a directory {absent[0]}" if absent else str(error)) from None
        return tell(compare(*sides, trials_as_units=trials_as_units), output)

    return _guarded(work)


def compare_now(base: str, head: str, measuring: Measuring, output: Output) -> int:
    """Both codes in turns on this machine."""

    def work() -> int:
        output.check()
        scenarios = _scenarios(measuring.scenarios)
        repository = Repository.around(measuring.repo)
        for path in filter(None, (output.markdown, output.junit)):
            if path != "-":
                check_report(Path(path))
        with interruptible() as stop, Workshop(repository, measuring.directory, _progress) as workshop:
            bench = _bench(measuring, stop)
            first, second = workshop.arms(base, head)
            if first.code == second.code:
                _progress(f"{base} and {head} are the same code ({first.code.short}): an A/A comparison")
            found = measure(bench, first, second, scenarios, measuring.effort)
        return tell(replace(found, options=_options(scenarios, measuring)), output)

    return _guarded(work)


def _options(scenarios: Sequence[Scenario], measuring: Measuring) -> dict[str, str]:
    """What has to be said to measure each of them again."""
    repo = "" if measuring.repo == Path() else f" --repo {shlex.quote(str(measuring.repo))}"
    given = zip(scenarios, measuring.scenarios, strict=True)
    return {scenario.name: f"--scenario {shlex.quote(name)}{repo}" for scenario, name in given}


def bisect(good: str, bad: str, measuring: Measuring, *, as_json: bool) -> int:
    """The exit code: 0 the culprit was found, 2 usage, 3 `bad` is not slower, or several commits may be the culprit."""

    def work() -> int:
        scenarios = _scenarios(measuring.scenarios)
        repository = Repository.around(measuring.repo)
        search = Bisection(commits=tuple(repository.between(good, bad)))
        with interruptible() as stop, Workshop(repository, measuring.directory, _progress) as workshop:
            bench = _bench(measuring, stop)
            first, last = workshop.arms(good, bad)
            found = measure(bench, first, last, scenarios, measuring.effort)
            keys = [row.key for row in found.rows if row.confirmed]
            if not keys:
                print(present.text(found.to_json()), file=sys.stderr)
                print(f"phoenix: {bad} is not confirmed to be slower than {good}: nothing to bisect", file=sys.stderr)
                return UNKNOWN
            (scenario,) = [each for each in scenarios if each.name == keys[0][0]]
            keys = [key for key in keys if key[0] == scenario.name]
            while (commit := search.next()) is not None:
                _progress(f"{len(search.suspects)} commits left, about {search.steps_left} steps; trying {commit[:12]}")
                (_, other) = workshop.arms(good, commit)
                search = search.tell(commit, is_slower(bench, first, other, scenario, keys, measuring.effort))
        return _tell_culprit(search, repository, found, keys, as_json=as_json)

    return _guarded(work)


def tell(found: Comparison, output: Output) -> int:
    """Print the comparison in the forms that were asked for, and return the exit code. Raises ChaosError."""
    document = {**found.to_json(), "exit_code": found.exit_code(fail_inconclusive=output.fail_inconclusive)}
    files = {output.markdown: present.markdown, output.junit: present.junit}
    for path, form in files.items():
        if path == "-":
            print(form(document), end="")
        elif path is not None:
            write_text(Path(path), form(document))
    if output.as_json:
        print(json.dumps(document))
    elif "-" not in files:
        print(present.text(document))
    if output.github:
        print(present.github(document), end="")
    code = document["exit_code"]
    assert isinstance(code, int)
    return code


def _tell_culprit(
    search: Bisection, repository: Repository, found: Comparison, keys: Sequence[tuple[str, str, str]], *, as_json: bool
) -> int:
    suspects = search.suspects
    subjects = repository.subjects(suspects)
    slower = {" ".join(row.key): row.to_json() for row in found.rows if row.key in keys}
    if as_json:
        told = dict(search.told)
        print(json.dumps({"suspects": list(suspects), "subjects": subjects, "told": told, "rows": slower}))
    else:
        for name, row in slower.items():
            print(f"{name}: {present.ratio(row)}")
        print("the culprit is" if len(suspects) == 1 else f"one of these {len(suspects)} (the others could not be run)")
        for commit in suspects:
            print(f"  {commit} {subjects.get(commit, '')}")
    return OK if len(suspects) == 1 else UNKNOWN


def _guarded(work: Callable[[], int]) -> int:
    try:
        return work()
    except Interrupted as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return INTERRUPTED
    except ImportError as error:
        print(f"phoenix: comparing needs {error.name}: pip install {error.name}", file=sys.stderr)
        return USAGE
    except ChaosError as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return USAGE


def _bench(measuring: Measuring, stop: SelfPipe) -> Bench:
    directory = new_directory(measuring.directory / "trials")
    return Bench(
        directory=directory,
        session=directory.name,
        stop=stop,
        tell=_progress,
        twin=measuring.twin,
    )


def _scenarios(given: Sequence[str]) -> list[Scenario]:
    """Raises InvalidScenario, and ChaosError where there is none, or one without a planned fault."""
    if not given:
        raise ChaosError("name at least one scenario to measure: --scenario FILE, or the name of one that is shipped")
    scenarios = [_scenario(name) for name in given]
    for scenario, name in zip(scenarios, given, strict=True):
        if not scenario.planned:
            raise ChaosError(f"{name} plans no fault: there is no recovery to measure")
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) < len(names):
        raise ChaosError(f"two scenarios have the same name: {', '.join(sorted(names))}")
    return scenarios


def _scenario(name: str) -> Scenario:
    """Of a file, or one that is shipped, by its name: as a row of a comparison tells it."""
    if Path(name).suffix or Path(name).exists():
        return load_scenario(Path(name))
    from service import catalog  # brings the web framework along

    shipped = catalog.scenarios()
    if name not in shipped:
        raise ChaosError(f"{name!r} is neither a file nor a shipped scenario; there are: {', '.join(sorted(shipped))}")
    return shipped[name]


def _is_directory(name: str) -> bool:
    return name != WORKING_TREE and Path(name).is_dir()


def _is_revision(name: str, repository: Repository | None) -> bool:
    """Of a commit that only trials know too."""
    if name in (WORKING_TREE, BASELINE) or re.fullmatch(r"[0-9a-f]{4,40}(-.*)?", name):
        return True
    try:
        return repository is not None and bool(repository.commit(name))
    except GitError:
        return False


def _side(name: str, find: Callable[[str, str | None], Side], known: Known, scenario: str | None) -> Side:
    if _is_directory(name):
        return _of_scenario(directory_side(Path(name)), scenario)
    return find(_tree_name(name, known), scenario)


def _of_scenario(side: Side, scenario: str | None) -> Side:
    return side if scenario is None else replace(side, samples=tuple(side.of(scenario)))


def _tree_name(name: str, known: Known) -> str:
    """`.` is the working tree: its commit, and what it adds to that."""
    if name != WORKING_TREE:
        return name
    if known.repository is None:
        raise GitError("`.` is the working tree of a git checkout, and there is none here: go to one, or use --repo")
    commit, diff = known.repository.commit("HEAD"), tree_diff(known.repository.root)
    return f"{commit}-{diff}" if diff else commit


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
