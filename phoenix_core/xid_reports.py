"""What is seen of a node's GPUs, and what it asks for. Pure.

A driver tells of an error in two places, NVML's events and the kernel log, and each knows what the other does not: the
log has the words, NVML the number of the GPU. Some errors lead to a third: the recovery action that NVML names.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from phoenix_core.xids import Action, catalogue

LOST: Final = 79
RECOVERY_CHANGED: Final = 154
LINKS: Final = range(144, 151)
"""Errors of NVLink 5: each is of one link, and of no consequence, unless its words say `Fatal` or all GPUs have one."""

SAME_INCIDENT_S: Final = 1.0
"""The same Xid of the same GPU within this time is one that was told twice."""
ALL_LINKS_S: Final = 2.0
"""All GPUs of a node whose links fail within this time have lost what connects them."""

_RECOVERY: Final = (
    Action.NOTHING,  # none
    Action.QUARANTINE_GPU,  # reset the GPU
    Action.QUARANTINE_NODE,  # reboot the node
    Action.QUARANTINE_GPU,  # drain what uses it as a peer
    Action.QUARANTINE_GPU,  # drain and reset
    Action.QUARANTINE_NODE,  # recover the IMEX domain
    Action.QUARANTINE_GPU,  # reset its bus
    Action.QUARANTINE_NODE,  # reboot the system
)
"""By the number of NVML's field 230, which Xid 154 announces."""

_RECORD: Final = re.compile(r"^\d+,\d+,\d+,[^;]*;")
_XID: Final = re.compile(
    r"NVRM: +Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): (?P<xid>\d+)(?:, *(?P<words>.*))?$"
)
_GONE: Final = re.compile(r"NVRM: +GPU (?P<pci>[0-9a-fA-F:]+)\.\d+: GPU has fallen off the bus")
_GONE_UNNUMBERED: Final = re.compile(r"NVRM: +The NVIDIA GPU (?P<pci>[0-9a-fA-F:]+)\.\d+(?: *$|.*fallen off the bus)")
_RECOVERY_WORDS: Final = re.compile(r"to 0x([0-9a-fA-F]+) ")
_FATAL: Final = re.compile(r"\bFatal\b")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """An Xid, by `source` (nvml, state or log). `gpu` is NVML's index, None where only the address is known.

    `words` are those behind the number in the log. `recovery` is NVML's recovery action, where that is what was seen.
    """

    xid: int
    source: str
    gpu: int | None = None
    pci: str = ""
    words: str = ""
    recovery: int | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a sighting asks for. `told`: whether somebody has to act on it; `whole_node`: on all GPUs of the node."""

    action: Action
    told: bool = False
    whole_node: bool = False


def read_line(line: str) -> Sighting | None:
    """What a line of the kernel log, or a record of /dev/kmsg, tells of a GPU; None for all that is none of ours."""
    text = _RECORD.sub("", line.strip())
    if found := _XID.search(text):
        return Sighting(
            xid=int(found["xid"]), source="log", pci=found["pci"].lower(), words=(found["words"] or "").strip()
        )
    # Some drivers write no number, and the words over three lines; the first ends with the address for nothing else.
    if found := _GONE.search(text) or _GONE_UNNUMBERED.search(text):
        return Sighting(xid=LOST, source="log", pci=found["pci"].lower(), words="it has fallen off the bus")
    return None


def action_of(sighting: Sighting) -> Action:
    """By the catalogue; where that says to look further, by the words and the recovery action."""
    if sighting.recovery is not None:
        return _of_recovery(sighting.recovery)
    if sighting.xid == RECOVERY_CHANGED and (found := _RECOVERY_WORDS.search(sighting.words)):
        return _of_recovery(int(found[1], 16))
    if sighting.xid in LINKS and _FATAL.search(sighting.words):
        return Action.QUARANTINE_GPU
    entry = catalogue().get(sighting.xid)
    return entry.action if entry is not None else Action.NOTHING


def said_of(sighting: Sighting, judgement: Judgement) -> str:
    """The sighting in words, for whoever reads why a worker was taken out."""
    if judgement.whole_node:
        return f"Xid {sighting.xid} and the like on all GPUs of the node: their links are gone"
    words, entry = sighting.words, catalogue().get(sighting.xid)
    if sighting.recovery is not None:
        words = f"its recovery action is {sighting.recovery} now"
    elif not words and entry is not None:
        words = entry.mnemonic.lower().replace("_", " ")
    return f"Xid {sighting.xid} of GPU {sighting.pci or sighting.gpu}: {words}".rstrip(": ")


def _of_recovery(number: int) -> Action:
    # A number that came after this was written is taken for the gravest.
    return _RECOVERY[number] if number < len(_RECOVERY) else Action.QUARANTINE_NODE


class Judge:
    """Remembers of a node's GPUs what was seen lately. `gpus` are NVML's indices, as far as they are known."""

    def __init__(self) -> None:
        self.gpus: Collection[int] = ()
        self._seen: dict[tuple[int | None, int, Action], float] = {}
        self._links: dict[int, float] = {}

    def see(self, sighting: Sighting, now: float) -> Judgement:
        action, gpu = action_of(sighting), sighting.gpu
        if gpu is not None and sighting.xid in LINKS:
            self._links[gpu] = now
            failing = {other for other, at in self._links.items() if now - at <= ALL_LINKS_S}
            if len(self.gpus) > 1 and failing >= set(self.gpus):
                self._links.clear()
                return Judgement(action=Action.QUARANTINE_NODE, told=True, whole_node=True)
        if action is Action.NOTHING or gpu is None:
            return Judgement(action=action)
        incident = (gpu, sighting.xid, action)
        again = now - self._seen.get(incident, float("-inf")) <= SAME_INCIDENT_S
        self._seen[incident] = now
        return Judgement(action=action, told=not again)


def visible(count: int, uuids: Collection[str], chosen: str | None) -> tuple[int, ...]:
    """NVML's indices in the order in which a script counts its GPUs; `chosen` is CUDA_VISIBLE_DEVICES.

    As CUDA reads it: indices or the beginnings of UUIDs, up to the first that is neither. None: all of them.
    """
    if chosen is None:
        return tuple(range(count))
    indices: list[int] = []
    for name in (part.strip() for part in chosen.split(",")):
        if name.isdigit():
            found = [int(name)] if int(name) < count else []
        else:
            found = [index for index, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(found) != 1:
            break
        indices += found
    return tuple(indices)
