"""States in memory: never more than are needed, and never one dropped that is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.kept import SLACK, KeptStates, Ledger

OWNER, LIMIT, SIZE = 3, 2, 6_400
BOUND = LIMIT * (SIZE + SIZE // SLACK)


def fill(states: KeptStates, boundary: int, size: int = SIZE, owner: int = OWNER) -> memoryview:
    room = states.room(owner, boundary, size, LIMIT)
    room[:] = bytes([boundary % 251]) * size
    return room


def write(states: KeptStates, boundary: int, size: int = SIZE, owner: int = OWNER) -> None:
    states.put(owner, boundary, fill(states, boundary, size, owner), LIMIT)


def assert_intact(states: KeptStates, boundary: int) -> None:
    assert states.get(OWNER, boundary) == bytes([boundary % 251]) * SIZE


@settings(deadline=None)
@given(st.lists(st.sampled_from(["step", "torn", "back", "again", "again, torn"]), max_size=40))
def test_the_boundary_that_may_be_needed_is_never_overwritten(story: Sequence[str]) -> None:
    """As a holder or an owner lives it: a boundary is sent only once the one before is safe; a failure takes the job
    back to the last safe one, of which the owner then sends its state again."""
    states, safe = KeptStates(), 0
    write(states, safe)
    for event in story:
        match event:
            case "step":
                room = fill(states, safe + 1)
                assert_intact(states, safe)
                states.put(OWNER, safe + 1, room, LIMIT)
                safe += 1
            case "torn":
                fill(states, safe + 1)  # the sender was gone before all of it had come
            case "back":
                write(states, safe + 1)
                assert_intact(states, safe)
                states.forget_after(safe)
            case "again":
                write(states, safe)
            case "again, torn":
                fill(states, safe)[: SIZE // 2] = bytes(SIZE // 2)
        assert_intact(states, safe)
        memory = states.memory()
        assert memory.now <= memory.most <= BOUND


def test_a_thousand_steps_take_what_the_second_took() -> None:
    states = KeptStates()
    for boundary in range(1000):
        write(states, boundary, SIZE + boundary % 100)
    assert states.boundaries() == {OWNER: (998, 999)}
    assert states.memory().most <= BOUND + 2 * 100 * (1 + 1 / SLACK)


def test_rooms_grow_with_the_state_and_the_small_ones_are_given_back() -> None:
    states = KeptStates()
    for boundary in range(3):
        write(states, boundary, SIZE // 4)
    for boundary in range(3, 6):
        write(states, boundary)
    assert states.memory().now == BOUND and states.memory().most == BOUND


def test_who_moved_away_leaves_nothing_behind() -> None:
    states = KeptStates()
    for owner in (1, 2):
        for boundary in range(3):
            write(states, boundary, owner=owner)
    states.keep_only([2])
    assert states.boundaries() == {2: (1, 2)}
    assert states.memory().now == BOUND and states.memory().most == 2 * BOUND
    with pytest.raises(SnapshotUnavailable, match="no state of rank 1 at step 2"):
        states.get(1, 2)


def test_the_same_state_put_again_keeps_its_room() -> None:
    states = KeptStates()
    write(states, 7)
    states.put(OWNER, 7, states.get(OWNER, 7), LIMIT)
    write(states, 8)
    assert_intact(states, 7)
    assert states.memory().now == BOUND


def test_memory_is_told_of_first_and_when_it_changes_by_much() -> None:
    own, held, ledger = KeptStates(), KeptStates(), Ledger()
    write(own, 0)
    first = ledger.changed(own, held)
    assert first is not None and first["own_bytes"] == BOUND // 2 and first["held_of"] == []
    assert ledger.changed(own, held) is None
    own.put(OWNER + 1, 0, b"x" * (BOUND // 20))
    assert ledger.changed(own, held) is None
    write(held, 0)
    second = ledger.changed(own, held)
    assert second is not None and second["held_of"] == [OWNER] and second["held_most"] == BOUND // 2
