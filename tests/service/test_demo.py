"""`phoenix demo` over a runtime without torch: the document, the exit code, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.scenario import CHECKS
from service import catalog
from service.client import Client
from service.context import address_in
from service.demo import Options, judge
from service.report import PHASES
from service.settings import DEFAULT_PORT
from tests.support import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PROGRAM = """
import json, pathlib, sys
from service.demo import Options, run_demo
given = json.loads(sys.argv[1])
given["directory"] = pathlib.Path(given["directory"])
sys.exit(run_demo(Options(data=None, port=0, **given)))
"""
SCENARIO = {
    "name": "fake",
    "workload": "gpt-tiny",
    "runtime": "fake",
    "steps": 300,
    "cluster": {"nodes": 3, "ranks_per_node": 1, "spares": 1},
    "checks": catalog.scenario_named("demo").checks,  # not all that there are: what nobody asked for decides nothing
}


@pytest.fixture(autouse=True)
def fake_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOENIX_RUNTIMES", "tests.contract.fake_runtime:FAKE")
    monkeypatch.setenv("FAKE_STEP_S", "0.02")


@contextmanager
def demo(
    directory: Path, *, keep: bool = False, as_json: bool = True, **changes: Any
) -> Iterator[subprocess.Popen[str]]:
    options = {"directory": str(directory), "keep": keep, "as_json": as_json, "scenario": {**SCENARIO, **changes}}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_document_has_the_promised_shape(run_dir: Path) -> None:
    with demo(run_dir) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, (out, err, (run_dir / "service.log").read_text())
    document = json.loads(out)
    assert list(document) == ["verdict", "url", "recoveries", "overhead"]
    assert document["verdict"] == "PASS" and document["overhead"] is None
    assert [recovery["fault"]["kind"] for recovery in document["recoveries"]] == ["process_kill", "process_stop"]
    for recovery, rank in zip(document["recoveries"], (1, 2), strict=True):
        assert recovery["target"]["rank"] == recovery["blamed"]["rank"] == rank
        assert tuple(recovery["phases"]) == PHASES and set(recovery["checks"]) == {*SCENARIO["checks"], "attribution"}  # type: ignore[misc]
        assert recovery["recovery_s"] == pytest.approx(sum(recovery["phases"].values()))
        assert recovery["downtime_s"] <= recovery["recovery_s"] and recovery["lost_steps"] in (0, 1)
    assert address_in(run_dir) is None


@pytest.mark.soak
def test_a_job_that_fails_is_no_success(run_dir: Path) -> None:
    """The job ends before the second fault can be asked for: not judged is not passed."""
    with demo(run_dir, as_json=False, steps=12) as process:
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 3 and "UNKNOWN" in out and "\x1b[" not in out
    assert f"phoenix serve --dir {run_dir}\n" in out and f"dashboard: http://127.0.0.1:{DEFAULT_PORT}/runs/" in out


def test_ctrl_c_leaves_nothing_running(run_dir: Path) -> None:
    with demo(run_dir, steps=5000) as process:
        url = wait_until(lambda: address_in(run_dir) or "", "the service's address")
        with Client(url) as client:
            wait_until(client.ready, "the service to be ready")
            wait_until(lambda: [r for r in client.get("/runs")["items"] if (r["step"] or 0) > 0], "the training", 60.0)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "" and "Traceback" not in err
    assert address_in(run_dir) is None
    (result,) = run_dir.glob("trials/*/result.json")
    assert json.loads(result.read_text())["verdict"] == "UNKNOWN"


@pytest.mark.soak
def test_a_killed_demo_leaves_nothing_running(run_dir: Path) -> None:
    """The leak check after this test waits for the service to notice and to end everything."""
    with demo(run_dir, steps=5000) as process:
        url = wait_until(lambda: address_in(run_dir) or "", "the service's address")
        with Client(url) as client:
            wait_until(client.ready, "the service to be ready")
            wait_until(lambda: [r for r in client.get("/runs")["items"] if (r["step"] or 0) > 0], "the training", 60.0)
        process.kill()
    wait_until(lambda: address_in(run_dir) is None, "the end of the service", 60.0)


@pytest.mark.soak
def test_keep_leaves_the_service(run_dir: Path) -> None:
    with demo(run_dir, keep=True, as_json=False) as process:
        out, _ = process.communicate(timeout=100)
    url = address_in(run_dir)
    pid = json.loads((run_dir / "service.lock").read_text())["pid"]
    try:
        assert process.returncode == 0 and url is not None and url in out and f"kill {pid}" in out
        with Client(url) as client:
            assert client.get("/runs")["items"][0]["verdict"] == "PASS"
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: address_in(run_dir) is None, "the end of the service")


def test_the_address_after_the_demo_is_that_of_the_command_it_names() -> None:
    def options(port: int) -> Options:
        return Options(keep=False, as_json=False, data=None, port=port, directory=Path("/my data"))

    assert options(0).serve_command == options(DEFAULT_PORT).serve_command == "phoenix serve --dir '/my data'"
    assert options(0).later_url == f"http://127.0.0.1:{DEFAULT_PORT}"
    assert options(9000).serve_command == "phoenix serve --dir '/my data' --port 9000"
    assert options(9000).later_url == "http://127.0.0.1:9000"


def test_the_worst_check_decides() -> None:
    passed = {"checks": dict.fromkeys(CHECKS, "PASS")}
    failed = {"checks": {**passed["checks"], "twin": "FAIL"}}
    assert judge({"verdict": "PASS"}, [passed, passed]) == "PASS"
    assert judge({"verdict": "PASS"}, [passed, failed]) == "FAIL"
    assert judge({"verdict": "PASS"}, [passed]) == "UNKNOWN"
    assert judge({"verdict": None}, [passed, passed]) == "UNKNOWN"
