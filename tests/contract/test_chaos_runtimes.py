"""What every runtime adapter promises: the command runs the job, its events and logs are where the trial looks."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.errors import InvalidScenario
from chaos.launch import Launch, marked
from chaos.leaks import find_leaks, footprint
from chaos.record import PartDirectory
from chaos.runtimes import RUNTIMES, Job, Runtime, find_runtime, with_extra
from chaos.scenario import Cluster
from chaos.workloads import GPT_TINY
from phoenix_core.events import read_events
from tests.contract.fake_runtime import FakeRuntime
from tests.support import wait_until

RUNTIMES_UNDER_TEST: dict[str, Runtime] = {**RUNTIMES, "fake": FakeRuntime()}
del RUNTIMES_UNDER_TEST["torchrun-async"]  # the same command but for one word, which has a test of its own


@pytest.fixture(params=sorted(RUNTIMES_UNDER_TEST))
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES_UNDER_TEST[request.param]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    directory = PartDirectory(path=tmp_path / "run")
    directory.events.mkdir(parents=True)
    directory.logs.mkdir()
    return Job(
        workload=tuple(GPT_TINY.arguments(steps=5, seed=1, options={})),
        steps=5,
        seed=1,
        cluster=Cluster(nodes=2, ranks_per_node=1, spares=1),
        directory=directory,
        restarting=GPT_TINY.restarting,
    )


@pytest.mark.process
def test_a_job_runs_to_its_end_and_tells_what_happened(runtime: Runtime, job: Job) -> None:
    before = footprint()
    with Launch(runtime.command(job), log=job.directory.logs / "launcher.log", token="t1") as launch:
        ended = wait_until(launch.poll, "the job ends", deadline_s=40)
    assert ended is not None
    log = (job.directory.logs / "launcher.log").read_text()
    assert (ended.code, ended.left) == (0, ()), log
    events = read_events(job.directory.events)
    kinds = {event.kind for event in events}
    assert {"worker_spawned", "world_formed", "phase_entered", "step_committed", "state_digest"} <= kinds
    spawned = [event for event in events if event.kind == "worker_spawned"]
    assert all({"pid", "start_ticks"} <= set(event.data) and event.node and event.worker for event in spawned)
    committed = {(event.rank, event.step) for event in events if event.kind == "step_committed"}
    assert committed == {(rank, step) for rank in range(2) for step in range(5)}
    world = next(event for event in events if event.kind == "world_formed")
    ranks = world.data["ranks"]
    assert isinstance(ranks, list) and len(ranks) == 2
    assert set(ranks) <= {event.worker for event in spawned}
    assert all("loss" in event.data for event in events if event.kind == "step_committed")
    pids = [int(str(event.data["pid"])) for event in spawned]
    assert find_leaks(directory=job.directory.path, processes=(), pids=pids, before=before).everything == ()


_TAKES_LONG = [pytest.param(name, marks=pytest.mark.soak if name == "torchrun" else ()) for name in RUNTIMES_UNDER_TEST]


@pytest.mark.process
@pytest.mark.parametrize("runtime", _TAKES_LONG, indirect=True)
def test_sigterm_ends_all_of_it(runtime: Runtime, job: Job) -> None:
    with Launch(runtime.command(job), log=job.directory.logs / "launcher.log", token="t2") as launch:
        events = job.directory.events
        wait_until(lambda: any(e.kind == "worker_spawned" for e in read_events(events)), "a worker is started")
        launch.end()
        started = time.monotonic()
        ended = wait_until(launch.poll, "the job ends", deadline_s=25)
    assert ended is not None
    assert ended.code != 0
    assert ended.left == ()
    assert time.monotonic() - started < 10
    assert marked("t2") == {}


def test_a_runtime_is_found_by_name_or_refused_with_the_names() -> None:
    assert find_runtime("phoenix").name == "phoenix"
    with pytest.raises(InvalidScenario, match=r"unknown runtime 'x'; there are: phoenix, torchrun"):
        find_runtime("x")


def test_other_runtimes_come_from_the_operators_environment() -> None:
    assert set(with_extra("")) == set(RUNTIMES)
    assert with_extra("tests.contract.fake_runtime:FAKE")["fake"].name == "fake"
    for wrong in ("nonsense", "no.such:thing", "chaos.runtimes:nothing"):
        with pytest.raises(InvalidScenario, match="PHOENIX_RUNTIMES"):
            with_extra(wrong)


def test_the_phoenix_command_is_what_a_user_would_type_with_an_agent_in_each_worker(job: Job) -> None:
    argv = RUNTIMES["phoenix"].command(job).argv[1:]
    shape = ("--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--run-dir", os.fspath(job.directory.path))
    assert argv == ("-m", "phoenix_core", "run", *shape, "-m", "chaos.agent", *job.workload)


def test_on_isolated_nodes_the_same_command_runs_where_each_has_a_network(job: Job) -> None:
    plain = RUNTIMES["phoenix"].command(job).argv
    isolated = replace(job, cluster=replace(job.cluster, isolation="namespaces"))
    argv = RUNTIMES["phoenix"].command(isolated).argv
    file = os.fspath(job.directory.path / "network.json")
    there = argv.index("--")
    assert argv[1:there] == ("-m", "chaos.cluster.build", "--nodes", "n0,n1,n2", "--file", file)
    assert [part for part in argv[there + 1 :] if part not in ("--hosts", file)] == list(plain)
