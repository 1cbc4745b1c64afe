"""The three-valued verdict. What could not be judged is UNKNOWN, and UNKNOWN never counts as PASS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A violation that was seen outweighs what could not be judged; nothing judged at all is UNKNOWN."""
    seen = set(verdicts)
    if Verdict.FAIL in seen:
        return Verdict.FAIL
    return Verdict.PASS if seen == {Verdict.PASS} else Verdict.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found; `detail` is one sentence for people."""

    verdict: Verdict
    detail: str

    def to_json(self) -> dict[str, object]:
        return {"verdict": self.verdict.value, "detail": self.detail}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> CheckResult:
        return CheckResult(verdict=Verdict(str(data["verdict"])), detail=str(data["detail"]))


def passed(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.PASS, detail=detail)


def failed(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.FAIL, detail=detail)


def unknown(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.UNKNOWN, detail=detail)


def count(number: int, singular: str, plural: str = "") -> str:
    """`1 fault`, `2 faults`: how details name a number of things."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
