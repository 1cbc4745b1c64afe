"""The command line: what it prints, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service import inject
from service.settings import Settings, SettingsError, data_directory


def phoenix(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_help_names_every_command() -> None:
    done = phoenix("--help")
    assert done.returncode == 0
    for command in ("demo", "run", "trial", "serve", "inject", "doctor", "schema"):
        assert command in done.stdout


def test_schema_is_a_json_schema() -> None:
    assert json.loads(phoenix("schema").stdout)["title"] == "PHOENIX scenario"


def test_doctor_says_what_can_be_injected(tmp_path: Path) -> None:
    report = json.loads(phoenix("doctor", "--json", "--dir", str(tmp_path)).stdout)
    assert report["ok"] and "process_kill" in [finding["name"] for finding in report["findings"]]


def test_foreign_hosts_are_refused(tmp_path: Path) -> None:
    done = phoenix("serve", "--host", "0.0.0.0", "--dir", str(tmp_path))
    assert done.returncode == 2 and "127.0.0.1" in done.stderr


def test_unknown_options_are_usage_errors() -> None:
    assert phoenix("serve", "--nope").returncode == 2
    assert phoenix("nope").returncode == 2


def test_a_missing_data_file(tmp_path: Path) -> None:
    done = phoenix("demo", "--data", str(tmp_path / "missing.txt"), "--dir", str(tmp_path), "--json")
    assert done.returncode == 2 and "missing.txt" in done.stderr and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_inject_without_a_service(tmp_path: Path) -> None:
    done = phoenix("inject", "process_kill", "--rank", "0", "--server", "http://127.0.0.1:1", "--dir", str(tmp_path))
    assert done.returncode == 2 and "no service answers" in done.stderr
    assert "choose one target" in phoenix("inject", "process_kill", "--dir", str(tmp_path)).stderr


def test_a_scenario_with_a_mistake_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nworkload: gpt-tiny\nsteps: ten\n")
    done = phoenix("trial", str(path), "--dir", str(tmp_path / "trial"))
    assert done.returncode == 2 and "bad.yaml:3" in done.stderr and "steps" in done.stderr


def test_run_hands_everything_on() -> None:
    done = phoenix("run", "--no-such-flag-of-the-runtime")
    assert (done.returncode == 2 and "phoenix_core" in done.stderr + done.stdout) or "usage" in done.stderr


def test_triggers_and_targets_of_the_command_line() -> None:
    assert inject.target_of(rank=0, random_rank=False, spare=False) == {"rank": 0}
    assert inject.trigger_of(at_step=None, after_s=None, phase=None) == {"now": True}
    assert inject.trigger_of(at_step=3, after_s=None, phase="backward") == {"phase": "backward", "step": 3}
    assert inject.trigger_of(at_step=None, after_s=1.5, phase=None) == {"after_s": 1.5}
    with pytest.raises(ValueError):
        inject.trigger_of(at_step=3, after_s=1.0, phase=None)
    with pytest.raises(ValueError):
        inject.target_of(rank=1, random_rank=True, spare=False)


def test_the_data_directory() -> None:
    assert data_directory(Path("/x"), {}) == Path("/x")
    assert data_directory(None, {"PHOENIX_HOME": "/y"}) == Path("/y")
    assert data_directory(None, {"XDG_DATA_HOME": "/z"}) == Path("/z/phoenix")


def test_settings_refuse_what_cannot_be() -> None:
    settings = Settings(directory=Path("/x"))
    wrong: list[Callable[[], Settings]] = [
        lambda: replace(settings, port=70000),
        lambda: replace(settings, max_active=0),
        lambda: replace(settings, poll_s=0.0),
        lambda: replace(settings, host="::"),
    ]
    for make in wrong:
        with pytest.raises(SettingsError):
            make()
