"""A survivor leaves a collective whose bytes stopped half way: gloo itself never ends that wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "mid_body.py"

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.mark.parametrize("how", [pytest.param("future", marks=pytest.mark.soak), "message"])
def test_a_transfer_that_stopped_half_way_is_left(how: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen([*command, "1", store, how]) as sender:
        receiver = subprocess.run([*command, "0", store, how], stdout=subprocess.PIPE, text=True, timeout=60)
        sender.kill()
    assert receiver.stdout == ("future ended 1\n" if how == "future" else "") + "superseded 1 True\n"
    assert receiver.returncode == 0, "the process could not end with a collective in flight"
