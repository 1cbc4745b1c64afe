"""The command while it is being loaded."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

import pytest

import service
from service.entry import main


def test_a_ctrl_c_while_the_command_is_loaded_ends_it_and_a_later_one_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading, running = [], []

    def load(name: str) -> object:
        loading.append(signal.getsignal(signal.SIGINT))
        return SimpleNamespace(main=lambda: running.append(signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.delitem(sys.modules, "service.cli", raising=False)
    monkeypatch.delattr(service, "cli", raising=False)
    monkeypatch.setattr(service, "__getattr__", load, raising=False)
    main()
    assert set(loading) == {signal.SIG_DFL} and running == [before]
