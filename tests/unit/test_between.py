"""The loop's code after a broken step: what it does to parameters is undone before the step begins again."""

from __future__ import annotations

import pytest
import torch

from phoenix_core import advice
from phoenix_core.between import BetweenSteps
from phoenix_core.snapshot import Protected


class Script:
    """A model, and an average of its weights that the loop keeps outside of the block."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.protected = Protected()
        self.protected.add({"model": self.model, "average": self.average})
        self.between = BetweenSteps(self.protected)

    def step(self) -> None:
        self.between.arrive()
        with torch.no_grad():
            self.model.weight.add_(1)
        self.between.left()

    def breaks(self) -> None:
        self.between.arrive()
        self.between.broke(self.protected.capture_start(), self.protected.capture_small({}))

    def after(self) -> None:
        self.average.update_parameters(self.model)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr("phoenix_core.between.say_once", texts.append)
    return texts


def test_what_the_loop_did_after_a_broken_step_is_undone(said: list[str]) -> None:
    calm, rough = Script(), Script()
    rough.model.load_state_dict(calm.model.state_dict())
    rough.average.load_state_dict(calm.average.state_dict())
    for script in (calm, rough):
        for number in range(4):
            if script is rough and number in (2, 3):
                script.breaks()
                script.after()
            script.step()
            script.after()
    assert rough.protected.digests() == calm.protected.digests()
    assert said == []


def test_what_the_loop_never_did_before_is_said(said: list[str]) -> None:
    script = Script()
    script.step()
    script.breaks()
    assert script.between.again
    script.after()
    script.between.arrive()
    assert said == [advice.CHANGED_OUTSIDE] and not script.between.again
