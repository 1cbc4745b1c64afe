"""`phoenix export`, `phoenix import`, `phoenix prune`: on the database and the directories themselves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from service.commands.common import FAIL, AsJson, DatabaseUrl, Directory, fail, opened, show
from service.settings import MOST_DAYS


def export(
    target: Annotated[Path, typer.Argument(help="The file to write, such as runs.tar.gz; must not exist yet.")],
    run: Annotated[list[str] | None, typer.Option("--run", help="Only this run (repeatable; else: all).")] = None,
    directory: Directory = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put the trial directories of runs into one file, which `phoenix import` reads anywhere.

    All runs go with what people noted and decided: annotations, triage, baselines.
    """
    from service.archive import ArchiveError
    from service.archive import export as write

    with opened(directory, database) as (found, _):
        try:
            written, missing = write(found, run or [], target)
        except ArchiveError as error:
            fail(str(error))
    text = f"{len(written)} trials are in {target}"
    if missing:
        text += f"; not on this machine: {', '.join(missing)}"
    show({"file": str(target), "trials": written, "missing": missing}, as_json, lambda: text)


def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Trial directories, directories that hold such, or exported files.", exists=True),
    ],
    directory: Directory = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make rows of trial directories; what the database knows already is left alone, and so are baselines chosen here.

    Each trial is taken over whole or not at all, and nothing of a file that is damaged: after an end that came too
    early, run it again.

    A lost database is made again by: phoenix import DATA_DIRECTORY/trials

    Exit code: 0, or 1 where a directory could not be read (the others are imported).
    """
    from service.archive import ArchiveError, read_decisions
    from service.importing import Imported, import_all, import_decisions

    done: list[Imported] = []
    decided, trouble = 0, None
    with opened(directory, database, make=True) as (found, settings):
        try:
            told = read_decisions(paths)  # before anything is imported: where these are none, nothing is
            done.extend(import_all(found, paths, settings.trials))
            decided = import_decisions(found, told)
        except ArchiveError as error:
            trouble = str(error)
    new = [str(item.trial) for item in done if item.trial is not None]
    left = [{"directory": str(item.directory), "reason": item.reason} for item in done if item.trial is None]
    and_decided = f", and {decided} notes and decisions" if decided else ""
    lines = [
        f"{len(new)} trials imported{and_decided}",
        *(f"  not {item['directory']}: {item['reason']}" for item in left),
    ]
    if done or not trouble:
        show({"imported": new, "left": left, "decisions": decided}, as_json, lambda: "\n".join(lines))
    if trouble:
        fail(trouble)
    if any(item.broken for item in done):
        raise typer.Exit(FAIL)


def prune(
    keep_days: Annotated[
        float, typer.Option(min=0.0, max=MOST_DAYS, help="Runs that ended longer ago than this lose their events.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which runs these would be.")] = False,
    directory: Directory = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove events, step samples and logs of old runs; verdicts, recoveries and results stay."""
    from service import retention

    keep = timedelta(days=keep_days)
    with opened(directory, database) as (found, _):
        if dry_run:
            with found.read() as session:
                runs = [run.id for run in retention.due(session, keep, limit=1_000_000)]
        else:
            runs = retention.archive(found, keep)
            retention.tidy(found)
    verb = "would lose" if dry_run else "lost"
    show({"runs": runs, "dry_run": dry_run}, as_json, lambda: f"{len(runs)} runs {verb} their events")
