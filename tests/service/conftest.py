"""Fixtures of the service's tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.service.helpers import Harness, harness

# Stands for a trial's process: it lives until its standard input, or the file `end` in its directory, says otherwise.
LIVING = """
import pathlib, sys, time
directory = pathlib.Path(sys.argv[1])
(directory / "begun").write_text("yes")
while not (directory / "end").exists():
    time.sleep(0.005)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A service whose trials are processes that do nothing, so that a test plays them."""
    directory = tmp_path / "data"
    yield Settings(directory=directory, trial_command=(sys.executable, "-c", LIVING))
    for trial in directory.glob("trials/*"):
        (trial / "end").touch()


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Harness]:
    async with harness(settings) as opened:
        yield opened
