"""The leak check must find what it exists to find."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import MARKER, belongings, wait_until


@pytest.mark.process
def test_an_orphan_in_a_session_of_its_own_is_found(tmp_path: Path) -> None:
    """The child starts a grandchild in a new session and dies: only the environment tells whose it is."""
    pid_file = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid))\n"
    )
    marker = os.environ[MARKER]
    before = belongings(marker)
    subprocess.run([sys.executable, "-c", code, str(pid_file)], check=True)
    orphan = int(pid_file.read_text())
    try:
        wait_until(lambda: any("sleep" in line for line in belongings(marker).beyond(before)), "the orphan to be seen")
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_open_files_and_threads_are_found(tmp_path: Path) -> None:
    before = belongings("none")
    with (tmp_path / "file").open("w"):
        assert any("file descriptor" in line for line in belongings("none").beyond(before))
    assert belongings("none").beyond(before) == []
