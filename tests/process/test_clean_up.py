"""What a suite leaves on the machine, with the real runtime and lasting faults of each family at once: nothing.

Ended in order or by SIGKILL in its middle, the same witnesses are asked, none of which is our own no_leak check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from chaos import cgroups
from chaos.disk import trouble as no_disk
from chaos.leaks import find_leaks, footprint
from chaos.nvml.build import no_gpus
from chaos.procfs import all_processes, process_stat
from phoenix_core.events import Event, read_events
from tests.process.isolated import skip_where_refused
from tests.support import MARKER, Belongings, belongings, wait_until

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900)]

STARTED_S, GONE_S = 400.0, 30.0
KINDS_OF_NAMESPACE = ("net", "user", "mnt")


def lasting(ttl_s: float) -> list[dict[str, object]]:
    """One fault of each family that stands until it is reverted, all at one step.

    The frozen process is the launcher: it can act on no signal, and nobody misses it for as long as that.
    """
    kinds: dict[str, tuple[dict[str, object], dict[str, object]]] = {
        "process_stop": ({"store": True}, {}),
        "cpu_throttle": ({"rank": 0}, {"share": 0.5}),
        "disk_full": ({"rank": 0}, {}),
        "gpu_xid": ({"rank": 1}, {"xid": 119, "effect": "none"}),
        "network_partition": ({"rank": 2}, {"shape": "isolate", "plane": "data"}),
    }
    return [
        {"id": kind, "kind": kind, "target": target, "trigger": {"at_step": 20}, "params": {**params, "ttl_s": ttl_s}}
        for kind, (target, params) in kinds.items()
    ]


def entry(name: str, *, steps: int, faults: list[dict[str, object]], **cluster: object) -> dict[str, object]:
    scenario = {
        "name": name,
        "workload": "gpt-tiny",
        "steps": steps,
        "cluster": {"nodes": 3, "spares": 1, **cluster},
        "checkpoint_every": 10,
        "faults": faults,
        "checks": ["fired", "no_leak"],
        "timeout_s": 240,
    }
    return {"scenario": scenario}


def everything(*, steps: int, ttl_s: float) -> dict[str, object]:
    return entry("everything", steps=steps, faults=lasting(ttl_s), isolation="namespaces", gpus="r570")


class Night:
    """`phoenix nightly` as a user starts it, with a directory of its own for temporary files, so that all are seen."""

    def __init__(self, run_dir: Path, *entries: dict[str, object]) -> None:
        self.directory, self.temporary = run_dir / "out", run_dir / "tmp"
        self.temporary.mkdir()
        suite = run_dir / "suite.yaml"
        suite.write_text(json.dumps({"name": "x", "scenarios": entries}))
        self._before = footprint(), belongings(os.environ[MARKER]), set(os.listdir("/sys/class/net"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "nightly", str(suite), "--dir", str(self.directory)],
            # torch keeps a cache for every run of a user, by default among the temporary files.
            env={**os.environ, "TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(run_dir / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def told(self, trial: str, kind: str) -> list[Event]:
        events = self.directory / trial / "run" / "events"
        return [event for event in read_events(events) if event.kind == kind] if events.exists() else []

    def pids(self) -> set[int]:
        """Every process of this suite that lives."""
        return {pid for pid, _ in self._now().processes - self._before[1].processes}

    def namespaces(self) -> set[str]:
        """Those in which its processes are, or which they keep open, other than our own."""
        own = {os.readlink(f"/proc/self/ns/{kind}") for kind in KINDS_OF_NAMESPACE}
        return {name for pid in self.pids() for name in namespaces_of(pid)} - own

    def must_have_left_nothing(self, pids: set[int], namespaces: set[str]) -> None:
        """Of these processes and namespaces that it had; some of it ends by itself, a moment after the last of ours."""
        wait_until(lambda: not self.pids(), "all of its processes end", GONE_S)
        wait_until(lambda: not namespaces & in_use(), "nobody keeps one of its namespaces", GONE_S)
        resources, _, links = self._before
        left = find_leaks(directory=self.directory, processes=(), pids=pids, before=resources)
        assert left.everything == ()
        assert set(os.listdir("/sys/class/net")) == links
        assert list(self.temporary.iterdir()) == []

    def _now(self) -> Belongings:
        return belongings(os.environ[MARKER])


@contextmanager
def night(run_dir: Path, *entries: dict[str, object]) -> Iterator[Night]:
    running = Night(run_dir, *entries)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def namespaces_of(pid: int) -> set[str]:
    """As the kernel calls them: `net:[4026532008]`. None of a process that has ended or is somebody else's."""
    links = [f"/proc/{pid}/ns/{kind}" for kind in KINDS_OF_NAMESPACE]
    with suppress(OSError):
        links += [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    found = set()
    for link in links:
        with suppress(OSError):
            found.add(os.readlink(link))
    return {name for name in found if name.startswith(tuple(f"{kind}:[" for kind in KINDS_OF_NAMESPACE))}


def in_use() -> set[str]:
    """Of every process of this machine that we may look at."""
    return {name for stat in all_processes() for name in namespaces_of(stat.pid)}


@pytest.fixture(autouse=True)
def able() -> None:
    """Skips where this machine cannot make one of the faults."""
    skip_where_refused()
    if reason := no_gpus() or no_disk():
        pytest.skip(reason)


def test_kill_9_while_faults_of_every_family_stand_leaves_nothing(run_dir: Path) -> None:
    usual = entry("usual", steps=30, faults=[])
    with night(run_dir, usual, everything(steps=1_000_000, ttl_s=600.0), usual) as running:
        kinds = {fault["id"] for fault in lasting(1.0)}

        def standing() -> dict[str, Event] | None:
            assert running.process.poll() is None, running.process.communicate()
            seen = {str(event.data["fault"]): event for event in running.told("002-everything", "fault_injected")}
            return seen if set(seen) == kinds else None

        receipts = wait_until(standing, "a fault of each family stands", STARTED_S)
        assert receipts
        assert not running.told("002-everything", "fault_reverted")
        frozen = process_stat(int(str(receipts["process_stop"].data["pid"])))
        assert frozen is not None and frozen.state == "T"
        throttled = Path(f"/proc/{receipts['cpu_throttle'].data['pid']}/cgroup").read_text()
        assert cgroups.trouble("cpu") or f"/phoenix-{running.process.pid}-" in throttled
        pids, namespaces = running.pids(), running.namespaces()
        assert sum(name.startswith("net:") for name in namespaces) >= 5, namespaces  # four nodes and their switch
        running.process.kill()
        running.process.wait()
        running.must_have_left_nothing(pids, namespaces)
        told = json.loads((running.directory / "summary.json").read_text())
        assert [trial["state"] for trial in told["trials"]] == ["PASS"] and told["finished_at"] is None


def test_a_suite_that_has_come_to_its_end_leaves_nothing(run_dir: Path) -> None:
    with night(run_dir, everything(steps=400, ttl_s=1.0)) as running:
        wait_until(lambda: running.told("001-everything", "fault_injected"), "the first fault", STARTED_S)
        pids, namespaces = running.pids(), running.namespaces()
        output, _ = running.process.communicate(timeout=STARTED_S)
        assert running.process.returncode == 0, output
        assert len(running.told("001-everything", "fault_reverted")) == len(lasting(1.0))
        running.must_have_left_nothing(pids, namespaces)
