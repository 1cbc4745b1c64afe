"""`phoenix trial` and `python -m chaos.trial run` as processes, over the runtime without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import TrialError
from chaos.record import TrialDirectory
from chaos.scenario import parse_scenario
from service import foreground
from tests.support import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

TEXT = """\
name: x
workload: gpt-tiny
runtime: fake
steps: {steps}
cluster: {{nodes: 2, spares: 0}}
checks: [agreement, no_leak]
"""


@pytest.fixture(autouse=True)
def fake_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOENIX_RUNTIMES", "tests.contract.fake_runtime:FAKE")


@pytest.mark.parametrize("command", ["phoenix", "chaos"])
def test_ctrl_c_is_exit_code_130_and_leaves_a_result(run_dir: Path, command: str) -> None:
    text, directory = TEXT.format(steps=100_000), TrialDirectory(run_dir / "trial")
    if command == "phoenix":
        (run_dir / "s.yaml").write_text(text)
        arguments = ["service.cli", "trial", str(run_dir / "s.yaml"), "--dir", str(directory.path), "--json"]
    else:
        TrialDirectory.create(directory.path, parse_scenario(text))
        arguments = ["chaos.trial", "run", str(directory.path), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        trained = (directory.run.events / "w0.jsonl").exists
        wait_until(trained, "the training", 30.0)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out, err)
    assert "interrupted" in err and str(directory.path) in err and "Traceback" not in err
    assert json.loads(out)["error"] == "interrupted"
    result = directory.read_result()
    assert result is not None and (result.verdict, result.error) == ("UNKNOWN", "interrupted")


def test_the_document_tells_the_reasons(run_dir: Path) -> None:
    (run_dir / "s.yaml").write_text(TEXT.format(steps=5))
    command = [sys.executable, "-m", "service.cli", "trial", str(run_dir / "s.yaml"), "--dir", str(run_dir / "trial")]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and (document["verdict"], document["error"]) == ("PASS", None)
    assert list(document)[:4] == ["verdict", "url", "recoveries", "overhead"]
    assert list(document["checks"]) == ["agreement", "no_leak"]
    assert "the final digest of all 2 ranks" in document["checks"]["agreement"]["detail"]


def test_a_standard_output_that_is_closed_is_no_traceback(run_dir: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text("name: x\nworkload: gpt-tiny\nruntime: fake\nsteps: 5\nchecks: [no_leak]\n")
    words = [sys.executable, "-m", "service.cli", "trial", str(scenario), "--dir", str(run_dir)]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>"$0"', str(tmp_path / "errors"), *words], timeout=60, check=False
    )
    assert (closed.returncode, (tmp_path / "errors").read_text()) == (0, "")


def test_a_result_that_cannot_be_written_is_unknown_and_no_wrong_usage(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise TrialError("cannot write result.json: No space left on device")

    monkeypatch.setattr(foreground, "run_in_directory", full)
    (run_dir / "s.yaml").write_text(TEXT.format(steps=5))
    assert foreground.run_trial(run_dir / "s.yaml", run_dir / "trial", as_json=False) == 3
    assert "No space left on device" in capsys.readouterr().err
    assert foreground.run_trial(run_dir / "s.yaml", run_dir / "trial", as_json=False) == 2, "a trial is there already"


def test_an_output_that_cannot_be_written_is_no_failed_trial() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "service.cli", "schema", "scenario"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "cannot write the output" in done.stderr
