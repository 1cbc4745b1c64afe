"""The moved examples with real processes: a rank is killed, and the run ends as the one that had no failure."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.process.job import Finished, Strike, run
from tests.unit.test_examples import EXAMPLES, GUIDE, PRELUDE, python_blocks, run_python

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SMALL = {
    "ddp": (),
    "epochs": ("--epochs", "3", "--samples", "1024"),
    "fsdp2": ("--steps", "30", "--blocks", "2"),
    "trainer": ("--steps", "30"),
}
"""Arguments for a run of seconds."""
SAID = re.compile(r"^(?:(?:step|epoch) \d+ .*|\{'.*\})$", re.MULTILINE)


def losses(finished: Finished) -> dict[tuple[int | None, int | None], object]:
    """What was recorded, by rank and step; a step that was committed twice must have recorded the same."""
    found: dict[tuple[int | None, int | None], object] = {}
    for event in finished.events:
        if event.kind == "step_committed" and "loss" in event.data:
            assert found.setdefault((event.rank, event.step), event.data["loss"]) == event.data["loss"]
    return found


def said(text: str) -> set[str]:
    """The lines that report on training, without times; a step that runs again may repeat its line."""
    return {re.sub(r"'\w*(?:runtime|per_second)': '?[^,}]*", "", line) for line in SAID.findall(text)}


def said_by_all(run_dir: Path) -> set[str]:
    return {line for log in (run_dir / "logs").glob("*.log") for line in said(log.read_text())}


def run_calm(run_dir: Path, script: Path, arguments: Sequence[str]) -> Finished:
    finished = run(run_dir, *arguments, flags=("--nnodes", "2", "--spares", "0"), script=script)
    assert finished.code == 0, finished.stderr
    return finished


def run_rough(run_dir: Path, script: Path, arguments: Sequence[str], strike: Strike, calm: Finished) -> Finished:
    """With a kill; it must complete, and end as the undisturbed run did."""
    flags = ("--nnodes", "2", "--spares", "1")
    rough = run(run_dir, *arguments, strikes=[strike], flags=flags, script=script)
    assert rough.code == 0, rough.stderr
    (recovery,) = rough.recoveries
    assert [failure.rank for failure in recovery.failures] == [strike.rank] and recovery.complete
    assert losses(rough) == losses(calm)
    assert rough.digests == calm.digests
    return rough


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Finished]]:
    """The run directory and the result of a moved script without a fault; one run for all tests of it."""

    @cache
    def once(kind: str) -> tuple[Path, Finished]:
        directory = tmp_path_factory.mktemp(kind)
        return directory, run_calm(directory, EXAMPLES / f"{kind}_phoenix.py", arguments_of(kind, directory))

    return once


def arguments_of(kind: str, directory: Path) -> Sequence[str]:
    if kind != "trainer":
        return SMALL[kind]
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        pytest.skip("needs transformers and accelerate: pip install -c constraints.txt -e '.[examples]'")
    return (*SMALL[kind], "--output", str(directory / "output"))


@pytest.mark.parametrize(
    ("kind", "rank", "step"),
    [
        pytest.param("ddp", 0, 300, marks=pytest.mark.soak),
        pytest.param("epochs", 0, 40, marks=pytest.mark.soak),
        pytest.param("fsdp2", 1, 12, marks=pytest.mark.soak),
        ("trainer", 0, 12),
    ],
)
def test_a_moved_script_outlives_a_rank(
    run_dir: Path, undisturbed: Callable[[str], tuple[Path, Finished]], kind: str, rank: int, step: int
) -> None:
    calm_dir, calm = undisturbed(kind)
    strike = Strike(rank, step, "backward")
    run_rough(run_dir, EXAMPLES / f"{kind}_phoenix.py", arguments_of(kind, run_dir), strike, calm)
    assert kind == "ddp" or (losses(calm) and len(calm.digests) == 2)  # that one records nothing, it only prints
    assert said_by_all(calm_dir) and said_by_all(run_dir) == said_by_all(calm_dir)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["epochs", "fsdp2"])
def test_a_moved_script_trains_as_the_plain_one_does(
    undisturbed: Callable[[str], tuple[Path, Finished]], kind: str
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(EXAMPLES / f"{kind}_plain.py"), *SMALL[kind]]
    plain = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert plain.returncode == 0, plain.stderr
    assert said(plain.stdout) and said_by_all(undisturbed(kind)[0]) == said(plain.stdout)


@pytest.mark.soak
def test_the_guides_early_stopping_outlives_a_rank(run_dir: Path) -> None:
    (block,) = [block for block in python_blocks(GUIDE.read_text()) if "class Patience" in block]
    script = run_dir / "early.py"
    block = block.replace("Patience(3)", "Patience(20)")  # long enough to be struck before it stops
    script.write_text(f"{PRELUDE}\nimport phoenix_core as phoenix\n{block}")
    calm = run_calm(run_dir / "calm", script, ())
    for finished in (calm, run_rough(run_dir / "rough", script, (), Strike(1, 30, "backward"), calm)):
        # Four steps an epoch; the first of 21 evaluations is the best, and the last decides before one more step.
        assert {event.step for event in finished.events if event.kind == "state_digest"} == {4 * 21 + 1}


@pytest.mark.soak
def test_a_resumed_run_outlives_a_rank(run_dir: Path) -> None:
    script, saved = EXAMPLES / "epochs_phoenix.py", run_dir / "saved"
    first = run_python(str(script), "--epochs", "2", "--samples", "512", "--checkpoints", str(saved))
    assert first.returncode == 0, first.stderr
    arguments = ("--epochs", "4", "--samples", "1024", "--resume", str(saved / "epoch-1.pt"))
    calm = run_calm(run_dir / "calm", script, arguments)
    run_rough(run_dir / "rough", script, arguments, Strike(0, 20, "backward"), calm)
    told = said_by_all(run_dir / "rough")
    assert {line.split()[1] for line in told} == {"2", "3"} and told == said_by_all(run_dir / "calm")
