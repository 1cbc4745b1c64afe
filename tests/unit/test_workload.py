"""The workload's parts: batches are a function of (seed, rank, position), bad input ends with a clear message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.workloads import gpt
from benchmarks.workloads.corpus import CorpusError, load_corpus, standard_library
from benchmarks.workloads.model import GPT, Shape
from benchmarks.workloads.sampler import Sampler

TEXT = np.arange(1000, dtype=np.int64).astype(np.uint8)


def sampler(*, seed: int = 0, rank: int = 0) -> Sampler:
    return Sampler(TEXT, seed=seed, rank=rank, batch=3, block=16)


def test_a_restored_sampler_goes_on_with_the_same_batches() -> None:
    original = sampler()
    for _ in range(5):
        original.next()
    state = original.state_dict()
    expected = [original.next() for _ in range(3)]
    fresh = sampler()
    fresh.load_state_dict(state)
    for inputs, targets in expected:
        again, again_targets = fresh.next()
        assert torch.equal(inputs, again)
        assert torch.equal(targets, again_targets)


def test_targets_are_the_next_bytes() -> None:
    inputs, targets = sampler().next()
    assert inputs.shape == targets.shape == (3, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_ranks_seeds_and_positions_see_different_data() -> None:
    one = sampler()
    batches = [one.next()[0], one.next()[0], sampler(rank=1).next()[0], sampler(seed=1).next()[0]]
    assert all(not torch.equal(a, b) for i, a in enumerate(batches) for b in batches[:i])


def test_the_shortest_usable_text() -> None:
    shortest = Sampler(TEXT[:17], seed=0, rank=0, batch=2, block=16)
    inputs, _ = shortest.next()
    assert torch.equal(inputs[0], torch.arange(16))


def test_the_standard_library_is_real_text_and_always_the_same() -> None:
    first = standard_library()
    assert len(first) > 5_000_000
    assert b"import os" in first
    assert first == standard_library()


def test_missing_and_short_data(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cannot read the data file .*none\.txt: No such file"):
        load_corpus(tmp_path / "none.txt", at_least=10)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(CorpusError, match="holds 5 bytes; one sample takes 10"):
        load_corpus(tmp_path / "short.txt", at_least=10)


def test_the_demo_model_has_about_ten_million_parameters() -> None:
    parameters = sum(parameter.numel() for parameter in GPT(Shape()).parameters())
    assert 10_000_000 < parameters < 11_000_000


def test_the_model_sees_only_the_past() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(layers=2, heads=2, width=32, block=8)).eval()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 7] = 99
    assert torch.equal(model(tokens)[0, :7], model(changed)[0, :7])


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/no/such/file"], "gpt: cannot read the data file /no/such/file: No such file or directory"),
        (["--heads", "5"], "the width 384 is not a multiple of the number of heads 5"),
        (["--steps", "0"], "argument --steps: must be at least 1, is 0"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "benchmarks.workloads.gpt", "--plain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_who_waits_at_a_gate_can_say_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    slept: list[float] = []
    said: list[float] = []
    gate.write_text("3")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 60:
            gate.write_text("4")

    monkeypatch.setattr("time.sleep", sleep)
    gpt.wait_for_gate(gate, 3, alive=lambda: said.append(sum(slept)))
    assert said == pytest.approx([0.5, 1.0])
    gpt.wait_for_gate(gate, 3, alive=lambda: pytest.fail("the gate is open"))
