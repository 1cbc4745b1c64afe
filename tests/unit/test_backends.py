"""The device seam: what a group is made of, how it is broken, and what the runtime waits for. NCCL is a fake here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from phoenix_core import backends
from phoenix_core.backends import Inner, NcclPart, is_broken_collective
from phoenix_core.communicator import Hub, PhoenixGroup
from phoenix_core.errors import GenerationSuperseded
from phoenix_core.formation import Connection, Formation
from phoenix_core.watermark import stream_of_group
from phoenix_core.work import COLLECTIVE_TIMEOUT, DeviceWork

WAIT_S = 20.0


class FakeNccl:
    """Records what is asked of it; its abort blocks until the test lets it end."""

    class Options:
        pass

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.environment = {name: os.environ.get(name) for name in backends.NCCL_SETTINGS}
        self.options = options
        self.connected: list[torch.device] = []
        self.aborted_by: list[int] = []
        self.aborting, self.may_end = threading.Event(), threading.Event()

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.connected.append(device)

    def abort(self) -> None:
        self.aborted_by.append(threading.get_ident())
        self.aborting.set()
        assert self.may_end.wait(WAIT_S)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> NcclPart:
    for name in backends.NCCL_SETTINGS:
        monkeypatch.setenv(name, "3")  # whatever the user's shell says
    monkeypatch.setattr(backends, "_c10d", SimpleNamespace(ProcessGroupNCCL=FakeNccl))
    return NcclPart(torch._C._distributed_c10d.HashStore(), 0, 2, "1/world")


def test_nccl_is_told_before_it_is_made_not_to_end_the_process(nccl: NcclPart) -> None:
    assert nccl.backend.environment == backends.NCCL_SETTINGS
    assert nccl.backend.options._timeout == COLLECTIVE_TIMEOUT


def test_an_abort_is_asked_once_and_keeps_nobody_waiting(nccl: NcclPart) -> None:
    for _ in range(3):
        nccl.break_off()
    assert nccl.backend.aborting.wait(WAIT_S)
    nccl.backend.may_end.set()
    assert len(nccl.backend.aborted_by) == 1 and nccl.backend.aborted_by[0] != threading.get_ident()


def test_a_communicator_that_is_given_up_is_aborted_first(nccl: NcclPart) -> None:
    nccl.backend.may_end.set()
    nccl.end()
    assert len(nccl.backend.aborted_by) == 1


class Work:
    """A collective on a GPU: `is_completed` gives the next answer, and raises an answer that is an error."""

    def __init__(self, *answers: bool | RuntimeError) -> None:
        self.answers = list(answers)
        self.found = torch.futures.Future[int]()

    def get_future_result(self) -> torch.futures.Future[int]:
        return self.found

    def is_completed(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RuntimeError):
            raise answer
        return answer


def test_torch_gets_nccls_own_work_and_the_runtime_a_view_of_it(nccl: NcclPart) -> None:
    work = Work(RuntimeError("CUDA is asked by the training thread only"))
    given, watched = nccl.watched(work, "allreduce", ())
    assert given is work and not watched.is_completed()
    work.found.set_result(0)
    assert watched.is_completed()


def test_the_optimizer_waits_until_the_gpu_has_executed_the_reductions() -> None:
    work = Work(False, False, True)
    DeviceWork(work, "allreduce").until_executed(lambda: False)
    assert work.answers == [True]


@pytest.mark.parametrize("answers", [(False, False), (False, True)])
def test_what_an_abort_may_have_ended_is_never_trusted(answers: tuple[bool, ...]) -> None:
    told = iter([False, True, True, True])
    with pytest.raises(GenerationSuperseded):
        DeviceWork(Work(*answers), "allreduce").until_executed(lambda: next(told))


def test_an_error_of_the_device_reaches_the_training_thread() -> None:
    work = DeviceWork(Work(RuntimeError("CUDA error: an illegal memory access was encountered")), "allreduce")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        work.until_executed(lambda: False)


def test_what_was_let_go_is_asked_for_no_more() -> None:
    work = DeviceWork(Work(False), "allreduce")
    work.let_go()
    assert work.is_completed()


def test_a_message_that_nobody_has_taken_yet_keeps_no_optimizer_waiting() -> None:
    DeviceWork(Work(False), "send").until_executed(lambda: False)


def hub() -> Hub:
    return Hub(lambda superseded: torch._C._distributed_c10d.HashStore(), "127.0.0.1")


def test_the_hub_commits_nothing_that_rests_on_a_broken_collective() -> None:
    one = hub()
    one.generation = one.announced = 1
    work = DeviceWork(Work(True), "allreduce")
    one.watermark.through("world", lambda: (work, work))
    one.verify()
    one.announced = 2
    with pytest.raises(GenerationSuperseded):
        one.verify()


class FakePart(backends.LocalPart):
    def __init__(self, device: str, log: list[str]) -> None:
        super().__init__(0, 2)
        self.device, self.log = device, log

    def connect(self, device: torch.device) -> None:
        self.log.append(f"{self.device} connects")

    def break_off(self) -> None:
        self.log.append(f"{self.device} broken")

    def watched(self, work: Any, name: str, outputs: object) -> tuple[Any, Any]:
        self.log.append(f"{self.device} {name}")
        return work, work


def inside(log: list[str]) -> Inner:
    group: Any = SimpleNamespace(allreduce=lambda tensors: "work", allgather=lambda outputs, inputs: "work")
    return Inner(group, {device: FakePart(device, log) for device in ("cpu", "meta")})


def test_a_collective_belongs_to_the_part_of_its_tensors_device() -> None:
    log: list[str] = []
    both = inside(log)
    both.run("allreduce", ([torch.zeros(1)],), {})
    both.run("allreduce", ([torch.zeros(1, device="meta")],), {})
    both.run("allgather", ([[torch.zeros(1, device="meta")]], []), {})
    both.break_off()
    assert log == ["cpu allreduce", "meta allreduce", "meta allgather", "cpu broken", "meta broken"]


def test_a_spare_is_answered_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "devices", lambda: ("cpu", "cuda"))
    local = backends.local(0, 2)
    assert {device.type for device in local.group._device_types} == {"cpu", "cuda"}
    tensor = torch.ones(3)
    local.run("allreduce", ([tensor],), {})[0].wait()
    assert tensor.tolist() == [1, 1, 1]


class Group:
    """One whose inside is formed when the test lets it."""

    def __init__(self, log: list[str], may: threading.Event) -> None:
        self.log, self.may = log, may
        self.kept = False
        self.installed: Inner | None = None

    logical_name = "world"

    def keep_inner(self, generation: int, joining: Collection[int]) -> Inner | None:
        return inside(self.log) if self.kept else None

    def make_inner(self, generation: int) -> Inner:
        assert self.may.wait(WAIT_S)
        self.log.append("formed")
        return inside(self.log)

    def install(self, inner: Inner, generation: int) -> None:
        self.installed = inner


def test_communicators_of_gpus_are_made_after_their_groups_were_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "used_device", lambda: torch.device("cuda", 0))
    log: list[str] = []
    may, one = threading.Event(), hub()
    group = Group(log, may)
    formations = one.connect([Formation([group], 2, (), lambda: None)])
    assert len(formations) == 2 and not formations[1].done.is_set()
    may.set()
    for formation in formations:
        assert formation.done.wait(WAIT_S)
    one.install(*formations)
    assert log == ["formed", "cpu connects", "meta connects"] and group.installed is not None


def test_what_is_kept_through_a_recovery_is_neither_connected_again_nor_ended() -> None:
    log: list[str] = []
    group = Group(log, _set())
    group.kept = True
    formed = Formation([group], 2, (), lambda: None)
    assert formed.done.wait(WAIT_S)
    assert formed.new() == [] and formed.left_over() == []


def test_without_a_gpu_nothing_is_connected() -> None:
    one = hub()
    formed = Formation([], 2, (), lambda: None)
    assert one.connect([formed]) == [formed]
    formed.end()


def test_a_member_that_dies_while_communicators_are_made_leads_to_the_next_generation() -> None:
    class Dying(FakePart):
        def connect(self, device: torch.device) -> None:
            raise dist.DistBackendError("NCCL error: remote process exited or there was a network error")

    formed = Formation([Group([], _set())], 2, (), lambda: None)
    assert formed.done.wait(WAIT_S)
    formed.new()[0].parts["meta"] = Dying("meta", [])
    connecting = Connection([formed], 2, torch.device("cuda", 0), lambda: None)
    assert connecting.done.wait(WAIT_S)
    with pytest.raises(GenerationSuperseded):
        connecting.install()


def test_a_device_that_fails_while_communicators_are_made_is_not_taken_for_a_lost_peer() -> None:
    class Failing(FakePart):
        def connect(self, device: torch.device) -> None:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    formed = Formation([Group([], _set())], 2, (), lambda: None)
    assert formed.done.wait(WAIT_S)
    formed.new()[0].parts["meta"] = Failing("meta", [])
    connecting = Connection([formed], 2, torch.device("cuda", 0), lambda: None)
    assert connecting.done.wait(WAIT_S)
    with pytest.raises(torch.AcceleratorError):
        connecting.install()


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.mark.parametrize(
    ("make", "text", "broken"),
    [
        (dist.DistBackendError, "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", True),
        (dist.DistBackendError, "NCCL communicator was aborted on rank 1.", True),
        (dist.DistBackendError, "NCCL error: invalid usage\nLast error: Duplicate GPU detected", False),
        (RuntimeError, "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer", True),
        (RuntimeError, "mat1 and mat2 shapes cannot be multiplied", False),
        (ValueError, "gloo/", False),
    ],
)
def test_a_broken_collective_is_told_from_a_wrong_call(
    make: Callable[[str], BaseException], text: str, broken: bool
) -> None:
    assert is_broken_collective(make(text)) is broken


def test_a_message_from_anybody_does_not_put_a_rank_ahead_of_its_group() -> None:
    hub = Hub(lambda _: HashStore(), "127.0.0.1")
    hub.localise()
    group = PhoenixGroup(hub, HashStore(), 0, (3, 4, 5), "world")
    group.recv_anysource([torch.zeros(1)], 0)
    group.allreduce([torch.zeros(1)])
    counts = hub.watermark.counts()
    assert (counts[stream_of_group("world")][0], counts["3>3"][0]) == (1, 1)
