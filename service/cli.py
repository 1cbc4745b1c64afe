"""The command line `phoenix`.

Exit codes: 0 pass, 1 fail, 2 usage (also: a port that is taken, a file that is missing, an output that cannot be
written), 3 unknown (it could not be judged), 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from chaos.trial import EXIT_USAGE
from service import comparing_cli
from service.commands import access, archive, baselines, runs, safety, schedules
from service.commands.common import INTERRUPTED, AsJson, DatabaseUrl, Directory, database_url, directory_option, fail
from service.settings import DEFAULT_PORT, LOOPBACK, MOST_DAYS, Settings, SettingsError, data_directory, version

app = typer.Typer(
    name="phoenix",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"PHOENIX {version()}")
        raise typer.Exit


@app.callback()
def options(
    told: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """A training runtime that heals lost ranks in place, and a harness that breaks it on purpose."""


for command in (
    safety.inject,
    safety.revert,
    safety.halt,
    runs.submit,
    runs.runs,
    runs.cancel,
    archive.export,
    archive.prune,
):
    app.command()(command)
app.command("import")(archive.import_)
app.add_typer(access.app, name="tokens")
app.add_typer(baselines.app, name="baseline")
app.add_typer(schedules.app, name="schedule")


comparing_cli.add_to(app)


def main() -> NoReturn:
    """Entry point of the `phoenix` command."""
    open_closed_streams()
    if sys.argv[1:2] == ["run"]:
        # Handed on untouched: the runtime's command line has its own help and its own `--`.
        _run_runtime(sys.argv[2:])
    stdout = sys.stdout
    try:
        app()
        sys.stdout.flush()
    except SystemExit:
        if sys.stdout is not stdout:  # Typer has put another there since nobody reads any more, and says 1
            raise SystemExit(EXIT_USAGE) from None
        raise
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except OSError as error:
        # Standard output on a full disk, most likely; what else fails so has a message of its own, or names a file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains again when it flushes
        what = "cannot write the output" if error.filename is None else f"cannot use {error.filename}"
        print(f"phoenix: {what}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None  # 1 would say that a trial failed
    raise SystemExit(0)


def open_closed_streams() -> None:
    """Where a shell has closed one (`>&-`), Python has none, and its number goes to the next file that is opened."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so in this order its own
            os.set_inheritable(descriptor, True)  # processes that are started find it open too
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(context: typer.Context) -> None:
    """Run a training script under the runtime, with torchrun's flags: phoenix run --nnodes 4 --spares 1 train.py"""
    _run_runtime(context.args)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running afterwards.")] = False,
    as_json: AsJson = False,
    data: Annotated[Path | None, typer.Option("--data", help="A text file to train on.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the service (0: any free one).")] = DEFAULT_PORT,
    directory: Directory = None,
    seed_data: Annotated[
        bool, typer.Option("--seed-data", help="Train nothing: fill an empty data directory with made-up history.")
    ] = False,
) -> None:
    """Train on real text, kill one rank and freeze another over REST, watch both heal, judge the result."""
    if seed_data:
        from service.seeding.command import seed_directory

        raise typer.Exit(seed_directory(data_directory(directory), as_json=as_json))
    from service.demo import Options, run_demo

    options = Options(keep=keep, as_json=as_json, data=data, port=port, directory=data_directory(directory))
    raise typer.Exit(run_demo(options))


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others reach needs a token: phoenix tokens create.")
    ] = LOOPBACK,
    port: Annotated[int, typer.Option("--port", help="Port to listen on (0: any free one).")] = DEFAULT_PORT,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A name by which a proxy on this machine hands requests on; needs tokens."),
    ] = None,
    directory: Directory = None,
    allow_file: Annotated[
        list[Path] | None, typer.Option("--allow-file", help="A training data file that requests may name.")
    ] = None,
    database: DatabaseUrl = None,
    repository: Annotated[
        Path | None, typer.Option(help="A git checkout; runs and schedules may name a revision of it.")
    ] = None,
    max_active: Annotated[int, typer.Option(min=1, help="Trials that may run at the same time on this machine.")] = 1,
    keep_days: Annotated[
        float | None,
        typer.Option(min=0.0, max=MOST_DAYS, help="Runs that ended longer ago lose their events (else: never)."),
    ] = None,
    attached: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve the REST API and the pages. Runs go on when the service stops, and are found again by the next."""
    from service.server import serve as serve_until_stopped

    home = data_directory(directory)
    try:
        settings = Settings(
            directory=home,
            host=host,
            port=port,
            also_named=frozenset(name or []),
            database_url=database_url(database),
            repository=None if repository is None else repository.absolute(),
            max_active=max_active,
            keep_days=keep_days,
            allowed_files=frozenset(str(path.absolute()) for path in allow_file or []),
            extra_runtimes=os.environ.get("PHOENIX_RUNTIMES", ""),
        )

        def ready(url: str) -> None:
            typer.echo(f"PHOENIX serves {url}  (data in {home}; stop with Ctrl-C)", err=True)

        serve_until_stopped(settings, attached=attached, ready=ready)
    except SettingsError as error:
        fail(str(error))


@app.command()
def trial(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML or JSON).")],
    directory: Annotated[Path | None, directory_option("Trial directory; must not hold a trial yet.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one trial of a scenario here and now, without a service.

    Exit code: 0 pass, 1 fail, 2 a scenario that cannot be run, 3 unknown, 130 interrupted.
    """
    from service.foreground import run_trial

    raise typer.Exit(run_trial(scenario, directory, as_json=as_json))


@app.command()
def nightly(
    suite: Annotated[Path, typer.Argument(help="A suite file (YAML or JSON), such as scenarios/nightly.yaml.")],
    directory: Annotated[Path | None, directory_option("Where all of it is kept; must be empty.")] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Also write a JUnit report to this file (-: to the output).")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write a page to this file (-: to the output).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where this machine cannot do a scenario.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the trials and their faults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run all trials of a suite here and now, one after another.

    Exit code: 0 pass, 1 fail, 2 a suite that cannot be run, 3 unknown, 130 interrupted; the worst of all trials counts.
    What this machine cannot do is skipped, and says why.
    """
    from service.nightly import Options, run_nightly

    options = Options(
        suite=suite,
        directory=directory,
        junit=junit,
        markdown=markdown,
        as_json=as_json,
        strict=strict,
        dry_run=dry_run,
    )
    raise typer.Exit(run_nightly(options))


@app.command()
def doctor(directory: Directory = None, as_json: AsJson = False) -> None:
    """Say what this machine can inject, and why not."""
    from service.doctor import examine, render

    report = examine(data_directory(directory))
    typer.echo(json.dumps(report.to_json()) if as_json else render(report))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def schema(
    what: Annotated[Literal["scenario", "suite"], typer.Argument(help="Of which kind of file.")] = "scenario",
) -> None:
    """Print the JSON Schema of a scenario or suite file."""
    from chaos import scenario, suite

    typer.echo(suite.schema_text() if what == "suite" else scenario.schema_text(), nl=False)


def _run_runtime(arguments: list[str]) -> NoReturn:
    """Becomes the runtime's launcher: same process, so same signals and same exit code."""
    os.execv(sys.executable, [sys.executable, "-m", "phoenix_core", "run", *arguments])


if __name__ == "__main__":
    main()
