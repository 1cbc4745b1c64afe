"""The command line: what it prints, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from service import inject
from service.cli import app
from service.client import Client, ClientError, NoAnswer
from service.context import what_to_do
from service.database import Database
from service.files import trouble_with
from service.server import bind
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


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0 and re.fullmatch(r"PHOENIX (\d+\.\d+\.\d+\S*|unknown)\n", done.output), done.output


def test_schema_is_a_json_schema() -> None:
    assert json.loads(phoenix("schema").stdout)["title"] == "PHOENIX scenario"


def test_doctor_says_what_can_be_injected(tmp_path: Path) -> None:
    report = json.loads(phoenix("doctor", "--json", "--dir", str(tmp_path)).stdout)
    assert report["ok"] and "process_kill" in [finding["name"] for finding in report["findings"]]


def test_foreign_hosts_are_refused(tmp_path: Path) -> None:
    done = phoenix("serve", "--host", "0.0.0.0", "--dir", str(tmp_path))
    assert done.returncode == 2 and "127.0.0.1" in done.stderr


@pytest.mark.parametrize("command", [("trial", "x.yaml"), ("nightly", "x.yaml"), ("serve",), ("runs",)])
def test_an_empty_directory_is_not_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command, "--dir", ""])
    assert done.exit_code == 2 and "it is empty; name a directory" in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def test_unknown_options_are_usage_errors() -> None:
    assert phoenix("serve", "--nope").returncode == 2
    assert phoenix("nope").returncode == 2


@pytest.mark.parametrize("name", ["missing.txt", "empty.txt", "directory"])
def test_a_data_file_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    """Refused by every command that takes one, before anything is started or made."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "directory").mkdir()
    path, home = tmp_path / name, tmp_path / "home"
    scenario = tmp_path / "s.yaml"
    scenario.write_text(f"name: x\nworkload: gpt-tiny\nsteps: 3\noptions: {{data: {path}}}\n")
    for arguments in (
        ("demo", "--data", str(path), "--dir", str(home), "--json"),
        ("trial", str(scenario), "--dir", str(home), "--json"),
    ):
        done = phoenix(*arguments)
        assert (done.returncode, done.stdout) == (2, "") and str(path) in done.stderr, done
    if name != "empty.txt":
        done = phoenix("serve", "--port", "0", "--allow-file", str(path), "--dir", str(home))
        assert done.returncode == 2 and str(path) in done.stderr and "--allow-file" in done.stderr
    assert not home.exists()


def test_doctor_says_what_is_wrong_with_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    done = phoenix("doctor", "--dir", str(tmp_path / "file" / "below"))
    assert done.returncode == 1 and f"{tmp_path / 'file'} is a file and no directory" in done.stdout
    assert "cannot be written" in trouble_with(Path("/proc/self/new"))
    assert trouble_with(tmp_path / "not" / "yet" / "there") == ""
    full = os.statvfs_result((4096, 4096, 16, 0, 0, 100, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert "only 0 MiB are free, 32 are needed" in trouble_with(tmp_path)


def test_answers_are_not_held_back(tmp_path: Path) -> None:
    """asyncio turns Nagle's algorithm off for sockets that name their protocol; each answer took 40 ms without."""
    with bind(Settings(directory=tmp_path, port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("name", ["phoenix.db", "service.lock"])
def test_a_data_directory_that_takes_nothing_is_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    done = phoenix("serve", "--port", "0", "--dir", str(tmp_path))
    assert done.returncode == 2 and "--dir" in done.stderr and str(tmp_path) in done.stderr


def test_a_database_that_takes_no_rows_is_refused_in_words(tmp_path: Path) -> None:
    """Its schema is the newest, so that the first thing written is that a service is there."""
    database = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    database.migrate()
    with database.write() as session:
        session.execute(
            text("CREATE TRIGGER full BEFORE INSERT ON services BEGIN SELECT RAISE(FAIL, 'disk full'); END")
        )
    database.close()
    done = phoenix("serve", "--port", "0", "--dir", str(tmp_path))
    assert done.returncode == 2 and "disk full" in done.stderr and "phoenix doctor" in done.stderr


def test_postgres_that_does_not_answer_is_refused_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://phoenix:secret@127.0.0.1:1/phoenix"
    done = phoenix("serve", "--port", "0", "--dir", str(tmp_path), "--database", url)
    assert done.returncode == 2 and "--database" in done.stderr and "secret" not in done.stderr
    other = phoenix("serve", "--port", "0", "--dir", str(tmp_path), "--database", "mysql://x")
    assert other.returncode == 2 and "postgresql://user:password@host/name" in other.stderr


def test_a_database_of_others_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "phoenix.db").write_text("no database, but a text of more than a hundred bytes, " * 4)
    done = phoenix("serve", "--port", "0", "--dir", str(tmp_path))
    assert done.returncode == 2 and "it is no database; move the file away" in done.stderr
    seeded = CliRunner().invoke(app, ["demo", "--seed-data", "--dir", str(tmp_path)])
    assert seeded.exit_code == 2 and "it is no database; move the file away" in seeded.stderr


def test_a_document_that_is_too_much_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    done = phoenix("trial", str(tmp_path / "deep.yaml"), "--dir", str(tmp_path / "trial"))
    assert done.returncode == 2 and "nested too deeply" in done.stderr


def test_inject_without_a_service(tmp_path: Path) -> None:
    done = phoenix("inject", "process_kill", "--rank", "0", "--server", "http://127.0.0.1:1", "--dir", str(tmp_path))
    assert done.returncode == 2 and "no service answers" in done.stderr
    assert "phoenix serve" in done.stderr and "--server" in done.stderr
    assert "choose one target" in phoenix("inject", "process_kill", "--dir", str(tmp_path)).stderr


@pytest.mark.parametrize("arguments", [("schema",), ("nightly", "--help")])
def test_output_that_nobody_reads_is_no_failed_trial(arguments: tuple[str, ...]) -> None:
    """`phoenix compare ... | head` under `pipefail`: 1 would say that something became slower."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "service.cli", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_certificate_that_is_not_trusted_is_no_service_that_is_missing() -> None:
    def handshake(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("certificate verify failed") from ssl.SSLCertVerificationError("self-signed")

    with Client("https://phoenix.example") as client:
        client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(handshake))
        with pytest.raises(ClientError, match=r"not trusted here .*SSL_CERT_FILE") as refused:
            list(client.runs())
    assert not isinstance(refused.value, NoAnswer)


SUITE = {
    "name": "s",
    "scenarios": [
        {"scenario": {"name": "k", "workload": "gpt-tiny", "steps": 9,
                      "faults": [{"kind": "process_kill", "target": {"rank": 0}, "trigger": {"at_step": 3}}]},
         "seeds": [1, 2]}
    ],
}  # fmt: skip


def test_a_dry_run_of_a_suite_for_programs_and_with_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(SUITE))
    done = CliRunner().invoke(app, ["nightly", str(path), "--dry-run", "--json"])
    told = json.loads(done.stdout)
    assert [(one["name"], one["seed"]) for one in told["trials"]] == [("k-seed1", 1), ("k-seed2", 2)]
    assert told["trials"][0]["faults"][0]["kind"] == "process_kill"
    path.write_text(json.dumps(SUITE).replace('"steps"', '"runtime": "nobody", "steps"'))
    done = CliRunner().invoke(app, ["nightly", str(path), "--dry-run"])
    assert done.exit_code == 2 and "scenario k: runtime: unknown runtime 'nobody'" in done.output


def test_a_dry_run_says_what_this_machine_would_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.runtimes.no_gpus", lambda: "there is no compiler")
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(SUITE).replace('"steps"', '"cluster": {"gpus": "r570"}, "steps"'))
    done = CliRunner().invoke(app, ["nightly", str(path), "--dry-run", "--json"])
    assert [one["skipped"] for one in json.loads(done.stdout)["trials"]] == ["there is no compiler"] * 2
    assert "skipped here: there is no compiler" in CliRunner().invoke(app, ["nightly", str(path), "--dry-run"]).output


@pytest.mark.parametrize("name", ["", "suite.json/below.xml"])
def test_a_report_that_cannot_be_written_is_told_before_the_night(tmp_path: Path, name: str) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(SUITE))
    done = CliRunner().invoke(
        app, ["nightly", str(path), "--junit", str(tmp_path / name), "--dir", str(tmp_path / "out")]
    )
    assert done.exit_code == 2 and f"cannot write {tmp_path / name}" in done.output, done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("halt", "--reason", "x", "--ttl", "nan"), "ttl_s: must be a finite number"),
        (("inject", "straggle", "--run", "r", "--rank", "0", "--after", "inf"), "trigger.after_s: must be a finite"),
        (
            ("inject", "straggle", "--run", "r", "--rank", "0", "--param", "delay_s=NaN"),
            "params.delay_s: must be a fini",
        ),
        (("submit", "none.yaml"), "there is no file none.yaml"),
        (("submit", "/proc"), "/proc is a directory"),
        (("prune", "--keep-days", "inf"), "--keep-days"),
        (("serve", "--keep-days", "1e300"), "--keep-days"),
        (("tokens", "create", ""), "1 to 100 characters"),
        (("tokens", "create", "a\x1b[31m"), "leave out the control characters"),
        (("tokens", "list", "--dir", "/dev/null"), "data directory /dev/null"),
        (("tokens", "create", "ada", "--dir", "/dev/null/x"), "data directory /dev/null/x"),
        (("export", "x.tar.gz", "--database", "sqlite:////proc/self/phoenix.db"), "able to write the file"),
        (("serve", "--port", "0", "--repository", "/proc"), "/proc is in no git checkout"),
        (("compare", "HEAD~1", "HEAD", "--repo", "/proc"), "/proc is in no git checkout"),
        (("import", __file__), "is no whole tar file, as `phoenix export` writes it: copy or export it again\n"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    options = [] if "--dir" in arguments else ["--dir", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, *options], env={"PHOENIX_SERVER": "http://127.0.0.1:1"})
    assert done.exit_code == 2 and says in done.output, (done.output, done.exception)


def test_a_token_that_can_be_none_is_refused_in_words(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["runs", "--dir", str(tmp_path)], env={"PHOENIX_TOKEN": "phx_ä"})
    assert done.exit_code == 2 and "this token" in done.output, done.output


def test_runs_name_their_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    run = {"id": "r1", "suite": "nightly", "scenario": "kill-one", "state": "FINISHED", "verdict": "PASS",
           "progress": {"done": 24, "total": 24}, "created_at": "2026-11-29T02:00:00Z"}  # fmt: skip

    class Stand:
        def get(self, path: str, **query: object) -> dict[str, object]:
            asked.update(query)
            return {"items": [run, {**run, "id": "r2", "suite": None}]}

    monkeypatch.setattr("service.commands.runs.connected", lambda *_: nullcontext(Stand()))
    done = CliRunner().invoke(app, ["runs", "--suite", "nightly"])
    _, first, second = done.stdout.splitlines()
    assert asked["suite"] == "nightly" and "suite nightly" in first and "kill-one" in second


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
        lambda: replace(settings, database_url="mysql://x"),
        lambda: replace(settings, database_url="sqlite://"),
        lambda: replace(settings, database_url="sqlite:///:memory:"),
        lambda: replace(settings, database_url="sqlite:///file:x?mode=memory&uri=true"),
    ]
    for make in wrong:
        with pytest.raises(SettingsError):
            make()


@pytest.mark.parametrize(
    "arguments", [("export", "x.tar.gz"), ("prune", "--keep-days", "1"), ("tokens", "list"), ("tokens", "revoke", "x")]
)
def test_a_misspelt_data_directory_is_told_and_not_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path / "typo")])
    assert done.exit_code == 2 and f"no database in the data directory {tmp_path / 'typo'}" in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_another_program_holds_is_told_with_what_to_do() -> None:
    with closing(Database("sqlite:///x.db")) as database:
        said = what_to_do(database, OperationalError("", None, Exception("database is locked")))
    assert "another program holds it" in said and "disk" not in said


def test_a_database_that_can_only_be_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    made = Database(f"sqlite:///{tmp_path / 'phoenix.db'}")
    made.migrate()
    made.close()
    url = f"sqlite:///file:{tmp_path / 'phoenix.db'}?mode=ro&uri=true"
    for arguments in (("serve", "--port", "0"), ("tokens", "create", "ada"), ("prune", "--keep-days", "1")):
        done = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path), "--database", url])
        assert done.exit_code == 2 and "readonly database" in done.stderr, done.output
        assert str(tmp_path / "phoenix.db") in done.stderr and "able to write the file and its directory" in done.stderr


def test_a_report_of_a_night_on_standard_output_is_all_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({**SUITE, "budget_s": 0.001}))  # so that nothing begins
    base = ["nightly", str(path), "--dir"]
    done = CliRunner().invoke(app, [*base, str(tmp_path / "one"), "--junit", "-"])
    assert done.exit_code == 3 and "budget" in done.stderr, done.output
    assert ElementTree.fromstring(done.stdout).tag == "testsuites"
    both = CliRunner().invoke(app, [*base, str(tmp_path / "two"), "--markdown", "-", "--json"])
    assert both.exit_code == 2 and "standard output takes one document" in both.stderr
    assert not (tmp_path / "two").exists() and not Path("-").exists()
