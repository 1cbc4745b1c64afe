"""The check of a GPU, tried without one: its logic must be right before it costs a GPU's time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_fault import WAYS

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_every_part_passes_on_a_cpu_and_is_published(tmp_path: Path) -> None:
    done = check("--device", "cpu", "--tiny", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    parts = {part["part"]: part for part in document["parts"]}
    assert {part["verdict"] for part in parts.values()} == {"PASS"}
    assert set(parts) == {"generators", "replacement", "restore", "overlap", "device_error"}
    errors = parts["device_error"]["measured"]
    assert all(errors[way]["emulated"] for way in WAYS) and document["gpu"].startswith("none")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("arguments", "said"), [((), "torch sees no CUDA device"), (("--device", "cpu"), "--device cpu needs --tiny")]
)
def test_what_cannot_be_measured_is_said(arguments: tuple[str, ...], said: str) -> None:
    done = check(*arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
