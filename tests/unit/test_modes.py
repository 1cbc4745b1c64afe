"""No interruption leaves a mode of torch switched on, at whatever instant it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch

from phoenix_core import training
from phoenix_core.modes import Modes, is_switching
from phoenix_core.training import Session, Step, StepInterrupted


def script() -> None: ...


def layer() -> None: ...


class Manager:
    """Counts how often it was entered and not left."""

    inside = 0

    def __enter__(self) -> None:
        Manager.inside += 1

    def __exit__(self, *_: object) -> None:
        Manager.inside -= 1


@contextmanager
def made_of_a_generator() -> Iterator[None]:
    Manager.inside += 1
    try:
        yield
    finally:
        Manager.inside -= 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, Manager.inside = Modes.now(), 0
    yield
    before.put_back()


@pytest.mark.parametrize(
    ("stack", "switching"),
    [
        ([script], False),
        ([layer, script], False),
        ([Manager.__enter__, script], True),
        ([layer, Manager.__exit__, layer, script], True),
        ([layer, script, Manager.__enter__], False),
        ([torch.set_grad_enabled.__init__, script], True),
        ([torch.autocast.__init__, script], False),
        ([ExitStack.enter_context, script], True),
    ],
)
def test_what_counts_are_the_frames_inside_of_the_step(stack: list[Any], switching: bool) -> None:
    codes: list[CodeType] = [function.__code__ for function in stack]
    assert is_switching(codes, script.__code__) == switching
    assert is_switching(codes, None) == (switching or stack[-1] is Manager.__enter__)


def test_modes_are_put_back_as_they_were() -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        before = Modes.now()
        torch.set_grad_enabled(False)
        torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False).__enter__()
        torch.set_autocast_enabled("cuda", True)
        assert Modes.now() != before
        before.put_back()
        assert Modes.now() == before
        torch.autocast_decrement_nesting()
        before.put_back()
        assert Modes.now() == before
    assert not torch.is_autocast_enabled("cpu")


def test_casts_of_a_broken_step_are_not_kept() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = Modes.now()
        torch.mm(weight, weight)
        with torch.no_grad():
            weight.add_(1)
        before.put_back()
        assert torch.mm(weight, weight)[0, 0] == 8


def train(session: Session) -> None:
    """Enters and leaves for ever."""
    session.let_interrupt(train.__code__)
    while True:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            len("")
        with Manager(), made_of_a_generator():
            len("")
        with ExitStack() as stack:
            stack.enter_context(Manager())
            stack.enter_context(made_of_a_generator())
            len("")


def test_an_interruption_at_whatever_instant_leaves_nothing_on() -> None:
    session, before = Session(), Modes.now()
    handler = signal.signal(signal.SIGPROF, session._on_signal)
    try:
        signal.setitimer(signal.ITIMER_PROF, 1e-3, 1e-3)  # not the clock's timer, which ends tests that hang
        for _ in range(60):
            with suppress(StepInterrupted):
                train(session)
            assert (Modes.now(), Manager.inside) == (before, 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def test_a_manager_that_computes_for_long_is_interrupted_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()

    class Slow:
        def __enter__(self) -> None:
            for now, is_over in ((5.0, False), (5.9, False), (6.0, True)):
                monkeypatch.setattr("phoenix_core.training.time.monotonic", partial(float, now))
                with pytest.raises(StepInterrupted) if is_over else nullcontext():
                    signal.raise_signal(training.SIGNAL)

        def __exit__(self, *_: object) -> None: ...

    handler = signal.signal(training.SIGNAL, session._on_signal)
    try:
        session.let_interrupt(script.__code__)
        with Slow():
            pass
        assert not session.interruptible
    finally:
        signal.signal(training.SIGNAL, handler)


def test_a_broken_step_leaves_its_generators_before_its_modes_are_put_back() -> None:
    """One that waits inside of a context manager leaves that when it is let go, and switches what was on there."""
    seen = []
    session: Any = SimpleNamespace(
        rank_state=SimpleNamespace(begin_step=lambda _: None),
        let_interrupt=lambda _: None,
        is_healable=lambda _: True,
        recover=lambda _: seen.append(Modes.now()),
    )
    before = Modes.now()

    def layers() -> Iterator[int]:
        with torch.autocast("cpu", enabled=False):
            yield 1

    def forward() -> None:
        running = layers()
        torch.set_autocast_enabled("cpu", True)  # an interruption in autocast's own code has left it on
        next(running)
        raise StepInterrupted

    with Step(session):
        forward()
    assert seen == [before]
    assert Modes.now() == before
