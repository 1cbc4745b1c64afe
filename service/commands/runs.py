"""`phoenix submit`, `phoenix cancel`, `phoenix runs`: runs of a service, from the command line."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from service.client import Client
from service.commands.common import (
    EXIT_OF,
    AsJson,
    Directory,
    Json,
    Reason,
    Server,
    connected,
    fail,
    named,
    show,
    table,
)

LOOK_S = 0.5


def submit(
    scenario: Annotated[str, typer.Argument(help="A scenario that the service knows by name, a file, or suite:NAME.")],
    trials: Annotated[int, typer.Option(min=1, max=200, help="How often, each with a seed of its own.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed (else: the scenario's).")] = None,
    revision: Annotated[str | None, typer.Option(help="Run this revision of the service's --repository.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; the exit code is its verdict.")] = False,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Queue a run of a scenario or a suite. With --wait: exit code 0 pass, 1 fail, 3 unknown."""
    body: Json = {"trials": trials, "seed": seed, "revision": revision, "reason": reason, **_what_to_run(scenario)}
    with connected(server, directory) as client:
        run = client.post("/runs", body)
        if run["state"] == "QUEUED" and (halt := client.active_halt()) is not None:
            how = f"phoenix halt --release {halt['id']} --reason WHY"
            typer.echo(f"halted ({halt['reason']}): it begins once that is released: {how}", err=True)
        if wait:
            run = _ended(client, run)
    show(run, as_json, lambda: describe(run))
    if wait:
        raise typer.Exit(EXIT_OF[run["verdict"] or "UNKNOWN"])


def cancel(
    run: Annotated[str, typer.Argument(help="Id of the run.")],
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """End a run; it is over when its trial has ended what it started."""
    with connected(server, directory) as client:
        answer = client.cancel(run, reason)
    show(answer, as_json, lambda: describe(answer))


def runs(
    state: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, FINISHED, CANCELLED or ABANDONED.")] = None,
    scenario: Annotated[str | None, typer.Option(help="Only of this scenario.")] = None,
    suite: Annotated[str | None, typer.Option(help="Only of this suite.")] = None,
    branch: Annotated[
        str | None, typer.Option(help="Only of commits of this branch of the service's checkout.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Only run by the service of this host.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """The newest runs of the service."""
    with connected(server, directory) as client:
        chosen = {"state": state, "scenario": scenario, "suite": suite, "branch": branch, "host": host}
        answer = client.get("/runs", limit=limit, **chosen)
    show(answer, as_json, lambda: _table(answer["items"]))


def describe(run: Json) -> str:
    verdict = f", {run['verdict']}" if run["verdict"] else ""
    error = f": {run['error']}" if run["error"] else ""
    return f"run {run['id']} ({_what(run)}) is {run['state']}{verdict}{error}"


def _what(run: Json) -> str:
    return f"suite {run['suite']}" if run["suite"] else str(run["scenario"])


def _what_to_run(scenario: str) -> Json:
    """A file is sent whole, since the service reads none of the caller's."""
    path = Path(scenario)
    if not path.is_file():
        if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:  # no name of a scenario looks so
            fail(f"there is no file {scenario}" if not path.is_dir() else f"{scenario} is a directory; name a file")
        return named(scenario)
    from chaos.errors import ChaosError
    from chaos.scenario import load_scenario

    try:
        return {"scenario": load_scenario(path).to_json()}
    except ChaosError as error:
        fail(str(error))


def _ended(client: Client, run: Json) -> Json:
    told = None
    while run["state"] in ("QUEUED", "RUNNING"):
        now = (run["state"], run["progress"]["done"], run["part"])
        if now != told and sys.stderr.isatty():
            typer.echo(f"{run['id']}: {run['state']}, trial {now[1] + 1} of {run['progress']['total']}", err=True)
        told = now
        time.sleep(LOOK_S)
        run = client.get(f"/runs/{run['id']}")
    return run


def _table(items: list[Json]) -> str:
    if not items:
        return "there is no run; start one with: phoenix submit demo"
    rows = [("ID", "WHAT", "STATE", "VERDICT", "TRIALS", "SUBMITTED")]
    for run in items:
        trials = f"{run['progress']['done']}/{run['progress']['total']}"
        submitted = str(run["created_at"])[:19]
        rows.append((run["id"], _what(run), run["state"], run["verdict"] or "-", trials, submitted))
    return table(rows)
