"""Parameters of a fault that each are in order, but of which one would be ignored beside the others. Pure.

What a user writes happens, or the scenario is refused: a value without an effect would say of the trial what is not so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.nvml.effects import default_effect
from chaos.nvml.xid_lines import LOST, RECOVERY_CHANGED

Json = Mapping[str, object]


def contradiction(kind: str, params: Json) -> tuple[str, str] | None:
    """(parameter, what is wrong with it and what to do) of the first one; `params` has its defaults and is valid."""
    if kind == "network_partition":
        return _of_periods(params)
    if kind == "gpu_xid":
        return _of_an_xid(params)
    return None


def _of_periods(params: Json) -> tuple[str, str] | None:
    count, ttl_s = int(str(params["count"])), float(str(params["ttl_s"]))
    if "period_s" not in params:
        without = "counts periods, and without period_s there are none: give both, or leave it out"
        return None if count == 1 else ("count", without)
    period_s = float(str(params["period_s"]))
    lasts_s = (count - 0.5) * period_s  # the last half of the last period is whole, as it is without a fault
    if lasts_s <= ttl_s:
        return None
    return (
        "ttl_s",
        f"is over after {ttl_s:g} s, and {count} periods of {period_s:g} s take {lasts_s:g} s: make it longer",
    )


def _of_an_xid(params: Json) -> tuple[str, str] | None:
    xid, then, effect = int(str(params["xid"])), params["then"], str(params["effect"])
    assert isinstance(then, Sequence)
    if params["numberless"] and xid != LOST:
        return "xid", f"the log tells only of a lost GPU ({LOST}) without a number: set it to {LOST}, or no numberless"
    if "words" in params and params["numberless"]:
        return "words", "a lost GPU that the log tells of without a number has words of its own: leave one of them out"
    if "words" in params and params["witnesses"] == "nvml":
        return "words", "nothing is written to the log where witnesses is nvml: leave one of them out"
    if params["recovery"] != 1 and RECOVERY_CHANGED not in (xid, *then):
        return "recovery", f"only Xid {RECOVERY_CHANGED} announces it: add {RECOVERY_CHANGED} to then, or leave it out"
    met = default_effect(xid) if effect == "default" else effect
    if "code" in params and met != "raise":
        return "code", f"no error is raised, the effect of this Xid is {met}: set effect to raise, or leave it out"
    return None
