"""The check gpu_health: what the runtime saw of each Xid, and whether it did what the catalogue asks for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.evidence import Evidence
from chaos.injectors.process import SEVERAL
from chaos.kinds_gpu import GPU_XID
from chaos.verdict import CheckResult, failed, passed, unknown
from chaos.wanted import is_quiet, wanted
from phoenix_core.events import Event
from phoenix_core.xids import Action


def gpu_health(evidence: Evidence) -> CheckResult:
    """Every Xid was seen; those that ask for nothing led to nothing, the others took out whom they should."""
    events = evidence.run.events
    faults = [event for event in events if event.kind == "fault_injected" and event.data.get("kind") == GPU_XID.kind]
    if not faults:
        return passed("no GPU had an error of ours")
    if not any(event.kind == "gpus_watched" for event in events):
        return unknown("this runtime does not say what it sees of its GPUs")
    for fault in faults:
        if (trouble := _unseen(fault, events) or _wrong(fault, events)) is not None:
            return trouble
    return passed("; ".join(_story(fault, events) for fault in faults))


def quarantined(fault: Event, events: Sequence[Event]) -> Event | None:
    """What was said of the fault's node when it was given up, if it was, after the fault."""
    own = (e for e in events if e.kind == "node_quarantined" and e.at >= fault.at)
    return next((e for e in own if e.node == fault.node), None)


def _sightings(fault: Event, events: Sequence[Event]) -> list[Event]:
    """By the node whose GPU it was, of any Xid of this fault."""
    proof = fault.data["proof"]
    assert isinstance(proof, dict)
    return [
        event
        for event in events
        if event.kind == "xid_seen" and event.node == fault.node and event.at >= fault.at
        if event.data.get("xid") in proof["xids"] and event.data.get("pci") in proof["gpus"]
    ]


def _unseen(fault: Event, events: Sequence[Event]) -> CheckResult | None:
    proof = fault.data["proof"]
    assert isinstance(proof, dict)
    seen = {event.data.get("xid") for event in _sightings(fault, events)}
    if missing := [xid for xid in proof["xids"] if xid not in seen]:
        return failed(f"{fault.data['fault']}: nobody on {fault.node} saw Xid {missing[0]}")
    return None


def _wrong(fault: Event, events: Sequence[Event]) -> CheckResult | None:
    """None where what was done is what the catalogue asks for."""
    name, action = fault.data["fault"], wanted(fault)
    replaced, fenced = _replaced(fault, events), quarantined(fault, events)
    replaced_for_it = replaced is not None and not _by_another(replaced, fault, events)
    fenced_for_it = fenced is not None and not _by_another(fenced, fault, events)
    if action is Action.NOTHING and replaced is not None and replaced_for_it:
        return failed(f"{name}: asks for nothing, and {replaced.worker} was replaced ({replaced.data.get('detail')})")
    if action in (Action.NOTHING, Action.RESPAWN) and fenced is not None and fenced_for_it:
        return failed(f"{name}: asks for {action}, and {fault.node} was quarantined ({fenced.data.get('reason')})")
    if action is Action.RESPAWN and replaced is None and fault.rank is not None:
        return failed(f"{name}: {fault.worker} was to be replaced, and was not")
    if action in (Action.QUARANTINE_GPU, Action.QUARANTINE_NODE) and fenced is None:
        return failed(f"{name}: {fault.node} was to be quarantined, and was not")
    if action is Action.RESPAWN and fenced is None and not _came_back(fault, events):
        return unknown(f"{name}: the job ended before {fault.node} had a new worker")
    return None


def _replaced(fault: Event, events: Sequence[Event]) -> Event | None:
    own = (e for e in events if e.kind == "failure_detected" and e.worker == fault.worker and e.at >= fault.at)
    return next(own, None)


def _by_another(event: Event, fault: Event, events: Sequence[Event]) -> bool:
    """Whether a further fault explains that its worker was replaced or its node quarantined: one of that worker, or
    one for which the whole node had to go."""
    well = {e.data.get("fault") for e in events if _is_heal(e) and e.at <= fault.at}
    others = [e for e in events if e.kind == "fault_injected" and e is not fault and e.at <= event.at]
    for other in (other for other in others if other.data.get("fault") not in well):
        if other.node == fault.node and _takes_the_node(other):
            return True
        if event.kind == "failure_detected" and other.worker == fault.worker and not is_quiet(other):
            return True
    return False


def _is_heal(event: Event) -> bool:
    return event.kind == "fault_reverted" and event.data.get("alive") is True


def _takes_the_node(fault: Event) -> bool:
    if fault.data.get("kind") == GPU_XID.kind:
        return wanted(fault) in (Action.QUARANTINE_GPU, Action.QUARANTINE_NODE)
    proof = fault.data.get("proof")
    return isinstance(proof, dict) and SEVERAL in proof


def _came_back(fault: Event, events: Sequence[Event]) -> bool:
    """Whether the node has as many workers as before: capacity that returned is seen, not assumed."""
    return any(e.kind == "spare_parked" and e.node == fault.node and e.at > fault.at for e in events)


def _story(fault: Event, events: Sequence[Event]) -> str:
    first = _sightings(fault, events)[0]
    seen = f"{fault.data['fault']}: seen by {first.data.get('source')} after {(first.at - fault.at) / 1e6:.1f} ms"
    replaced = _replaced(fault, events)
    if wanted(fault) is Action.NOTHING or replaced is None:
        return f"{seen}, {wanted(fault)} asked for and done"
    return f"{seen}, acted on after {(replaced.at - fault.at) / 1e6:.1f} ms ({wanted(fault)})"
