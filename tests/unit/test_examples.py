"""The promises of the examples and of the guide: diffs and their sizes are the real ones, and the code shown runs."""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KINDS = ("ddp", "epochs", "fsdp2", "trainer")
GUIDE = ROOT / "docs" / "move-your-script.md"
PRELUDE = """
import math
from contextlib import nullcontext
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(0)
class Net(torch.nn.Sequential):
    def __init__(self): super().__init__(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
criterion = torch.nn.functional.mse_loss
dataset = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
def draw(step, rank): return torch.randn(8, 4), torch.randn(8, 1)
def evaluate(model):
    with torch.no_grad(): return criterion(model(dataset.tensors[0]), -dataset.tensors[1]).item()  # grows: early stop
"""
"""What the code in README and guide takes for granted."""


def real_diff(kind: str) -> list[str]:
    names = f"{kind}_plain.py", f"{kind}_phoenix.py"
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in names)
    return list(difflib.unified_diff(before, after, *names, lineterm="", n=2))


def changed_lines(kind: str) -> tuple[int, int]:
    """Lines added and removed; empty ones do not count."""
    lines = real_diff(kind)[2:]
    added = [line for line in lines if line.startswith("+") and line.strip("+ ")]
    removed = [line for line in lines if line.startswith("-") and line.strip("- ")]
    return len(added), len(removed)


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def readme_block() -> str:
    section = (ROOT / "README.md").read_text().partition("## Moving a script of your own over")[2].partition("\n## ")[0]
    (block,) = python_blocks(section)
    return block


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads only get in each other's way in steps this small
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_diff_file_is_the_real_diff(kind: str) -> None:
    """To write them anew: python -m tests.unit.test_examples"""
    assert (EXAMPLES / f"{kind}.diff").read_text().splitlines() == real_diff(kind)


def test_the_ten_line_case_has_ten_lines() -> None:
    added, removed = changed_lines("ddp")
    assert 0 < added <= 10
    assert 0 < removed <= 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_changed_lines_are_the_real_ones(kind: str) -> None:
    (row,) = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if f"({kind}.diff)" in line]
    added, removed = changed_lines(kind)
    assert f"| +{added} −{removed} |" in row


def test_each_message_to_a_script_is_explained() -> None:
    """By how its longest piece of fixed text begins."""
    guide = GUIDE.read_text()
    modules = ("training", "misuse", "snapshot", "gradients", "data")
    messages = [m for name in modules for m in usage_errors(ROOT / "phoenix_core" / f"{name}.py")]
    assert len(messages) > 10
    from phoenix_core import advice

    said = (
        advice.LATE_COLLECTIVE,
        advice.LATE_DRAW,
        advice.LATE_CHANGE,
        advice.EARLY_CHANGE,
        advice.COPIES,
        advice.EARLY_BATCH,
        advice.SWAPPED,
        advice.GROUP_IN_LOOP,
    )
    assert "what this script's loop did outside of" in advice.CHANGED_OUTSIDE
    messages += [text.removeprefix("this script ").removeprefix("{} ") for text in said]
    assert [message for message in messages if message[:36].strip() not in guide] == []


def usage_errors(path: Path) -> list[str]:
    """The longest fixed piece of each message that is raised as a UsageError, without the call that it speaks of."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UsageError":
            pieces = [
                n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            if not pieces:
                continue  # it has a name in `advice`
            found.append(
                re.sub(r"^(\w*\(\w*\)|=\.\.\.\)): ", "", max((piece.strip(" :;") for piece in pieces), key=len))
            )
    return found


@pytest.mark.process
@pytest.mark.parametrize("first", ["Session", "session", "Step"])
def test_session_stays_callable_whichever_name_is_used_first(first: str) -> None:
    """The module `phoenix_core.session` has the function's name; importing it must not hide the function."""
    done = run_python("-c", f"import phoenix_core as phoenix; phoenix.{first}; assert callable(phoenix.session)")
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_the_code_that_is_shown_runs_as_one_rank(tmp_path: Path) -> None:
    """That of README and each loop of the guide, one after the other in a process of their own."""
    blocks = [readme_block(), *(block for block in python_blocks(GUIDE.read_text()) if "session()" in block)]
    assert len(blocks) == 6
    files = [tmp_path / f"shown{number}.py" for number in range(len(blocks))]
    for file, block in zip(files, blocks, strict=True):
        file.write_text(f"{PRELUDE}\nimport phoenix_core as phoenix\n{block}")
    done = run_python("-c", f"import runpy\nfor file in {[str(file) for file in files]}: runpy.run_path(file)")
    assert done.returncode == 0, done.stderr
    assert "at the end: " in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("ddp", [], "step 1800 loss"),
        ("epochs", ["--epochs", "2", "--samples", "512"], "epoch 1 validation loss"),
        ("fsdp2", ["--steps", "21", "--blocks", "1"], "step 20 loss"),
        ("trainer", ["--steps", "5"], "train_loss"),
    ],
)
def test_without_a_launcher_a_moved_script_runs_as_one_rank(
    tmp_path: Path, kind: str, arguments: list[str], said: str
) -> None:
    if kind == "trainer":
        if find_spec("transformers") is None or find_spec("accelerate") is None:
            pytest.skip("needs transformers and accelerate: pip install -c constraints.txt -e '.[examples]'")
        arguments = [*arguments, "--output", str(tmp_path)]
    done = run_python(str(EXAMPLES / f"{kind}_phoenix.py"), *arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


if __name__ == "__main__":
    for kind in KINDS:
        (EXAMPLES / f"{kind}.diff").write_text("\n".join(real_diff(kind)) + "\n")
