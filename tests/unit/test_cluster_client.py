"""The trial's end of the process that holds network faults: what it says of a fault is so, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.cluster import client
from chaos.cluster.client import HandClient
from chaos.errors import TargetGone

HAND = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    name = order.get("apply")
    how = "revert" if "revert" in order else "verify"
    answer = {"applied": name, "at": 1, "proof": {}} if name else {"reverted": 1, "healed": True, "proof": {"by": how}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers and does nothing."""
    started = subprocess.Popen

    def start(_: list[str], **how: Any) -> subprocess.Popen[bytes]:
        return started([sys.executable, "-S", "-c", HAND], **how)

    monkeypatch.setattr("chaos.cluster.client.subprocess.Popen", start)


def test_who_does_not_answer_is_ended_with_all_that_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    with HandClient(tmp_path / "never.json") as hand:
        os.kill(hand._process.pid, signal.SIGSTOP)
        with pytest.raises(TargetGone, match=r"did not answer within 0.05 s, and was ended with all that it held"):
            hand.part("cut", [])
        assert hand._process.wait(30) == -signal.SIGKILL
        monkeypatch.setattr(client, "ANSWER_S", 60.0)
        with pytest.raises(TargetGone, match="has ended"):  # the next one has no cluster
            hand.part("next", [])


def test_each_fault_that_a_killed_hand_held_is_over_and_looked_at_by_the_next(tmp_path: Path, fake_hand: None) -> None:
    with HandClient(tmp_path / "net.json") as hand:
        for fault in ("one", "two"):
            hand.part(fault, [])
        assert (hand.over("one"), hand.over("two")) == ("", "")
        hand._process.kill()
        hand._process.wait(30)
        for fault in ("one", "two"):  # the first has another hand started: the second is not held by that one
            assert hand.over(fault) == "the process that held it was killed"
            assert hand.revert(fault) == {"reverted": 1, "healed": True, "proof": {"by": "verify"}}
        hand.part("three", [])
        assert hand.over("three") == ""
        assert hand.revert("three")["proof"] == {"by": "revert"}
