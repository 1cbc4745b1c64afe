"""Fixtures and marks that all tests share."""

from __future__ import annotations

import gc
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import MARKER, belongings

LEAK_DEADLINE_S = 10.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    by_mark = {mark: [item for item in items if item.get_closest_marker(mark)] for mark in ("gpu", "root")}
    if by_mark["gpu"] and (reason := _no_gpu()):
        for item in by_mark["gpu"]:
            item.add_marker(pytest.mark.skip(reason=reason))
    if by_mark["root"] and os.geteuid() != 0:
        for item in by_mark["root"]:
            item.add_marker(pytest.mark.skip(reason="needs the rights of root; this is user id " + str(os.geteuid())))


def _no_gpu() -> str:
    import torch  # takes seconds, so only sessions that hold such a test pay for it

    return "" if torch.cuda.is_available() else "needs a CUDA device; torch.cuda.is_available() is False"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed fault test names the directory that holds its events and logs."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("run_dir")
    if directory is not None and report.when == "call" and report.failed:  # type: ignore[attr-defined]
        report.sections.append(("run directory", str(directory)))  # type: ignore[attr-defined]
    return report


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty directory for one run; it is kept by pytest and named when the test fails."""
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After a test marked `process`: whatever it started, opened or mapped must be gone again.

    Endings take a moment, so the comparison is repeated until a deadline. What is left is ended here
    (it would disturb the tests after it) and the test fails.
    """
    if request.node.get_closest_marker("process") is None:
        yield
        return
    marker = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, marker)
    before = belongings(marker)
    yield
    gc.collect()
    deadline = time.monotonic() + LEAK_DEADLINE_S
    while (left := belongings(marker)).beyond(before) and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = left.beyond(before)
    for pid, _ in left.processes - before.processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if lines:
        pytest.fail("left behind by this test:\n  " + "\n  ".join(lines), pytrace=False)
