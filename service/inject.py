"""`phoenix inject`: options of the command line as one request to the REST API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from service.client import Client, ClientError, Json


@dataclass(frozen=True, kw_only=True)
class Request:
    """A fault as typed; the service decides whether it is one."""

    kind: str
    target: Mapping[str, object]
    trigger: Mapping[str, object]
    params: tuple[str, ...]
    reason: str
    dry_run: bool

    def send(self, client: Client, run: str | None) -> Json:
        """Raises ClientError, and ValueError for a parameter that is not name=value."""
        body = {
            "kind": self.kind,
            "target": dict(self.target),
            "trigger": dict(self.trigger),
            "params": dict(map(_parameter, self.params)),
            "reason": self.reason,
            "dry_run": self.dry_run,
        }
        return client.post(f"/runs/{quote(run or running_run(client), safe='')}/faults", body)


def running_run(client: Client) -> str:
    """The one run that is running. Raises ClientError where there is none, or more than one."""
    running = [str(run["id"]) for run in client.get("/runs", state="RUNNING")["items"]]
    if len(running) == 1:
        return running[0]
    if running:
        raise ClientError(f"several runs are running, choose one with --run: {', '.join(running)}")
    raise ClientError("no run is running; start one with `phoenix submit demo`")


def target_of(*, rank: int | None = None, node: str | None = None, **others: bool) -> Mapping[str, object]:
    """Raises ValueError unless exactly one is chosen: nobody is hit by default. `others` are targets without a name."""
    named = {"rank": rank, "node": node}
    chosen = [{name: value} for name, value in named.items() if value is not None]
    chosen += [{name: True} for name, wanted in others.items() if wanted]
    if len(chosen) != 1:
        every = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ValueError(f"choose one target: --rank N, --node NAME, {every}")
    return chosen[0]


def trigger_of(*, at_step: int | None, after_s: float | None, phase: str | None) -> Mapping[str, object]:
    """Now, unless something else is asked. `--phase` goes together with `--at-step`."""
    if after_s is not None and (at_step is not None or phase is not None):
        raise ValueError("--after does not go together with --at-step or --phase")
    if phase is not None:
        return {"phase": phase} if at_step is None else {"phase": phase, "step": at_step}
    if at_step is not None:
        return {"at_step": at_step}
    return {"now": True} if after_s is None else {"after_s": after_s}


def describe(answer: Json) -> str:
    """The answer in one line."""
    if answer.get("dry_run"):
        return str(answer["would"]["text"])
    return f"{answer['kind']} requested for run {answer['run']} (fault {answer['id']}, {answer['state']})"


def _parameter(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"a parameter is name=value, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
