"""Whole suites with the torch-free runtime: what is left on disk, what is skipped, how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from chaos import runtimes
from chaos.cluster.abilities import Abilities
from chaos.errors import InvalidScenario, TrialError
from chaos.nightly import Nightly, plan, refusals
from chaos.procfs import all_processes
from chaos.record import TrialDirectory
from chaos.suite import Suite, suite_from
from chaos.summary import State, Summary
from chaos.verdict import Verdict
from phoenix_core.events import read_events
from tests.contract.fake_runtime import FakeRuntime
from tests.support import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

KILL = {"id": "kill", "kind": "process_kill", "target": {"rank": 2}, "trigger": {"at_step": 10}}


def entry(name: str, **changes: Any) -> dict[str, Any]:
    document = {"name": name, "workload": "gpt-tiny", "steps": 40, "runtime": "fake", "timeout_s": 20, **changes}
    return {"scenario": document}


def suite(*entries: dict[str, Any], **changes: Any) -> Suite:
    return suite_from({"name": "x", "scenarios": list(entries), **changes}, Path())


def run_all(nightly: Nightly) -> Summary:
    for trial in nightly.suite.trials:
        nightly.run(trial)
    return nightly.finish()


def nightly(run_dir: Path, plan: Suite) -> Nightly:
    return Nightly(plan, run_dir / "nightly", runtimes={"fake": FakeRuntime()})


def test_a_suite_leaves_a_directory_for_each_trial_and_the_summary(run_dir: Path) -> None:
    night = nightly(
        run_dir,
        suite(
            entry("kill", faults=[KILL]), entry("quiet"), entry("late", faults=[KILL | {"trigger": {"after_s": 99}}])
        ),
    )
    summary = run_all(night)
    assert [one.state.value for one in summary.entries] == ["PASS", "PASS", "UNKNOWN"], summary.to_json()
    assert summary.verdict is Verdict.UNKNOWN
    assert "fired: kill was missed" in summary.entries[2].reason
    assert sorted(path.name for path in night.directory.iterdir()) == [
        "001-kill", "002-quiet", "003-late", "junit.xml", "suite.json", "summary.json", "summary.md",
    ]  # fmt: skip
    assert json.loads((night.directory / "summary.json").read_text()) == summary.to_json()
    assert len(summary.entries[0].recovery_s) == 1
    shares = [one.goodput.share for one in summary.entries if one.goodput]
    assert len(shares) == 3 and all(0 < share <= 1 for share in shares)


def test_trials_of_one_job_share_its_undisturbed_run_and_others_do_not(run_dir: Path) -> None:
    night = nightly(
        run_dir, suite(entry("a", faults=[KILL]), entry("b"), entry("c", seed=1), entry("d", cluster={"spares": 3}))
    )
    summary = run_all(night)
    assert [(one.state, one.twin_of) for one in summary.entries] == [
        (State.PASS, None), (State.PASS, "001-a"), (State.PASS, None), (State.PASS, "001-a"),
    ]  # fmt: skip
    shared = TrialDirectory(night.directory / "002-b")
    # Each directory is whole: it can be judged without the others.
    assert read_events(shared.twin.events) == read_events(TrialDirectory(night.directory / "001-a").twin.events)
    (entered,) = [e for e in read_events(shared.run.events) if e.kind == "trial_phase" and e.data["part"] == "twin"]
    assert entered.data["source"] == "001-a"


def test_what_this_machine_cannot_do_is_skipped_with_the_reason(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "abilities", lambda: Abilities(isolation="namespaces are refused"))
    night = nightly(run_dir, suite(entry("quiet"), entry("parted", cluster={"isolation": "namespaces"})))
    summary = run_all(night)
    assert [(one.state, one.reason) for one in summary.entries] == [
        (State.PASS, ""),
        (State.SKIPPED, "namespaces are refused"),
    ]
    assert summary.verdict is Verdict.PASS
    assert not (night.directory / "002-parted").exists()


def test_a_known_failure_is_no_news_and_a_pass_in_its_place_is(run_dir: Path) -> None:
    fails = entry("fails", faults=[KILL], cluster={"spares": 0}) | {"known_failure": "there is no spare"}
    summary = run_all(nightly(run_dir, suite(fails, entry("quiet"))))
    assert [one.state for one in summary.entries] == [State.KNOWN, State.PASS]
    assert summary.entries[0].reason.startswith("known: there is no spare\nthe job failed")
    assert summary.verdict is Verdict.PASS
    heals = entry("heals", checks=["agreement"]) | {"known_failure": "there is no spare"}
    (healed,) = run_all(nightly(run_dir / "again", suite(heals))).entries
    assert (healed.state, "it passed, but the suite says that it fails" in healed.reason) == (State.FAIL, True)


def test_no_trial_begins_after_the_budget(run_dir: Path) -> None:
    summary = run_all(nightly(run_dir, suite(entry("a"), entry("b"), budget_s=0.001)))
    assert [one.reason for one in summary.entries] == ["not begun: the suite's budget of 0.001 s was over"] * 2
    assert summary.verdict is Verdict.UNKNOWN


def test_what_none_can_run_is_refused_before_anything_is_started(run_dir: Path) -> None:
    with pytest.raises(InvalidScenario, match="unknown runtime 'nobody'"):
        nightly(run_dir, suite(entry("a"), entry("b", runtime="nobody")))
    assert not (run_dir / "nightly").exists()
    (run_dir / "nightly").mkdir()
    (run_dir / "nightly" / "notes.txt").touch()
    with pytest.raises(TrialError, match="is not empty: choose another directory"):
        nightly(run_dir, suite(entry("a")))


def test_the_plan_tells_what_the_seeds_choose() -> None:
    poisson = KILL | {"target": {"random_rank": True}, "trigger": {"poisson": {"mtbf_s": 3, "count": 2}}}

    def planned(**changes: Any) -> str:
        asked = suite(entry("a", faults=[poisson], **changes))
        return plan(asked, refusals(asked, {"fake": FakeRuntime()}))

    told = planned()
    assert told.splitlines()[0] == "a  (gpt-tiny, 40 steps)"
    assert re.match(r'  kill-1  process_kill  {"rank": [0-3]}  {"after_s": ', told.splitlines()[1])
    assert told == planned() != planned(seed=9)


def command(run_dir: Path, plan: str, *more: str) -> subprocess.Popen[str]:
    (run_dir / "suite.yaml").write_text(plan)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "service.cli",
            "nightly",
            str(run_dir / "suite.yaml"),
            "--dir",
            str(run_dir / "out"),
            *more,
        ],
        env={**os.environ, "PHOENIX_RUNTIMES": "tests.contract.fake_runtime:FAKE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_writes_its_reports_and_returns_the_worst(run_dir: Path) -> None:
    plan = json.dumps({"name": "x", "scenarios": [entry("a"), entry("b", faults=[KILL], cluster={"spares": 0})]})
    with command(
        run_dir, plan, "--json", "--junit", str(run_dir / "j.xml"), "--markdown", str(run_dir / "m.md")
    ) as process:
        out, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (1, "")
    assert [trial["state"] for trial in json.loads(out)["trials"]] == ["PASS", "FAIL"]
    assert ElementTree.parse(run_dir / "j.xml").getroot().get("failures") == "1"
    assert "| b | FAIL |" in (run_dir / "m.md").read_text()


def test_ctrl_c_ends_the_suite_in_order(run_dir: Path) -> None:
    plan = json.dumps({"name": "x", "scenarios": [entry("a"), entry("b", steps=100_000), entry("c")]})
    with command(run_dir, plan) as process:
        wait_until((run_dir / "out" / "002-b" / "run" / "events" / "w0.jsonl").exists, "the second trial", 30.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out, err)
    assert err == "phoenix: interrupted; what was started has been ended\n"
    assert [line.split()[:2] for line in out.splitlines()[:3]] == [["PASS", "a"], ["UNKNOWN", "b"], ["UNKNOWN", "c"]]
    assert "not begun: interrupted" in out
    told = json.loads((run_dir / "out" / "summary.json").read_text())
    assert (told["verdict"], told["finished_at"] is not None) == ("UNKNOWN", True)


def test_kill_9_in_the_middle_leaves_nothing_running_and_what_was_known(run_dir: Path) -> None:
    plan = json.dumps({"name": "x", "scenarios": [entry("a"), entry("b", steps=100_000)]})
    with command(run_dir, plan) as process:
        wait_until((run_dir / "out" / "002-b" / "run" / "events" / "w0.jsonl").exists, "the second trial", 30.0)
        process.kill()
        process.communicate()
    wait_until(lambda: not naming(run_dir), "everything of the suite ends")
    told = json.loads((run_dir / "out" / "summary.json").read_text())
    assert [trial["state"] for trial in told["trials"]] == ["PASS"] and told["finished_at"] is None


def naming(directory: Path) -> list[int]:
    """Processes whose command line names this directory."""
    return [stat.pid for stat in all_processes() if os.fsencode(directory) in command_line(stat.pid) and not stat.ended]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_suite_that_cannot_be_read_is_a_usage_error(run_dir: Path) -> None:
    with command(run_dir, "name: x\nscenarios: []\n") as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.endswith("suite.yaml:2: scenarios: [] should be non-empty\n") and "Traceback" not in err
