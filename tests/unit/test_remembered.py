"""What the service remembers of a history, and when it forgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.remembered import Remembered


def making(value: bytes, made: list[bytes]) -> Callable[[], bytes]:
    def make() -> bytes:
        made.append(value)
        return value

    return make


def test_it_is_made_once_for_each_state() -> None:
    remembered: Remembered[bytes] = Remembered(most=10, weight=len)
    made: list[bytes] = []
    for state in (1, 1, 2, 2, 1):
        assert remembered.value((state, "key"), making(b"value", made)) == b"value"
    assert len(made) == 2


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    remembered: Remembered[bytes] = Remembered(most=6, weight=len)
    made: list[bytes] = []
    for value in (b"aa", b"bb", b"cc", b"aa", b"dd", b"aa", b"bb"):
        remembered.value(value, making(value, made))
    assert made == [b"aa", b"bb", b"cc", b"dd", b"bb"]
    assert remembered.value("too much", making(b"1234567", made)) == b"1234567"
    assert remembered.value(b"aa", making(b"aa", made)) == b"aa"


def test_what_fails_is_not_remembered() -> None:
    remembered: Remembered[bytes] = Remembered(most=10, weight=len)

    def fail() -> bytes:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            remembered.value("key", fail)
    made: list[bytes] = []
    assert remembered.value("key", making(b"there", made)) == b"there"
