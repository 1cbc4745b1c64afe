"""How often a coordinator is started again, and when the job is over; the coordinators are one-line shell scripts."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from phoenix_core.keeper import CRASHES, Keeper

pytestmark = pytest.mark.process
CRASH, COMPLETED, DEFECT = "kill -KILL $$", "exit 0", "exit 3"


def led_by(*scripts: str) -> tuple[int, int]:
    """The exit code, and how many coordinators were started."""
    waiting = list(scripts)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(["sh", "-c", waiting.pop(0)], text=True)

    with socket.create_server(("127.0.0.1", 0)) as store:
        code = asyncio.run(Keeper(start, lambda: None).run(store, "token"))
    return code, len(scripts) - len(waiting)


@pytest.mark.parametrize("code", [0, 1, 130])
def test_a_coordinator_that_has_ended_the_job_is_the_last(code: int) -> None:
    assert led_by(f"exit {code}", COMPLETED) == (code, 1)


def test_one_that_ended_without_a_word_is_followed_by_another(capfd: pytest.CaptureFixture[str]) -> None:
    assert led_by(CRASH, DEFECT, COMPLETED) == (0, 3)
    told = capfd.readouterr().err
    assert "ended by signal 9; another one is started" in told and "ended with exit code 3; another" in told


def test_a_fourth_end_within_a_minute_is_one_too_many(capfd: pytest.CaptureFixture[str]) -> None:
    assert led_by(*[CRASH] * 9) == (1, CRASHES + 1)
    assert "was ended by signal 9, for the 4th time within 60 s; the job stops" in capfd.readouterr().err


def test_whoever_is_interrupted_is_followed_by_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        keeper = Keeper(lambda: subprocess.Popen(["sh", "-c", "exec sleep 60"], text=True), lambda: 15)
        assert asyncio.run(keeper.run(store, "token")) == -15


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.parametrize(
    ("told_to", "code", "why"), [("end", -9, "told to end"), ("lead nobody", 1, "agent has ended")]
)
def test_one_that_is_stopped_does_not_keep_the_launcher_waiting(
    capfd: pytest.CaptureFixture[str], told_to: str, code: int, why: str
) -> None:
    started: list[subprocess.Popen[str]] = []
    told_at: list[int] = []

    def start() -> subprocess.Popen[str]:
        started.append(subprocess.Popen(["sh", "-c", "kill -STOP $$; sleep 60"], text=True))
        return started[0]

    def interrupted() -> int | None:
        if told_to == "end" and not told_at and is_stopped(started[0]):
            told_at.append(signal.SIGTERM)
        return told_at[0] if told_at else None

    with socket.create_server(("127.0.0.1", 0)) as store:
        keeper = Keeper(start, interrupted, lambda: told_to != "end" and is_stopped(started[0]), patience_s=0.5)
        assert asyncio.run(asyncio.wait_for(keeper.run(store, "token"), 30)) == code
    told = capfd.readouterr().err
    assert told.count("does not answer") == 1 and why in told
