"""What `phoenix run` refuses before it starts anything, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from phoenix_core.launcher import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: script"),
        (["--spares", "-1", "x.py"], "--spares -1: a number from 0 on"),
        (["--max-restarts", "-1", "x.py"], "--max-restarts -1: a number from 0 on"),
        (["--nnodes", "0", "x.py"], "--nnodes 0: not a positive whole number"),
        (["--nnodes", "1:4", "x.py"], "the world does not change its size here"),
        (["--nnodes", "1000000", "x.py"], "ask for fewer nodes, ranks or spares"),
        (["--nproc-per-node", "gpu", "x.py"], "ranks train on the CPU in this version"),
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
