"""What a script's collectives give does not depend on whose group they go through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "collectives.py"

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_every_collective_gives_what_gloo_gives(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT)]
    store = str(tmp_path / "store")
    with subprocess.Popen([*command, "1", store], stdout=subprocess.DEVNULL) as other:
        said = subprocess.run([*command, "0", store], stdout=subprocess.PIPE, text=True, timeout=90)
        if said.returncode != 0:
            other.kill()
    assert said.returncode == 0 and other.returncode == 0
    assert len(said.stdout.splitlines()) == 14
