"""`phoenix inject`, `phoenix revert`, `phoenix halt`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.client import ClientError
from service.commands.common import AsJson, Directory, Json, Reason, Server, connected, fail, show


def inject(
    kind: Annotated[str, typer.Argument(help="Kind of fault, such as process_kill; `phoenix doctor` lists them.")],
    run_id: Annotated[str | None, typer.Option("--run", help="The run (else: the one that is running).")] = None,
    rank: Annotated[int | None, typer.Option(help="Hit the worker that holds this rank.")] = None,
    random_rank: Annotated[bool, typer.Option("--random-rank", help="Hit any rank.")] = False,
    spare: Annotated[bool, typer.Option("--spare", help="Hit a parked spare.")] = False,
    node: Annotated[str | None, typer.Option(help="Hit all processes of a node, such as n1.")] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="Hit the coordinator.")] = False,
    store: Annotated[bool, typer.Option("--store", help="Hit the launcher, which holds the store.")] = False,
    at_step: Annotated[int | None, typer.Option(help="When the rank begins this step.")] = None,
    after: Annotated[float | None, typer.Option(help="After this many seconds.")] = None,
    phase: Annotated[str | None, typer.Option(help="When the rank enters this training phase.")] = None,
    param: Annotated[list[str] | None, typer.Option(help="name=value, such as ttl_s=30 (repeatable).")] = None,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be hit.")] = False,
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Inject a fault into a running run, over REST."""
    from service.inject import Request, describe, target_of, trigger_of

    with connected(server, directory) as client:
        request = Request(
            kind=kind,
            target=target_of(
                rank=rank, node=node, random_rank=random_rank, spare=spare, coordinator=coordinator, store=store
            ),
            trigger=trigger_of(at_step=at_step, after_s=after, phase=phase),
            params=tuple(param or ()),
            reason=reason,
            dry_run=dry_run,
        )
        answer = request.send(client, run_id)
    show(answer, as_json, lambda: describe(answer))


def revert(
    fault: Annotated[str, typer.Argument(help="Id of the fault, as `phoenix inject` said it.")],
    run_id: Annotated[str | None, typer.Option("--run", help="Its run, where several have a fault of this id.")] = None,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Take a lasting fault back before its time is over."""
    with connected(server, directory) as client:
        answer = client.revert(run_id, fault, reason)
    show(answer, as_json, lambda: f"{answer['kind']} of run {answer['run']} is being taken back (fault {answer['id']})")


def halt(
    reason: Reason = "",
    ttl: Annotated[float | None, typer.Option(help="Released by itself after this many seconds.")] = None,
    release: Annotated[
        str | None, typer.Option(help="Release the halt of this id ('current': the one in force).")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only say whether a halt is in force.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken back.")] = False,
    server: Server = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Take every fault back and let none begin, until the halt is released (or its --ttl is over)."""
    if not reason and not status and not dry_run:
        fail("say why: --reason TEXT (it is kept, and shown to whoever wants to inject meanwhile)")
    with connected(server, directory) as client:
        if status:
            answer: Json = client.get("/halts", active="true")
        elif release is not None:
            identity = _current(client.get("/halts", active="true")) if release == "current" else release
            answer = client.release(identity, reason)
        else:
            answer = client.post("/halts", {"reason": reason or "a dry run", "ttl_s": ttl, "dry_run": dry_run})
    ours = release is not None or answer.get("reason", reason) == reason
    show(answer, as_json, lambda: ("" if ours or status else "a halt was in force already; ") + describe(answer))


def describe(answer: Json) -> str:
    """A halt, a list of halts or a dry run in words."""
    if "items" in answer:
        return "\n".join(map(describe, answer["items"])) or "no halt is in force"
    if answer.get("dry_run"):
        would = answer["would"]
        lines = [f"a halt would reach {len(would['runs'])} running run(s)"]
        lines += [f"  revert    {hit['kind']} of {hit['run']} (fault {hit['fault']})" for hit in would["reverts"]]
        lines += [f"  withdraw  {hit['kind']} of {hit['run']} (fault {hit['fault']})" for hit in would["withdraws"]]
        return "\n".join(lines)
    if not answer["active"]:
        return f"halt {answer['id']} is over: faults may begin again"
    until = f"until {answer['until']}" if answer["until"] else "until it is released"
    return (
        f"halted by {answer['by']} ({answer['reason']}), {until}: {answer['reverts']} taken back, "
        f"{answer['withdraws']} withdrawn. Release it with: phoenix halt --release {answer['id']} --reason WHY"
    )


def _current(answer: Json) -> str:
    """Raises ClientError where none is in force."""
    if not answer["items"]:
        raise ClientError("no halt is in force")
    return str(answer["items"][0]["id"])
