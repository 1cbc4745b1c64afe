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


def test_it_is_made_once_until_the_history_changes() -> None:
    remembered: Remembered[bytes] = Remembered(most=10, weight=len)
    made: list[bytes] = []
    for state in (1, 1, 2, 2, 1):
        assert remembered.value(state, "key", making(b"value", made)) == b"value"
    assert len(made) == 3


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    remembered: Remembered[bytes] = Remembered(most=6, weight=len)
    made: list[bytes] = []
    for value in (b"aa", b"bb", b"cc", b"aa", b"dd", b"aa", b"bb"):
        remembered.value(1, value, making(value, made))
    assert made == [b"aa", b"bb", b"cc", b"dd", b"bb"]
    assert remembered.value(1, "too much", making(b"1234567", made)) == b"1234567"
    assert remembered.value(1, b"aa", making(b"aa", made)) == b"aa"


def test_what_fails_is_not_remembered() -> None:
    remembered: Remembered[bytes] = Remembered(most=10, weight=len)

    def fail() -> bytes:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            remembered.value(1, "key", fail)
    made: list[bytes] = []
    assert remembered.value(1, "key", making(b"there", made)) == b"there"


def test_what_a_slow_one_makes_of_an_older_history_is_not_kept() -> None:
    remembered: Remembered[bytes] = Remembered(most=10, weight=len)

    def slow() -> bytes:
        remembered.value(2, "other", lambda: b"newer")  # somebody else asks meanwhile
        return b"old"

    assert remembered.value(1, "key", slow) == b"old"
    assert remembered.value(2, "key", lambda: b"new") == b"new"
