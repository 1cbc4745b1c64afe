"""`phoenix schedule create|list|pause|resume|run|delete|firings`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.common import AsJson, Directory, Json, Reason, Server, connected, fail, named, show, table

app = typer.Typer(no_args_is_help=True, help="Schedules: what runs by itself, and when.")

Name = Annotated[str, typer.Argument(help="Name or id of the schedule.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="How it is called.")],
    scenario: Annotated[str, typer.Option(help="A scenario by name, or suite:NAME.")],
    cron: Annotated[str | None, typer.Option(help="Five fields, such as '0 2 * * *', or @daily.")] = None,
    every: Annotated[float | None, typer.Option(help="Every so many seconds.")] = None,
    at: Annotated[str | None, typer.Option(help="Once, at this time, such as 2026-12-01T02:00:00Z.")] = None,
    timezone: Annotated[str, typer.Option(help="Whose clock a cron expression means.")] = "UTC",
    revision: Annotated[str | None, typer.Option(help="Of the service's --repository, such as HEAD.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="How often each time.")] = 1,
    overlap: Annotated[
        str,
        typer.Option(
            help="While the run before has not ended: skip this one, queue it behind (a queue that is slower than the "
            "schedule grows), or cancel_previous (where runs take longer than the interval none ever ends)."
        ),
    ] = "skip",
    base: Annotated[
        str | None, typer.Option(help="Compare with this commit, with 'previous' or with 'baseline'.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="Id of the webhook that is told.")] = None,
    stale_after: Annotated[float | None, typer.Option(help="Alert when no run has ended for so many seconds.")] = None,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule; choose one of --cron, --every and --at."""
    chosen = {"cron": cron, "interval": every, "once": at}
    kinds = [kind for kind, value in chosen.items() if value is not None]
    if len(kinds) != 1:
        fail("choose one of --cron, --every and --at")
    body: Json = {
        "name": name, "kind": kinds[0], "timezone": timezone, "cron": cron, "every_s": every, "at": at,
        "run": {"trials": trials, "revision": revision, **named(scenario)}, "overlap": overlap, "base": base,
        "webhook": webhook, "stale_after_s": stale_after, "reason": reason,
    }  # fmt: skip
    with connected(server, directory) as client:
        answer = client.post("/schedules", body)
    show(answer, as_json, lambda: f"schedule {answer['id']} ({name}) is {coming(answer)}")


@app.command("list")
def list_schedules(server: Server = None, directory: Directory = None, as_json: AsJson = False) -> None:
    """All of them: when each is due next, and what came of it last."""
    with connected(server, directory) as client:
        items = list(client.items("/schedules"))
    show({"items": items}, as_json, lambda: listed(items))


@app.command()
def pause(
    name: Name, reason: Reason = "", server: Server = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """It is not due until it is resumed."""
    _change("pause", name, reason, server, directory, as_json)


@app.command()
def resume(
    name: Name, reason: Reason = "", server: Server = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """What would have been due meanwhile is not made up for."""
    _change("resume", name, reason, server, directory, as_json)


@app.command()
def run(
    name: Name, reason: Reason = "", server: Server = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """As if it were due now."""
    with connected(server, directory) as client:
        answer = client.post(f"/schedules/{client.schedule_id(name)}/run", {"reason": reason})
    show(answer, as_json, lambda: f"run {answer['id']} is {answer['state']}")


@app.command()
def delete(
    name: Name, reason: Reason = "", server: Server = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """Its runs stay."""
    with connected(server, directory) as client:
        client.delete(f"/schedules/{client.schedule_id(name)}", reason=reason)
    show({"deleted": name}, as_json, lambda: f"schedule {name} is deleted")


@app.command()
def firings(name: Name, server: Server = None, directory: Directory = None, as_json: AsJson = False) -> None:
    """Each instant at which it was due, newest first, and what came of it."""
    with connected(server, directory) as client:
        answer = client.get(f"/schedules/{client.schedule_id(name)}/firings")
    shown = ("due_at", "outcome", "run", "verdict", "detail")
    rows = [tuple(name.upper() for name in shown)]
    rows += [tuple(str(item[name] or "-") for name in shown) for item in answer["items"]]
    show(answer, as_json, lambda: table(rows))


def _change(verb: str, name: str, reason: str, server: Server, directory: Directory, as_json: bool) -> None:
    with connected(server, directory) as client:
        answer = client.post(f"/schedules/{client.schedule_id(name)}/{verb}", {"reason": reason})
    show(answer, as_json, lambda: f"schedule {answer['name']} is {coming(answer)}")


def coming(schedule: Json) -> str:
    if schedule["paused"]:
        return "paused"
    local = schedule["next_due_local"]
    return f"due next at {local}" if local else "not due again: its time has passed"


def listed(items: list[Json]) -> str:
    if not items:
        return "there is no schedule; make one with: phoenix schedule create nightly --scenario demo --cron '0 2 * * *'"
    rows = [("ID", "NAME", "WHEN", "NEXT DUE", "LAST", "STATE")]
    for item in items:
        when = item["cron"] or (f"every {item['every_s']:g} s" if item["every_s"] else "once")
        last = f"{item['last']['outcome']} {item['last']['verdict'] or ''}".strip() if item["last"] else "never"
        state = "paused" if item["paused"] else "STALE" if item["stale"] else "ok" if item["next_due"] else "over"
        rows.append((item["id"], item["name"], when, item["next_due_local"] or "-", last, state))
    return table(rows)
