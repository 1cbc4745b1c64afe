"""What `phoenix run` refuses before it starts anything, and in which words."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import pytest

from phoenix_core.advice import tell
from phoenix_core.errors import UsageError
from phoenix_core.launcher import main, parser
from phoenix_core.settings import WorkerSettings


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: script"),
        (["--spares", "-1", "x.py"], "--spares -1: a number from 0 on"),
        (["--max-restarts", "-1", "x.py"], "--max-restarts -1: a number from 0 on"),
        (["--nnodes", "0", "x.py"], "--nnodes 0: not a positive whole number"),
        (["--nnodes", "²", "x.py"], "--nnodes ²: not a positive whole number"),
        (["--nnodes", "1:4", "x.py"], "the world does not change its size here"),
        (["--nnodes", "1000000", "x.py"], "ask for fewer nodes, ranks or spares"),
        (["--nproc-per-node", "gpu", "x.py"], "ranks train on the CPU in this version"),
        (["--nnodes", "2", "--node_rank", "1", "x.py"], "start it once, without this flag"),
        (["no-such.py"], "there is no file no-such.py"),
        (["--no-python", "no-such-program"], "there is no program no-such-program"),
        (["--hang-timeout", "-3", __file__], "--hang-timeout -3 must be above 2"),
        (["--hang-timeout", "nan", __file__], "--hang-timeout nan must be above 2"),
        (["--hang-timeout", "400", __file__], "at most --pause-timeout 300"),
        (["--replica-bandwidth", "200", __file__], "200: not a rate; give a number with its unit, as 200MB/s"),
        (["--replica-bandwidth", "1kB/s", __file__], "less than 16 KiB/s"),
        (["--checkpoint-every", "5", __file__], "say nothing without --checkpoint-dir"),
        (["--checkpoint-dir", "DIR", "--checkpoint-every", "0", __file__], "at least 2 steps"),
        (["--checkpoint-dir", "DIR", "--checkpoint-keep", "0", __file__], "at least 1 checkpoint"),
        (["--checkpoint-dir", __file__, __file__], "it is not a directory"),
        (["--run-dir", __file__, __file__], "it is not a directory"),
        (["--run-dir", "", "x.py"], "argument --run-dir/--run_dir/--log-dir/--log_dir: it is empty"),
        (["--checkpoint-dir", "", "x.py"], "argument --checkpoint-dir/--checkpoint_dir: it is empty"),
        (["--run-dir", "long" * 100, __file__], "it cannot be written: File name too long"),
        (["--checkpoint-dir", "/proc/none", __file__], "it cannot be written"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_started(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "dir") if argument == "DIR" else argument for argument in arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_directory_of_a_job_that_runs_is_not_used_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["--checkpoint-dir", str(tmp_path), __file__])
    finally:
        os.close(running)
    assert ended.value.code == 2 and "another job writes there now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "nodes", "told"),
    [
        ("--rdzv-endpoint=n0.cluster:29500", "2", True),
        ("--master_addr=n0.cluster", "2", True),
        ("--rdzv-endpoint=n0.cluster:29500", "1", False),
        ("--rdzv_endpoint=localhost:0", "2", False),
        ("--master-addr=127.0.0.1", "2", False),
    ],
)
def test_that_another_machine_takes_no_part_is_said(
    flag: str, nodes: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--nnodes", nodes, "--node-rank", "0", flag, "no-such.py"])
    assert ("is not used: --nnodes 2 are processes of this machine" in capsys.readouterr().err) == told


def test_a_scripts_option_is_not_taken_for_the_beginning_of_one_of_ours() -> None:
    options = parser().parse_args(["--nnodes", "2", "train.py", "--n", "160", "--pause", "3"])
    assert (options.nnodes, options.script, options.arguments) == ("2", "train.py", ["--n", "160", "--pause", "3"])


def test_what_cannot_be_said_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        tell("nobody hears it")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_under_torchrun_a_session_is_refused() -> None:
    with pytest.raises(UsageError, match="not with torchrun"):
        WorkerSettings.from_environment({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"})
    assert WorkerSettings.from_environment({"WORLD_SIZE": "2"}) is None, "a shell may have that for anybody"
