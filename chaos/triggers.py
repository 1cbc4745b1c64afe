"""When a fault happens: pure values with their JSON forms.

    {"now": true}  {"at_step": 20}  {"after_s": 5.0}
    {"phase": "backward", "step": 20, "occurrence": 1, "offset_s": 0.1}
    {"recovery_phase": "restore", "occurrence": 1}
    {"poisson": {"mtbf_s": 30, "count": 5}}  {"trace": [1.5, 9, 20]}

A rollback does not fire a fault again, unless its trigger has a `repeat`: how often it may fire in all. The last two
forms stand for many faults at random or given times (`expansion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from chaos.errors import InvalidFault
from chaos.schema import violations
from phoenix_core.timeline import Phase

TRAINING_PHASES: Final = ("forward", "backward", "gradient_sync", "optimizer", "snapshot_copy", "replica_send")
RECOVERY_PHASES: Final = tuple(phase.value for phase in Phase)

# Longer than any run; it also refuses infinity and NaN, which YAML and Python's JSON can both carry.
MOST_SECONDS: Final = 10_000_000
MOST_FAULTS: Final = 1000

Json = Mapping[str, object]


class _Form:
    """The JSON form is the fields; those that are optional are left out where they say nothing."""

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name not in _OPTIONAL or value != field.default:
                document[field.name] = list(value) if isinstance(value, tuple) else value
        return document


_OPTIONAL: Final = ("step", "offset_s", "repeat", "if_running")


@dataclass(frozen=True, kw_only=True)
class Now(_Form):
    """As soon as there is a world to hit."""

    def to_json(self) -> dict[str, object]:
        return {"now": True}


@dataclass(frozen=True, kw_only=True)
class AtStep(_Form):
    """When the target's rank begins this step for the first time (for a spare: when any rank does)."""

    at_step: int
    repeat: int = 1


@dataclass(frozen=True, kw_only=True)
class AfterSeconds(_Form):
    """Seconds after the first step began; for a live request, after the trial accepted it.

    `if_running`: a run that is over by then has missed nothing.
    """

    after_s: float
    if_running: bool = False


@dataclass(frozen=True, kw_only=True)
class OnPhase(_Form):
    """`offset_s` after the target's rank enters a training phase for the `occurrence`-th time (of `step`, if given)."""

    phase: str
    step: int | None = None
    occurrence: int = 1
    offset_s: float = 0.0
    repeat: int = 1


@dataclass(frozen=True, kw_only=True)
class OnRecovery(_Form):
    """`offset_s` after the recovery from an earlier fault enters this phase, the `occurrence`-th time in the trial.

    A phase is entered when its work begins (`underway`): phases overlap.
    """

    recovery_phase: str
    occurrence: int = 1
    offset_s: float = 0.0
    repeat: int = 1


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Faults at random, on average `mtbf_s` apart: so many (`count`), or all that fall before `horizon_s`."""

    mtbf_s: float
    count: int | None = None
    horizon_s: float | None = None

    def __post_init__(self) -> None:
        if self.horizon_s is not None and self.horizon_s / self.mtbf_s > MOST_FAULTS / 2:
            few = f"at most {MOST_FAULTS // 2} faults are planned at once: a greater mtbf_s, or a nearer horizon_s"
            raise InvalidFault(few, field="trigger.poisson.horizon_s")

    def to_json(self) -> dict[str, object]:
        limit = {"count": self.count, "horizon_s": self.horizon_s}
        return {"poisson": {"mtbf_s": self.mtbf_s, **{name: value for name, value in limit.items() if value}}}


@dataclass(frozen=True, kw_only=True)
class Trace(_Form):
    """Faults at given times: seconds after the first step began."""

    trace: tuple[float, ...]


Trigger = Now | AtStep | AfterSeconds | OnPhase | OnRecovery | Poisson | Trace


def trigger_from_json(data: object) -> Trigger:
    """Raises InvalidFault, whose field begins with `trigger`."""
    for violation in violations(data, {"oneOf": trigger_forms()}):
        raise InvalidFault(violation.message, field=f"trigger.{violation.field}".rstrip("."))
    assert isinstance(data, Mapping)
    if "now" in data:
        return Now()
    if "poisson" in data:
        return Poisson(**data["poisson"])
    if "trace" in data:
        return Trace(trace=tuple(float(seconds) for seconds in data["trace"]))
    if "after_s" in data:
        return AfterSeconds(**{**data, "after_s": float(data["after_s"])})
    form: type[OnPhase | OnRecovery | AtStep] = OnPhase
    form = OnRecovery if "recovery_phase" in data else AtStep if "at_step" in data else form
    return form(**data)


def trigger_forms() -> list[dict[str, object]]:
    """The JSON Schema of each form."""
    whole, count = {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 1}
    seconds = {"type": "number", "minimum": 0, "maximum": MOST_SECONDS}
    repeat = {**count, "maximum": MOST_FAULTS, "default": 1}
    again = {"occurrence": {**count, "default": 1}, "offset_s": {**seconds, "default": 0}, "repeat": repeat}
    return [
        _only({"now": {"const": True}}),
        _only({"at_step": whole}, repeat=repeat),
        _only({"after_s": seconds}, if_running={"type": "boolean", "default": False}),
        _only({"phase": {"enum": list(TRAINING_PHASES)}}, step=whole, **again),
        _only({"recovery_phase": {"enum": list(RECOVERY_PHASES)}}, **again),
        _only({"poisson": {"oneOf": poisson_forms()}}),
        _only({"trace": {"type": "array", "items": seconds, "minItems": 1, "maxItems": MOST_FAULTS}}),
    ]


def poisson_forms(**required: object) -> list[dict[str, object]]:
    """The JSON Schemas of faults at random times, with what else they must have."""
    seconds = {"type": "number", "minimum": 0.1, "maximum": MOST_SECONDS}
    count = {"type": "integer", "minimum": 1, "maximum": MOST_FAULTS}
    return [_only({**required, "mtbf_s": seconds, **limit}) for limit in ({"count": count}, {"horizon_s": seconds})]


def _only(required: Mapping[str, object], **others: object) -> dict[str, object]:
    properties = {**required, **others}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
