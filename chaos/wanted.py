"""What the runtime is to do about an injected fault: what the catalogue asks for after an Xid, and who may go on."""

from __future__ import annotations

from chaos.kinds import FAULT_KINDS
from chaos.kinds_gpu import GPU_XID
from chaos.nvml.effects import asked_for, default_effect
from phoenix_core.events import Event
from phoenix_core.xids import Action


def asks_for_nothing(fault: Event) -> bool:
    """Whether it is an Xid that informs, or follows from something else: nobody may be taken out for it."""
    return fault.data.get("kind") == GPU_XID.kind and wanted(fault) is Action.NOTHING


def is_quiet(fault: Event) -> bool:
    """Whether nobody has failed because of it, and nobody may be replaced for it."""
    kind = FAULT_KINDS.get(str(fault.data.get("kind")))
    return asks_for_nothing(fault) or (kind is not None and kind.quiet)


def wanted(fault: Event) -> Action:
    """What the catalogue asks for. A process that was killed, or met an error, is replaced in any case."""
    params = fault.data["params"]
    assert isinstance(params, dict)
    xids = [params["xid"], *params["then"]]
    action = asked_for(xids, params["recovery"], all_gpus=_whole_node(fault))
    effect = default_effect(xids[0]) if params["effect"] == "default" else params["effect"]
    if action is Action.NOTHING and effect != "none" and fault.rank is not None:
        return Action.RESPAWN
    return action


def _whole_node(fault: Event) -> bool:
    proof = fault.data.get("proof")
    return isinstance(proof, dict) and len(proof.get("gpus", ())) > 1
