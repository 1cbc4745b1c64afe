"""Trace files: times of faults, one in seconds a line, as a cluster's log gives them."""

from __future__ import annotations

from pathlib import Path

from chaos.errors import InvalidScenario
from chaos.triggers import MOST_FAULTS

# A thousand times and a comment on each.
_MOST_LETTERS = 200_000


def read_traces(document: object, directory: Path) -> None:
    """Put the times of `{"trace_file": NAME}` into each trigger of a scenario document that names such a file.

    Raises InvalidScenario for a file that is no trace. What else is wrong with the document is found later.
    """
    faults = document.get("faults") if isinstance(document, dict) else None
    for index, fault in enumerate(faults if isinstance(faults, list) else ()):
        trigger = fault.get("trigger") if isinstance(fault, dict) else None
        if isinstance(trigger, dict) and list(trigger) == ["trace_file"]:
            try:
                fault["trigger"] = {"trace": read_trace(directory / str(trigger["trace_file"]))}
            except InvalidScenario as error:
                raise InvalidScenario(error.reason, field=f"faults[{index}].trigger.trace_file") from error


def read_trace(path: Path) -> list[float]:
    """Raises InvalidScenario for a file that is none. Empty lines and what follows a `#` say nothing."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_LETTERS + 1)
    except (OSError, ValueError) as error:
        raise InvalidScenario(f"cannot read {path}: {getattr(error, 'strerror', None) or 'no text'}") from error
    if len(text) > _MOST_LETTERS:  # what is beyond would be faults that nobody plans, and the last time half a number
        raise InvalidScenario(f"{path} holds more than {_MOST_LETTERS} characters: no trace is that long")
    times = []
    for number, line in enumerate(text.splitlines(), 1):
        if said := line.partition("#")[0].strip():
            try:
                times.append(float(said))
            except ValueError:
                raise InvalidScenario(f"{path}:{number}: {said[:40]!r} is no number of seconds") from None
    if len(times) > MOST_FAULTS:
        raise InvalidScenario(f"{path} holds {len(times)} times; at most {MOST_FAULTS} are planned at once")
    return times
