"""The options of `phoenix compare` and `phoenix bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.common import DatabaseUrl, Directory, opened
from service.settings import data_directory

Repo = Annotated[Path, typer.Option("--repo", help="The git checkout that the revisions are of.")]
Scenarios = Annotated[list[str] | None, typer.Option("--scenario", help="Scenario file or a shipped one (repeatable).")]
Effect = Annotated[
    float, typer.Option(min=0.01, max=10, help="Slow-down to find: 0.2 is 20 %; decides how many trials.")
]
Most = Annotated[int, typer.Option("--trials", min=6, max=500, help="Most trials a side in the screen.")]
Confirming = Annotated[int, typer.Option(min=6, max=500, help="Fresh trials a side for what the screen flagged.")]
Twin = Annotated[
    bool, typer.Option("--twin", help="Also compare each trial with its undisturbed twin (twice the time).")
]


def compare(
    base: Annotated[
        str,
        typer.Argument(
            help="Revision (commit, branch, tag, COMMIT-DIFF, .), directory of trials, or `baseline`: what was chosen."
        ),
    ],
    head: Annotated[str, typer.Argument(help="The same; `.` is the working tree.")],
    ab: Annotated[
        bool, typer.Option("--ab", help="Measure both now, in turns, each in a worktree of its own.")
    ] = False,
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", help="With --ab a file or shipped one (repeatable), else a name."),
    ] = None,
    effect: Effect = 0.2,
    most: Most = 20,
    confirming: Confirming = 20,
    twin: Twin = False,
    trials_as_units: Annotated[
        bool, typer.Option("--trials-as-units", help="Count trials of different sessions singly (false alarms).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    markdown: Annotated[str | None, typer.Option(help="Write Markdown to this file (-: standard output).")] = None,
    junit: Annotated[str | None, typer.Option(help="Write JUnit XML to this file (-: standard output).")] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for a GitHub job.")] = False,
    fail_inconclusive: Annotated[
        bool, typer.Option("--fail-inconclusive", help="Exit code 3 also where it could not be told.")
    ] = False,
    repo: Repo = Path(),
    directory: Directory = None,
    database: DatabaseUrl = None,
) -> None:
    """Say whether HEAD recovers slower, or less often, than BASE.

    From stored trials, or with --ab from trials made now. Exit code: 0 no, 1 yes, 2 usage, 3 there is too little to
    say, 130 interrupted.
    """
    from chaos.compare.plan import Effort
    from service import comparing
    from service.indexer import KEPT_IN

    output = comparing.Output(
        as_json=as_json, github=github, markdown=markdown, junit=junit, fail_inconclusive=fail_inconclusive
    )
    home, names = data_directory(directory), scenario or []
    if ab:
        measuring = comparing.Measuring(
            scenarios=tuple(names),
            repo=repo,
            directory=home,
            effort=Effort(effect=effect, most=most, confirming=confirming),
            twin=twin,
        )
        raise typer.Exit(comparing.compare_now(base, head, measuring, output))
    if len(names) > 1:
        typer.echo("phoenix: without --ab name one scenario, or none for all", err=True)
        raise typer.Exit(comparing.USAGE)
    raise typer.Exit(
        comparing.compare_stored(
            base,
            head,
            scenario=next(iter(names), None),
            repo=repo,
            stored=lambda: opened(directory, database, make=any((home / name).is_dir() for name in KEPT_IN)),
            trials_as_units=trials_as_units,
            output=output,
        )
    )


def bisect(
    good: Annotated[str, typer.Argument(help="A revision that was fast enough.")],
    bad: Annotated[str, typer.Argument(help="A later one that is too slow.")],
    scenario: Scenarios = None,
    effect: Effect = 0.2,
    most: Most = 20,
    confirming: Confirming = 20,
    twin: Twin = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    repo: Repo = Path(),
    directory: Directory = None,
) -> None:
    """Find the commit after GOOD that made recovery slower.

    Exit code: 0 found, 2 usage, 3 BAD is not slower, or commits that cannot run hide the culprit, 130 interrupted.
    """
    from chaos.compare.plan import Effort
    from service import comparing

    measuring = comparing.Measuring(
        scenarios=tuple(scenario or []),
        repo=repo,
        directory=data_directory(directory),
        effort=Effort(effect=effect, most=most, confirming=confirming),
        twin=twin,
    )
    raise typer.Exit(comparing.bisect(good, bad, measuring, as_json=as_json))


def add_to(app: typer.Typer) -> None:
    for command in (compare, bisect):
        app.command()(command)
