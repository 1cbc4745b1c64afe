"""NVIDIA's catalogue of Xids (xids.json names its source), and what this runtime does about each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final


class Action(StrEnum):
    """What becomes of a GPU's worker; from the mildest to the gravest."""

    NOTHING = "nothing"
    RESPAWN = "respawn"
    QUARANTINE_GPU = "quarantine_gpu"
    QUARANTINE_NODE = "quarantine_node"


GRAVITY: Final = tuple(Action)

_ACTIONS: Final[Mapping[str, Action]] = {
    "IGNORE": Action.NOTHING,
    "RESTART_APP": Action.RESPAWN,
    "RESET_GPU": Action.QUARANTINE_GPU,
    "CONTACT_SUPPORT": Action.QUARANTINE_GPU,
    "CHECK_UVM": Action.QUARANTINE_GPU,
    "WORKFLOW_XID_48": Action.QUARANTINE_GPU,
    "WORKFLOW_NVLINK_ERR": Action.QUARANTINE_GPU,
    "RESTART_BM": Action.QUARANTINE_NODE,
    "RESTART_VM": Action.QUARANTINE_NODE,
    "UPDATE_SWFW": Action.QUARANTINE_NODE,
    "CHECK_MECHANICALS": Action.QUARANTINE_NODE,
    # The removal of a channel after its process died, and the announcement of another Xid's recovery action.
    "WORKFLOW_XID_45": Action.NOTHING,
    "XID_154": Action.NOTHING,
    # Most of their rows need nothing; a fatal one is followed by an Xid that says what to do.
    "WORKFLOW_NVLINK5_ERR": Action.NOTHING,
}


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One entry; `scope` (app, gpu, link, node, ...) is empty where nobody has said."""

    number: int
    mnemonic: str
    action: Action
    scope: str
    cuda_errors: tuple[int, ...]


@cache
def catalogue() -> Mapping[int, Xid]:
    """By number."""
    entries = json.loads(files("phoenix_core").joinpath("xids.json").read_text())["entries"]
    return {entry["xid"]: _xid(entry) for entry in entries}


def _xid(entry: Mapping[str, Any]) -> Xid:
    scope = entry["scope"] or ""
    # The newest entries come without an action: one of the whole GPU is taken for what needs a reset.
    unsaid = Action.QUARANTINE_GPU if scope == "gpu" else Action.NOTHING
    action = _ACTIONS[entry["action"]] if entry["action"] else unsaid
    errors = tuple(entry["cuda_errors"])
    return Xid(number=entry["xid"], mnemonic=entry["mnemonic"], action=action, scope=scope, cuda_errors=errors)
