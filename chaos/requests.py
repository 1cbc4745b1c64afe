"""Live requests to a trial: lines that others append to requests.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import InvalidFault
from chaos.expansion import single
from chaos.faults import PlannedFault


@dataclass(frozen=True, kw_only=True)
class FaultRequest:
    """{"fault": id, "kind", "target", "trigger", "params", "reason"}"""

    fault: PlannedFault

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "fault", "fault": self.fault.id, "kind": self.fault.kind, "reason": self.fault.reason}


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """{"cancel": true, "reason"}: end the trial."""

    reason: str

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "cancel", "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class RevertRequest:
    """{"revert": id, "reason"}: take a lasting fault back before its time."""

    fault: str
    reason: str

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "revert", "fault": self.fault, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class HaltRequest:
    """{"halt": true or an id, "reason"}: take every fault back, and inject none until this halt is released."""

    reason: str
    halt: str = ""

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "halt", "halt": self.halt, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """{"release": true or the id of a halt, "reason"}: all halts, or that one, are over."""

    reason: str
    halt: str = ""

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "release", "halt": self.halt, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class RefusedRequest:
    """A line that asks for nothing that can be done. `fault` is its id, if it had one."""

    fault: str
    kind: str
    reason: str

    @property
    def audit(self) -> dict[str, object]:
        return {"request": "refused", "fault": self.fault, "kind": self.kind, "reason": self.reason}


Request = FaultRequest | CancelRequest | RevertRequest | HaltRequest | ReleaseRequest | RefusedRequest


class RequestTail:
    """Reads the requests appended since the last call; cheap when there are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Request]:
        try:
            if os.stat(self._path).st_size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read()
        except FileNotFoundError:
            return []
        end = block.rfind(b"\n") + 1
        self._offset += end
        return [parse_request(line) for line in block[:end].splitlines() if line.strip()]


def parse_request(line: bytes) -> Request:
    """Never raises: a line that is wrong becomes a refusal, so that one bad client cannot end a trial."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # the latter where it is nested too deeply
        return RefusedRequest(fault="", kind="", reason=f"not JSON: {line[:80]!r}")
    if not isinstance(data, Mapping):
        return RefusedRequest(fault="", kind="", reason=f"not a JSON object: {line[:80]!r}")
    reason = str(data.get("reason") or "no reason given")
    if data.get("cancel") is True:
        return CancelRequest(reason=reason)
    for word, form in (("halt", HaltRequest), ("release", ReleaseRequest)):
        if (halt := data.get(word)) is True or (isinstance(halt, str) and halt):
            return form(reason=reason, halt="" if halt is True else halt)
    if isinstance(data.get("revert"), str):
        return RevertRequest(fault=str(data["revert"]), reason=reason)
    try:
        return FaultRequest(fault=single(PlannedFault.from_json(data)))
    except InvalidFault as error:
        identity = str(data.get("fault") or data.get("id") or "")
        return RefusedRequest(fault=identity, kind=str(data.get("kind") or ""), reason=str(error))
