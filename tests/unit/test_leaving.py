"""Where a loop over steps ends before its last step."""

from __future__ import annotations

import pytest
import torch

from phoenix_core.errors import UsageError
from phoenix_core.lastwords import last_words
from phoenix_core.training import Session


@pytest.fixture
def session() -> Session:
    """In a world of one, which takes no rank."""
    made, model = Session(), torch.nn.Linear(1, 1)
    made.protect(model=model, optimizer=torch.optim.SGD(model.parameters()))
    return made


def test_a_replacement_is_not_given_the_step_at_which_its_twin_had_left(session: Session) -> None:
    session.rank_state.gate.left = 2
    seen = []
    for step in session.steps(5):
        with step:
            seen.append(step.index)
    assert seen == [0, 1]


def test_who_leaves_its_loop_tells_where(session: Session) -> None:
    for step in session.steps(5):
        with step:
            pass
        if step.index == 3:
            break
    assert session.rank_state.gate.told(3).left is None
    session.close(None)
    assert session.rank_state.gate.told(3).left == 3


def test_a_checkpoint_beyond_the_last_step_is_refused_before_training_begins(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.rank_state.begins_at = 6
    monkeypatch.setattr(session.rank_state, "begin", lambda _: pytest.fail("it has told that it is restored"))
    with pytest.raises(UsageError, match=r"is of step 6, but steps\(5\) ends before"):
        next(iter(session.steps(5)))


@pytest.mark.parametrize(
    ("error", "said"), [(AssertionError(), "AssertionError"), (ValueError("bad"), "ValueError: bad")]
)
def test_what_a_script_raised_is_passed_on(error: Exception, said: str) -> None:
    assert last_words(error) == ("script_failed", {"error": said})


def test_a_process_group_that_a_replacement_would_not_make_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, groups = session.rank_state, [object()]
    for name in ("attach", "begin", "arrive"):
        monkeypatch.setattr(state, name, lambda *_: None)
    monkeypatch.setattr(state, "size", 2)
    monkeypatch.setattr(state.hub, "groups", lambda: groups)
    loop = session.steps(5)
    next(loop)
    groups.append(object())
    state.boundary = 1
    with pytest.raises(UsageError, match="a process group was made in the loop"):
        next(loop)
