"""Plans that stand for many faults, as the faults that they stand for. Pure: every choice comes from the seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from chaos.errors import InvalidFault
from chaos.faults import PlannedFault
from chaos.kinds import Scope
from chaos.mixes import MIXES
from chaos.triggers import MOST_FAULTS, AfterSeconds, Poisson, Trace, poisson_forms


def expand(fault: PlannedFault, seed: int) -> tuple[PlannedFault, ...]:
    """The single faults, `ID-1`, `ID-2`, ...; one that stands for itself stays as it is."""
    trigger = fault.trigger
    if isinstance(trigger, Trace):
        times = [AfterSeconds(after_s=seconds) for seconds in sorted(trigger.trace)]
    elif isinstance(trigger, Poisson):
        times = list(poisson_times(trigger, Random(f"{seed}/{fault.id}/times")))
    else:
        return (fault,)
    return tuple(replace(fault, id=f"{fault.id}-{index}", trigger=when) for index, when in enumerate(times, 1))


def repeat_id(fault: PlannedFault, time: int) -> str:
    """The id of the receipt of the `time`-th time that a fault fires."""
    return fault.id if time == 1 else f"{fault.id}.{time}"


def repeat_ids(fault: PlannedFault) -> frozenset[str]:
    """Those beside its own under which a fault may fire: no other may have one, or one receipt would do for both."""
    return frozenset(repeat_id(fault, time) for time in range(2, getattr(fault.trigger, "repeat", 1) + 1))


def single(fault: PlannedFault) -> PlannedFault:
    """The fault itself. Raises InvalidFault for one that stands for many: a live request asks for one."""
    if isinstance(fault.trigger, Poisson | Trace):
        raise InvalidFault("a plan of many faults belongs into a scenario; a request is one fault", field="trigger")
    return fault


def poisson_times(trigger: Poisson, random: Random) -> Iterator[AfterSeconds]:
    """Exponentially distributed gaps. What a horizon allows and the run does not live to see is not missed."""
    at, planned = 0.0, 0
    while planned < (MOST_FAULTS if trigger.count is None else trigger.count):
        at += random.expovariate(1 / trigger.mtbf_s)
        if trigger.horizon_s is not None and at >= trigger.horizon_s:
            return
        planned += 1
        yield AfterSeconds(after_s=round(at, 6), if_running=trigger.count is None)


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Faults of a mix at random times, each on a rank drawn anew: a whole cluster's bad days in a few minutes."""

    mix: str
    times: Poisson

    def to_json(self) -> dict[str, object]:
        times = self.times.to_json()["poisson"]
        assert isinstance(times, dict)
        return {"mix": self.mix, **times}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Campaign:
        """Of a document that fits `campaign_schema`. Raises InvalidFault."""
        return Campaign(mix=data["mix"], times=Poisson(**{name: data[name] for name in data if name != "mix"}))

    def expand(self, seed: int, *, isolated: bool) -> tuple[PlannedFault, ...]:
        """`isolated`: whether the nodes have networks of their own, without which no network can be broken."""
        causes = [cause for cause in MIXES[self.mix] if isolated or cause.scope is not Scope.NETWORK]
        planned = []
        for index, when in enumerate(poisson_times(self.times, Random(f"{seed}/campaign/times")), 1):
            draw = Random(f"{seed}/campaign/{index}")
            cause = draw.choices(causes, weights=[cause.seen for cause in causes])[0]
            plan = {"kind": cause.kind, "target": {"random_rank": True}, "trigger": when.to_json()}
            told = {"id": f"campaign-{index}", "params": cause.params, "reason": f"{self.mix}: {cause.name}"}
            planned.append(PlannedFault.from_json({**plan, **told}))
        return tuple(planned)


def campaign_schema() -> dict[str, object]:
    """The JSON Schema of a scenario's `campaign`."""
    return {"oneOf": poisson_forms(mix={"enum": list(MIXES)})}
