"""What the agent promises, on real processes: what it says has happened did happen, and what it refuses never will."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.agent.mailbox import DIRECTORY, SNAPSHOTS
from chaos.checkout import import_path
from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import Active, inside
from chaos.injectors.base import Pending
from chaos.injectors.inside import inside_injectors
from chaos.procfs import process_stat, start_ticks
from chaos.record import PartDirectory
from chaos.roster import WorkerInfo, WorkerState
from tests.support import wait_until

pytestmark = pytest.mark.process

# Two threads that count: the beats of a heart, and the steps of the main thread.
PLAIN = """
import mmap, signal, sys, threading, time
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 16)
def count(offset):
    page[offset:offset + 8] = (int.from_bytes(page[offset:offset + 8], "little") + 1).to_bytes(8, "little")
def beat():
    while True:
        time.sleep(0.002)
        count(0)
threading.Thread(target=beat, daemon=True).start()
while True:
    time.sleep(0.002)
    count(8)
"""
TRAINING = """
import mmap, sys, time
import torch
torch.set_num_threads(1)
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 16)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    page[8:16] = step.to_bytes(8, "little")
    time.sleep(0.001)
"""

# One rank of plain DDP on a group written in C++; the first count says whether a parameter is NaN.
ALONE = """
import mmap, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 16)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    page[:8] = sum(int(p.isnan().any()) for p in model.parameters()).to_bytes(8, "little")
    page[8:16] = step.to_bytes(8, "little")
    time.sleep(0.001)
"""

# Keeps states of two other ranks, in the class that the environment names; the first count is of bits that are set.
KEEPER = """
import mmap, sys, time
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 16)
class Kept:
    def __init__(self):
        self.states = {1: bytes(100), 2: memoryview(bytearray(1000))}
    def boundaries(self):
        return {1: (3, 4), 2: (4,)}
    def get(self, owner, boundary):
        assert boundary == 4
        return self.states[owner]
kept, step = Kept(), 0
while True:
    step += 1
    page[:8] = sum(byte.bit_count() for state in kept.states.values() for byte in state).to_bytes(8, "little")
    page[8:16] = step.to_bytes(8, "little")
    time.sleep(0.001)
"""

TOLD = {SNAPSHOTS: "__main__:Kept"}


class Victim:
    """A process with an agent in it."""

    def __init__(self, directory: Path, code: str, *arguments: str, agent: bool = True) -> None:
        self.part = PartDirectory(path=directory)
        script, self._counts = directory / "script.py", directory / "counts"
        script.write_text(code)
        self._counts.write_bytes(bytes(16))
        prefix = ["-m", "chaos.agent"] if agent else []
        self.process = subprocess.Popen(
            [sys.executable, *prefix, str(script), str(self._counts), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": import_path(),
                DIRECTORY: str(self.part.agents),
                SNAPSHOTS: "__main__:Kept",
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Victim:
        try:
            wait_until(lambda: self.steps > 2, "the script runs", deadline_s=40)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def beats(self) -> int:
        return int.from_bytes(self._counts.read_bytes()[:8], "little")

    @property
    def steps(self) -> int:
        return int.from_bytes(self._counts.read_bytes()[8:], "little")

    @property
    def worker(self) -> WorkerInfo:
        ticks = start_ticks(self.process.pid)
        assert ticks is not None
        return WorkerInfo(
            worker="w3", node="n3", pid=self.process.pid, start_ticks=ticks, state=WorkerState.ACTIVE, rank=3
        )

    def order(self, kind: str, **params: Any) -> Active | Pending:
        fault = PlannedFault.from_json({"id": "f", "kind": kind, "target": {"rank": 3}, "params": params})
        return inside_injectors(self.part)[kind].inject(fault, self.worker)

    def inject(self, kind: str, **params: Any) -> Active:
        """Order it and wait until it has happened."""
        pending = self.order(kind, **params)
        assert isinstance(pending, Pending)
        active = wait_until(pending.poll, f"{kind} happens")
        assert active is not None
        return active

    def moves(self, what: str) -> bool:
        """Whether this count grows within a fifth of a second."""
        before = getattr(self, what)
        deadline = time.monotonic() + 0.2
        while getattr(self, what) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        return bool(getattr(self, what) > before)

    def goes_on(self, *counts: str) -> None:
        """On a busy machine it may take a while to get its turn."""
        for what in counts:
            wait_until(lambda what=what: self.moves(what), f"its {what} go on")  # type: ignore[misc]

    def stands(self, *counts: str) -> None:
        """What was on its way when the fault began may still come."""
        for what in counts:
            wait_until(lambda what=what: not self.moves(what), f"its {what} stand")  # type: ignore[misc]

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        said = self.process.communicate(timeout=20)[1]
        return self.process.returncode, said


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with Victim(tmp_path, PLAIN) as started:
        yield started


@pytest.mark.parametrize(("kind", "number"), [("process_segfault", signal.SIGSEGV), ("process_abort", signal.SIGABRT)])
def test_a_process_ends_by_the_signal_of_its_own_mistake(victim: Victim, kind: str, number: int) -> None:
    before = time.monotonic_ns()
    active = victim.inject(kind)
    assert before <= active.injection.at <= time.monotonic_ns()
    assert (active.injection.worker, active.injection.pid) == ("w3", victim.process.pid)
    assert victim.end()[0] == -number
    assert not active.revert().alive


def test_an_exception_leaves_the_main_thread_with_its_text(victim: Victim) -> None:
    active = victim.inject("process_exception", error="OSError", text="no such device", place="now")
    assert active.injection.proof == {"error": "OSError: no such device"}
    code, said = victim.end()
    assert code == 1
    assert said.rstrip().endswith("OSError: no such device")


@pytest.mark.parametrize("busy", [True, False])
def test_who_holds_the_gil_stops_every_thread_until_it_is_released(victim: Victim, busy: bool) -> None:
    active = victim.inject("gil_hold", busy=busy, ttl_s=60)
    victim.stands("beats", "steps")
    assert active.over == ""
    seen = active.revert()
    assert seen.alive and int(str(seen.proof["held_ns"])) > 3e8
    victim.goes_on("beats", "steps")
    assert not active.revert().alive


def test_a_held_gil_is_given_up_when_its_time_is_over(victim: Victim) -> None:
    active = victim.inject("gil_hold", ttl_s=0.3)
    wait_until(lambda: active.over, "it is over by itself")
    victim.goes_on("beats", "steps")
    assert active.revert().alive


def test_a_native_hang_stops_the_main_thread_alone_and_no_signal_reaches_it(victim: Victim) -> None:
    active = victim.inject("native_hang", ttl_s=60)
    victim.stands("steps")
    victim.goes_on("beats")
    # An exception waits for a line of Python in vain, and is taken back for ever.
    pending = victim.order("process_exception", place="now")
    assert isinstance(pending, Pending)
    assert pending.poll() is None
    victim.stands("steps")
    assert pending.withdraw() is None
    assert active.revert().alive
    victim.goes_on("steps")


def test_an_order_that_nobody_takes_is_withdrawn_for_ever(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LISTEN_S", 0.1)
    victim.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: (stat := process_stat(victim.process.pid)) and stat.state == "T", "it stands still")
    pending = victim.order("process_segfault")
    assert isinstance(pending, Pending)
    with pytest.raises(TargetGone, match="took no order"):
        wait_until(pending.poll, "it is given up")
    victim.process.send_signal(signal.SIGCONT)
    victim.goes_on("steps", "beats")
    assert victim.process.poll() is None


def test_without_torch_there_is_no_step_to_strike_in(victim: Victim) -> None:
    pending = victim.order("process_exception", place="backward")
    assert isinstance(pending, Pending)
    with pytest.raises(TargetGone, match="has not imported torch"):
        wait_until(pending.poll, "it is refused")
    victim.goes_on("steps")


def test_files_of_checkpoints_are_slow_and_no_others(tmp_path: Path) -> None:
    code = "import os, sys, time\n" + PLAIN.replace("    count(8)", "    open(sys.argv[2], 'wb').close()\n    count(8)")
    for name, slow in (("checkpoints/x", True), ("other", False)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with Victim(tmp_path, code, str(tmp_path / name)) as victim:
            active = victim.inject("disk_slow", delay_s=30, ttl_s=60)
            (victim.stands if slow else victim.goes_on)("steps")
            victim.goes_on("beats")
            assert active.revert().proof == {"operations": int(slow)}
            victim.goes_on("steps")


def test_one_bit_of_each_kept_state_flips_or_of_the_one_that_was_named(tmp_path: Path) -> None:
    with Victim(tmp_path, KEEPER) as victim:
        flipped: Any = victim.inject("snapshot_bitflip").injection.proof["flipped"]
        assert [(one["owner"], one["boundary"], one["of"]) for one in flipped] == [(1, 4, 100), (2, 4, 1000)]
        wait_until(lambda: victim.beats == 2, "both states have a bit set")
        victim.inject("snapshot_bitflip", of_rank=2)
        wait_until(lambda: victim.beats != 2, "one of them has another, or the same one again")
        with pytest.raises(TargetGone, match="no state of such a rank"):
            victim.inject("snapshot_bitflip", of_rank=9)


def test_where_no_agent_runs_the_fault_is_missed_with_the_reason(tmp_path: Path) -> None:
    with (
        Victim(tmp_path, PLAIN, agent=False) as victim,
        pytest.raises(TargetGone, match="no agent runs in w3"),
    ):
        victim.order("process_segfault")


def test_a_training_straggles_until_it_is_released_and_fails_at_the_place_that_was_named(tmp_path: Path) -> None:
    with Victim(tmp_path, TRAINING) as victim:
        slow = victim.inject("straggle", delay_s=30, ttl_s=60)
        victim.stands("steps")
        seen = slow.revert()
        assert seen.alive and seen.proof == {"steps": 1}
        victim.goes_on("steps")
        victim.inject("process_exception", text="CUDA error: unspecified launch failure", place="backward")
        code, said = victim.end()
    assert code == 1
    assert "sum().backward()" in said and said.rstrip().endswith("CUDA error: unspecified launch failure")


def test_collectives_and_numbers_of_plain_ddp_go_wrong_as_ordered(tmp_path: Path) -> None:
    with Victim(tmp_path, ALONE) as victim:
        flipped = victim.inject("parameter_bitflip", bit=3).injection.proof
        assert flipped["bit"] == 3 and flipped["before"] != flipped["after"]
        with pytest.raises(
            TargetGone, match=r"bit 32 was asked for, and an element \(torch.float32\) has the bits 0..31"
        ):
            victim.inject("gradient_bitflip", bit=32)
        victim.goes_on("steps")
        assert victim.inject("collective_skip", nth=3).injection.proof["collective"] == "DDP's all_reduce"
        victim.goes_on("steps")
        assert victim.beats == 0
        victim.inject("gradient_nan")
        wait_until(lambda: victim.beats > 0, "the NaN is in a parameter")
        hung = victim.inject("collective_hang", nth=2, ttl_s=60)
        victim.stands("steps")
        assert hung.revert().alive
        victim.goes_on("steps")
        victim.inject("collective_fail")
        code, said = victim.end()
    assert code == 1 and said.rstrip().endswith("Connection closed by peer (injected by chaos)")


def test_a_script_that_is_not_there_is_told_in_words() -> None:
    done = subprocess.run([sys.executable, "-m", "chaos.agent", "none.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("there is no script none.py (a module needs -m); usage: ")
