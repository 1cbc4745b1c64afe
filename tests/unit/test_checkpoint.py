"""Checkpoints on disk: complete or not there at all, as it was written or refused, and never more than wanted."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from phoenix_core import checkpoint
from phoenix_core.ddp import Buckets
from phoenix_core.errors import CheckpointDamaged
from phoenix_core.saver import Saver, Written
from phoenix_core.settings import CheckpointSettings
from phoenix_core.snapshot import Protected


class Rank:
    """The state of one rank of two, and its saver."""

    def __init__(self, root: Path, rank: int, *, keep: int = 2) -> None:
        torch.manual_seed(rank)
        self.rank = rank
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.protected = Protected()
        self.protected.add({"model": self.model, "optimizer": self.optimizer})
        self.written: list[Written] = []
        settings = CheckpointSettings(directory=root, every=2, keep=keep)
        buckets = Buckets(self.protected.ddp_modules)
        self.saver = Saver(settings, f"w{rank}", self.protected, buckets, self.written.append)

    def step(self) -> None:
        self.model(torch.randn(4, 3)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, boundary: int) -> None:
        self.saver.save(boundary, self.rank, 2, whole=True)
        self.saver.settle()
        assert not self.written[-1].error


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def ranks(root: Path) -> list[Rank]:
    return [Rank(root, 0), Rank(root, 1)]


def saved(ranks: list[Rank], *boundaries: int) -> None:
    for boundary in boundaries:
        for rank in ranks:
            rank.step()
            rank.save(boundary)


def test_what_was_saved_comes_back_bit_for_bit(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2)
    digest, drawn = ranks[1].protected.digests(), torch.rand(3)
    fresh = Rank(root, 1)
    _, start, small = fresh.saver.read(2, 1, whole=True)
    fresh.protected.load_start(start)
    fresh.protected.load_small(small)
    assert fresh.protected.digests() == digest
    assert torch.equal(torch.rand(3), drawn)


def test_of_replicated_state_rank_0_writes_the_one_copy(root: Path, ranks: list[Rank]) -> None:
    ranks[0].step()
    for rank in ranks:
        rank.saver.save(2, rank.rank, 2, whole=False)
        rank.saver.settle()
    assert ranks[1].written[-1].bytes < ranks[0].written[-1].bytes
    fresh = Rank(root, 1)
    fresh.saver.read(2, 1, whole=False)
    assert fresh.protected.digests() == ranks[0].protected.digests()


def test_what_the_training_changes_meanwhile_is_not_written(root: Path, ranks: list[Rank]) -> None:
    ranks[0].step()
    digest = ranks[0].protected.digests()
    ranks[0].saver.save(2, 0, 1, whole=True)
    with torch.no_grad():
        ranks[0].model.weight.zero_()
    ranks[0].saver.settle()
    fresh = Rank(root, 0)
    fresh.saver.read(2, 0, whole=True)
    assert fresh.protected.digests() == digest


def files_in_order(root: Path, boundary: int) -> Iterator[Path]:
    """Every file of a checkpoint in the order in which a rank after a rank writes them."""
    home = checkpoint.step_directory(root, boundary)
    for rank in (0, 1):
        part = checkpoint.read_part(root, boundary, rank)
        yield from (home / part.directory / name for name in part.files)
        yield home / f"rank-{rank}.json"


def test_cut_short_at_any_file_it_is_never_taken_for_complete(tmp_path: Path, root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2, 4)
    names = [path.relative_to(root) for path in files_in_order(root, 4)]
    assert len(names) > 5
    for written in range(len(names)):
        for half in (False, True):  # the file that was being written: not there, or half of it
            copy = tmp_path / f"cut-{written}-{half}"
            shutil.copytree(root, copy)
            for name in names[written + half :]:
                (copy / name).unlink()
            if half:
                content = (root / names[written]).read_bytes()
                (copy / names[written]).write_bytes(content[: len(content) // 2])
            assert checkpoint.newest(copy).boundary == 2


def test_any_flipped_bit_is_found(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2, 4)
    rng = random.Random(0)
    for path in list(files_in_order(root, 4)):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        found = checkpoint.newest(root)
        assert found.boundary == 2, path
        path.write_bytes(content)
    assert checkpoint.newest(root).boundary == 4


def test_a_damaged_part_is_named_and_not_read(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2)
    path = next(files_in_order(root, 2))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointDamaged, match=path.name):
        ranks[0].saver.read(2, 0, whole=True)
    assert path.name in checkpoint.newest(root).refused[0]


def test_the_last_complete_ones_are_kept(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2, 4, 6)
    saved(ranks[1:], 8)  # rank 0 never wrote its part
    saved(ranks, 10)
    # A rank does not wait for the others, so the one that prunes sees its own checkpoint not complete yet.
    assert checkpoint.boundaries(root) == [10, 8, 6, 4]
    checkpoint.prune(root, 2, written=10)
    assert checkpoint.boundaries(root) == [10, 8, 6]
    assert checkpoint.newest(root).boundary == 10


def test_a_disk_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    root = tmp_path / "taken"
    root.write_text("a file where the directory should be")
    rank = Rank(root, 0)
    rank.saver.save(2, 0, 1, whole=True)
    rank.saver.settle()
    assert "taken" in rank.written[-1].error


def test_of_a_part_that_could_not_be_written_nothing_is_left(
    root: Path, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "sync_directory", full)
        ranks[0].saver.save(2, 0, 2, whole=True)
        ranks[0].saver.settle()
    assert "No space left" in ranks[0].written[-1].error
    assert not [path for path in checkpoint.step_directory(root, 2).rglob("*") if path.is_file()]
    ranks[0].save(4)  # once there is room again


def test_nothing_is_found_where_nothing_is(root: Path) -> None:
    assert checkpoint.newest(root) == checkpoint.Found(boundary=None, world_size=0, refused=())


def test_what_cannot_be_used_is_set_aside_and_pushes_nothing_out(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2, 4, 6)
    path = next(files_in_order(root, 6))
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoint.newest(root).boundary == 4
    (aside,) = checkpoint.set_aside(root, after=4)
    assert aside.name == "unusable-step-00000006" and aside.is_dir()
    saved(ranks, 6)
    assert checkpoint.newest(root).boundary == 6
    assert checkpoint.boundaries(root) == [6, 4, 2]
    checkpoint.prune(root, 2, written=6)
    assert aside.is_dir()  # as long as no job has come past it, it may be all that somebody has of that step
    saved(ranks, 8, 10)
    checkpoint.prune(root, 2, written=10)
    assert [path.name for path in root.iterdir() if path.name.startswith("unusable")] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": "two"},
        {"directory": 3},
        {"files": {"a": [float("inf"), ""]}},
        {"files": {"a\0b": [1, ""]}},
        {"files": {"\ud800": [1, ""]}},
    ],
)
def test_what_says_that_a_part_is_complete_may_say_anything(
    root: Path, ranks: list[Rank], wrong: dict[str, object]
) -> None:
    saved(ranks, 2, 4)
    path = checkpoint.step_directory(root, 4) / "rank-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    for name in ("step-²", "step-500", "step-٣", "unusable-step-00000004.old"):
        (root / name).mkdir()
    (root / "unusable-step-00000004").write_text("in the way")
    assert checkpoint.newest(root).boundary == 2
    assert [path.name for path in checkpoint.set_aside(root, after=2)] == ["unusable-step-00000004"]


def test_the_one_that_was_just_written_stays(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 8, 10)
    checkpoint.prune(root, 1, written=4)
    assert checkpoint.boundaries(root) == [10, 8]


def test_a_checkpoint_of_another_model_is_refused_and_named(root: Path, ranks: list[Rank]) -> None:
    saved(ranks, 2)
    other = Rank(root, 0)
    other.model.weight = torch.nn.Parameter(torch.zeros(4, 3))
    with pytest.raises(CheckpointDamaged, match="step-00000002 is of another model or optimizer"):
        other.saver.read(2, 0, whole=True)
