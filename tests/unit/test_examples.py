"""The promise of the examples: a script moves over in at most ten changed lines, and the diff shown is the real one."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def real_diff() -> list[str]:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("ddp_plain.py", "ddp_phoenix.py"))
    return list(difflib.unified_diff(before, after, "ddp_plain.py", "ddp_phoenix.py", lineterm="", n=2))


def test_the_diff_file_is_the_real_diff() -> None:
    """To write it anew: python -m tests.unit.test_examples"""
    assert (EXAMPLES / "ddp.diff").read_text().splitlines() == real_diff()


def test_at_most_ten_lines_are_changed() -> None:
    lines = real_diff()[2:]
    added = [line for line in lines if line.startswith("+") and line.strip("+ ")]
    removed = [line for line in lines if line.startswith("-") and line.strip("- ")]
    assert 0 < len(added) <= 10
    assert 0 < len(removed) <= 10


@pytest.mark.process
@pytest.mark.parametrize("first", ["Session", "session", "Step"])
def test_session_stays_callable_whichever_name_is_used_first(first: str) -> None:
    """The module `phoenix_core.session` has the function's name; importing it must not hide the function."""
    code = f"import phoenix_core as phoenix; phoenix.{first}; assert callable(phoenix.session)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_without_a_launcher_the_moved_script_runs_as_one_rank() -> None:
    command = [sys.executable, "examples/ddp_phoenix.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads only get in each other's way in steps this small
    done = subprocess.run(
        command, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "step 1800 loss" in done.stdout


if __name__ == "__main__":
    (EXAMPLES / "ddp.diff").write_text("\n".join(real_diff()) + "\n")
