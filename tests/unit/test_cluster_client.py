"""The trial's end of the process that holds network faults: what it calls missed cannot happen later."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from chaos.cluster import client
from chaos.cluster.client import HandClient
from chaos.errors import TargetGone


def test_who_does_not_answer_is_ended_with_all_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    with HandClient(tmp_path / "never.json") as hand:
        os.kill(hand._process.pid, signal.SIGSTOP)
        with pytest.raises(TargetGone, match=r"did not answer within 0.05 s, and was ended with all that it held"):
            hand.part("cut", [])
        assert hand._process.wait(30) == -signal.SIGKILL
        with pytest.raises(TargetGone, match="has ended"):
            hand.part("next", [])
