"""`phoenix baseline choose|list|remove`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.common import AsJson, Directory, Json, Reason, Server, connected, show, table

app = typer.Typer(no_args_is_help=True, help="Baselines: the code that each scenario is held against.")

Scenario = Annotated[str, typer.Argument(help="Name of the scenario.")]


@app.command()
def choose(
    scenario: Scenario,
    code: Annotated[str, typer.Argument(help="Revision (commit, branch, tag, COMMIT-DIFF) that it has trials of.")],
    reason: Annotated[str, typer.Option(help="Why; kept with it and in the audit log.")],
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Hold the scenario against this code: phoenix compare baseline HEAD, schedules, the pages of its trials."""
    with connected(server, directory) as client:
        answer = client.choose_baseline(scenario, code, reason)
    show(answer, as_json, lambda: f"scenario {scenario} is held against {answer['short']} from now on")


@app.command("list")
def list_baselines(server: Server = None, directory: Directory = None, as_json: AsJson = False) -> None:
    """Which scenario has which, since when and why."""
    with connected(server, directory) as client:
        items = list(client.items("/baselines"))
    show({"items": items}, as_json, lambda: _table(items))


@app.command()
def remove(
    scenario: Scenario,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Hold the scenario against nothing any more."""
    with connected(server, directory) as client:
        client.remove_baseline(scenario, reason)
    show({"removed": scenario}, as_json, lambda: f"scenario {scenario} has no baseline any more")


def _table(items: list[Json]) -> str:
    if not items:
        return "no scenario has a baseline; choose one with: phoenix baseline choose SCENARIO COMMIT --reason WHY"
    rows = [("SCENARIO", "CODE", "SINCE", "BY", "REASON")]
    rows += [(one["scenario"], one["short"], str(one["at"])[:16], one["by"], one["reason"]) for one in items]
    return table(rows)
