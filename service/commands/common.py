"""What the commands share: their options, how they find the service, and how they fail.

Exit codes: 0 pass, 1 fail, 2 usage (also: no service, a refusal), 3 unknown (it could not be judged), 130 interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from service.client import Client, ClientError, NoAnswer
from service.settings import DEFAULT_PORT, LOOPBACK, Settings, SettingsError, data_directory

if TYPE_CHECKING:
    from service.database import Database

FAIL = 1
USAGE = 2
UNKNOWN = 3
INTERRUPTED = 130
EXIT_OF = {"PASS": 0, "FAIL": FAIL, "UNKNOWN": UNKNOWN}

Json = dict[str, Any]


def named_directory(text: str) -> Path:
    """The directory that a `--dir` names. An empty one is a variable of the shell that is not set, and not this one."""
    if not text:
        raise typer.BadParameter("it is empty; name a directory, or leave the option out")
    return Path(text)


def directory_option(help: str) -> Any:
    return typer.Option("--dir", help=help, parser=named_directory, metavar="<path>")


Directory = Annotated[Path | None, directory_option("Data directory (else PHOENIX_HOME, else ~/.local/share/phoenix).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Address of the service (else PHOENIX_SERVER, else the one on this data directory). "
        "The environment variable PHOENIX_TOKEN holds its token.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="postgresql://user:password@host/name (else PHOENIX_DATABASE, else SQLite in the data directory).",
    ),
]
OPTIONS = {
    "every_s": "--every",
    "stale_after_s": "--stale-after",
    "ttl_s": "--ttl",
    "run.trials": "--trials",
    "run.revision": "--revision",
    "run.scenario_name": "--scenario",
}
"""Fields of a request that the command line gives another name."""
Reason = Annotated[str, typer.Option(help="Why; kept in the audit log.")]


@contextmanager
def connected(server: str | None, directory: Path | None) -> Iterator[Client]:
    """A client of the service. What it refuses ends the command with exit code 2 and the reason."""
    try:
        with _client(server or os.environ.get("PHOENIX_SERVER"), directory) as client:
            yield client
    except NoAnswer as error:
        fail(f"{error}: start one with `phoenix serve`, or say with --server or PHOENIX_SERVER where it is")
    except ClientError as error:
        fail(in_options(error))
    except ValueError as error:
        fail(str(error))


def in_options(error: ClientError) -> str:
    """What the service refused; a field of the request by the option that it came from."""
    refused = error.problem.get("errors", [])
    fields = {item["field"]: OPTIONS[item["field"]] for item in refused if item.get("field") in OPTIONS}
    message = str(error)
    for field, option in fields.items():
        message = message.replace(f"{field}: ", f"{option}: ", 1)
    return message


def _client(server: str | None, directory: Path | None) -> Client:
    from service.context import running_in

    token = os.environ.get("PHOENIX_TOKEN")
    if server is not None:
        return Client(server, token=token)
    running = running_in(data_directory(directory))
    if running is not None:
        return Client(running.url, token=token or running.secret)
    return Client(f"http://{LOOPBACK}:{DEFAULT_PORT}", token=token)


@contextmanager
def opened(directory: Path | None, database: str | None, *, make: bool = False) -> Iterator[tuple[Database, Settings]]:
    """The database of the data directory, with the newest schema; a service may be running on it.

    `make`: also where there was none so far. Elsewhere a directory without one was misspelt.
    """
    from sqlalchemy.exc import DBAPIError

    from service.context import opened_database, what_to_do

    try:
        settings = Settings(directory=data_directory(directory), database_url=database_url(database))
        if make:
            settings.directory.mkdir(parents=True, exist_ok=True)
        elif settings.database_url is None and not settings.database_file.exists():
            fail(
                f"there is no database in the data directory {settings.directory} ({settings.database_file.name}): "
                "name the directory that `phoenix serve` uses with --dir, or its database with --database"
            )
        found = opened_database(settings)
    except SettingsError as error:
        fail(str(error))
    except OSError as error:
        found_at = data_directory(directory)
        fail(f"cannot use the data directory {found_at}: {error.strerror or error}; choose one with --dir")
    try:
        yield found, settings
    except DBAPIError as error:
        fail(what_to_do(found, error))
    finally:
        found.close()


def database_url(given: str | None) -> str | None:
    return given or os.environ.get("PHOENIX_DATABASE") or None


def show(document: object, as_json: bool, text: Callable[[], str]) -> None:
    """For programs the document, for people a text."""
    typer.echo(json.dumps(document) if as_json else text())


def fail(message: str, *, code: int = USAGE) -> NoReturn:
    typer.echo(f"phoenix: {message}", err=True)
    raise typer.Exit(code)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest value."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def named(name: str) -> Json:
    """A scenario, or with suite:NAME a suite, as a body says it."""
    suite = name.removeprefix("suite:")
    return {"scenario_name": name} if suite == name else {"suite": suite}
