"""What the storage faults promise: the newest checkpoint is hit, nothing else, and what can be taken back is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.checkout import import_path
from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import Active
from chaos.injectors.base import Pending
from chaos.injectors.storage import storage_injectors
from chaos.procfs import start_ticks
from chaos.roster import WorkerInfo
from tests.support import wait_until

OURS = os.getpid()


def checkpoint(root: Path, step: int, at: int) -> Path:
    """Two ranks' files and the one that was written last, all `at` some instant."""
    path = root / f"step-{step}"
    for name, size in (("rank-1/data", 1000), ("rank-1/small", 10), ("rank-2/data", 2000), (".metadata", 5)):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(bytes(size))
        os.utime(path / name, ns=(at, at + (name == ".metadata")))
    return path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hit(kind: str, root: Path, pid: int = OURS, rank: int = 1, **params: Any) -> Active:
    fault = PlannedFault.from_json({"id": "f", "kind": kind, "target": {"rank": rank}, "params": params})
    worker = WorkerInfo(worker="w1", node="n1", pid=pid, start_ticks=start_ticks(pid) or 0, rank=rank)
    active = storage_injectors(root)[kind].inject(fault, worker)
    assert not isinstance(active, Pending)
    return active


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("checkpoint_truncate", "rank-1/data"),
        ("checkpoint_corrupt", "rank-1/data"),
        ("checkpoint_partial", ".metadata"),
    ],
)
def test_only_the_file_that_was_meant_changes(tmp_path: Path, kind: str, file: str) -> None:
    # The one that was written last is the newest, whatever the names say.
    checkpoint(tmp_path, 9, at=1_000)
    newest = checkpoint(tmp_path, 8, at=2_000)
    before = contents(tmp_path)
    active = hit(kind, tmp_path, rank=1)
    after = contents(tmp_path)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {f"step-8/{file}"}
    assert active.injection.proof["checkpoint"] == newest.name
    assert active.ttl_s is None and not active.revert().alive
    if kind == "checkpoint_corrupt":
        flipped = [a ^ b for a, b in zip(before["step-8/rank-1/data"], after["step-8/rank-1/data"], strict=True)]
        assert sum(byte.bit_count() for byte in flipped) == 1


@pytest.mark.parametrize(
    ("rank", "names", "own"),
    [
        (0, ("__0_0.distcp", "__1_0.distcp", ".metadata"), "__0_0.distcp"),  # torch.distributed.checkpoint's names
        (1, ("__0_0.distcp", "__1_0.distcp", ".metadata"), "__1_0.distcp"),
        (0, ("rank-0.w0/__0_0.distcp", "rank-1.w3/__0_0.distcp"), "rank-0.w0/__0_0.distcp"),
        (3, ("rank-3.w2/__0_0.distcp", "rank-1.w3/__0_0.distcp"), "rank-3.w2/__0_0.distcp"),  # written by worker 3
    ],
)
def test_the_file_of_another_rank_is_not_hit_for_a_number_in_its_name(
    tmp_path: Path, rank: int, names: Sequence[str], own: str
) -> None:
    for size, name in enumerate(names, 10):  # that of the other rank is larger
        (tmp_path / "step-3" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "step-3" / name).write_bytes(bytes(size))
    assert hit("checkpoint_truncate", tmp_path, rank=rank).injection.proof["file"] == own


def test_a_moved_checkpoint_comes_back_once(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1, at=1)
    newest, before = checkpoint(tmp_path, 2, at=2), contents(tmp_path)
    active = hit("checkpoint_move", tmp_path, ttl_s=5)
    assert not newest.exists() and (tmp_path / "step-1").exists()
    assert active.revert().alive and contents(tmp_path) == before
    assert not active.revert().alive


@pytest.mark.process
def test_a_moved_checkpoint_comes_back_though_its_rank_has_died(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path, 2, at=2)
    with subprocess.Popen(["sleep", "60"]) as rank:
        active = hit("checkpoint_move", tmp_path, pid=rank.pid)
        rank.kill()
    assert not newest.exists()
    assert active.revert().alive and newest.exists()


def test_a_checkpoint_that_was_written_again_stays(tmp_path: Path) -> None:
    checkpoint(tmp_path, 2, at=2)
    active = hit("checkpoint_move", tmp_path)
    checkpoint(tmp_path, 2, at=3)
    assert not active.revert().alive
    assert (tmp_path / "step-2" / ".metadata").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"], "and nothing of the fault does"


@pytest.mark.parametrize("kind", ["checkpoint_truncate", "checkpoint_corrupt"])
def test_what_is_empty_cannot_be_damaged(tmp_path: Path, kind: str) -> None:
    for path in checkpoint(tmp_path, 1, at=1).rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(TargetGone, match="all others of the checkpoint are empty"):
        hit(kind, tmp_path)


def test_without_a_checkpoint_there_is_nothing_to_hit(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(TargetGone, match="no checkpoint has been written"):
            hit("checkpoint_corrupt", root)


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "mine"
    elsewhere.write_bytes(bytes(9999))
    newest = checkpoint(tmp_path / "checkpoints", 1, at=1)
    (newest / "rank-1" / "link").symlink_to(elsewhere)
    hit("checkpoint_truncate", tmp_path / "checkpoints")
    assert elsewhere.stat().st_size == 9999


def test_a_disk_that_is_not_the_jobs_own_is_never_filled(tmp_path: Path) -> None:
    with pytest.raises(TargetGone, match="no disk of their own"):
        hit("disk_full", tmp_path)


@pytest.fixture
def owner_of_a_disk(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a disk of 2 MB over tmp_path/checkpoints, which only it sees."""
    command = [sys.executable, "-m", "chaos.disk", str(tmp_path / "checkpoints"), "2", "--", "sleep", "60"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": import_path()}, stderr=subprocess.PIPE) as process:
        try:
            seen = Path(f"/proc/{process.pid}/root{tmp_path}/checkpoints")
            wait_until(lambda: process.poll() is not None or (seen.is_dir() and os.path.ismount(seen)), "it is mounted")
            if process.poll() == 2:
                assert process.stderr is not None
                pytest.skip(process.stderr.read().decode())
            yield process
        finally:
            process.kill()


@pytest.mark.process
def test_a_full_disk_takes_nothing_until_it_is_reverted(
    tmp_path: Path, owner_of_a_disk: subprocess.Popen[bytes]
) -> None:
    seen = Path(f"/proc/{owner_of_a_disk.pid}/root{tmp_path}/checkpoints")
    (seen / "small").write_bytes(bytes(4096))
    active = hit("disk_full", tmp_path / "checkpoints", pid=owner_of_a_disk.pid, ttl_s=60)
    assert active.injection.proof["free_bytes"] == 0
    with pytest.raises(TargetGone, match="another fault fills this disk already"):
        hit("disk_full", tmp_path / "checkpoints", pid=owner_of_a_disk.pid, ttl_s=60)
    with pytest.raises(OSError, match="No space left"):
        (seen / "more").write_bytes(bytes(8192))
    reverted = active.revert()
    assert reverted.alive and int(str(reverted.proof["free_bytes"])) >= 8192
    (seen / "more").write_bytes(bytes(8192))
    assert contents(tmp_path / "checkpoints") == {}, "nobody else sees that disk"


@pytest.mark.process
def test_a_disk_ends_with_its_job(tmp_path: Path, owner_of_a_disk: subprocess.Popen[bytes]) -> None:
    active = hit("disk_full", tmp_path / "checkpoints", pid=owner_of_a_disk.pid, ttl_s=60)
    owner_of_a_disk.kill()
    owner_of_a_disk.wait()
    active.revert()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.process
def test_a_full_disk_has_room_again_though_its_rank_has_died(
    tmp_path: Path, owner_of_a_disk: subprocess.Popen[bytes]
) -> None:
    home = f"/proc/{owner_of_a_disk.pid}"
    command = ["nsenter", f"--user={home}/ns/user", f"--mount={home}/ns/mnt", "--preserve-credentials", "sleep", "60"]
    with subprocess.Popen(command) as rank:
        same = f"{home}/ns/mnt"
        wait_until(lambda: os.readlink(f"/proc/{rank.pid}/ns/mnt") == os.readlink(same), "it sees the same disk")
        active = hit("disk_full", tmp_path / "checkpoints", pid=rank.pid, ttl_s=60)
        rank.kill()
    seen = Path(f"{home}/root{tmp_path}/checkpoints")
    with pytest.raises(OSError, match="No space left"):
        (seen / "more").write_bytes(bytes(8192))
    assert active.revert().alive
    (seen / "more").write_bytes(bytes(8192))
