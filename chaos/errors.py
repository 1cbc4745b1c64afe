"""Every error that chaos raises on purpose; the message says what was wrong, where, and what to do."""

from __future__ import annotations


class ChaosError(Exception):
    """Base of all errors of the harness."""


class InvalidFault(ChaosError):
    """A fault that cannot be planned as asked; `field` names the part at fault (`target.rank`)."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = message


class UnknownFaultKind(InvalidFault):
    """No such kind is registered."""


class InvalidScenario(ChaosError):
    """A scenario that cannot be run; `source`, `line` (1-based) and `field` say where, if known."""

    def __init__(self, message: str, *, source: str = "", line: int | None = None, field: str = "") -> None:
        where = f"{source}:{line}" if source and line is not None else source
        super().__init__(": ".join(part for part in (where, field, message) if part))
        self.reason = message
        self.source = source
        self.line = line
        self.field = field


class TargetGone(ChaosError):
    """The process that a fault was meant for has ended, or was never there: the fault is missed."""


class Unsupported(InvalidScenario):
    """Nothing is wrong with the scenario, but this machine cannot do what it asks; refused before the trial starts."""


class TrialError(ChaosError):
    """The harness could not run a trial (directory, disk, a broken spec.json). Never a verdict on the runtime."""
