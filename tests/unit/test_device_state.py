"""State on a device: copied beside the training, sent, put back, with its random generators. CUDA is a fake here."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from phoenix_core import packing, rng
from phoenix_core.copier import DeviceCopier, HostCopier, copier_for
from phoenix_core.snapshot import Protected
from tests.unit.test_snapshot import job, transfer


class FakeCuda:
    """Writes down in which order a device is asked for things."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.registered: list[int] = []
        self.generators = {0: torch.tensor([10]), 1: torch.tensor([11])}
        self.device_now = 0
        self.used = True

    def Stream(self, device: Any) -> Any:
        return SimpleNamespace(name="side", wait_event=lambda event: self.log.append(f"side waits for {event.at}"))

    def Event(self) -> Any:
        event = SimpleNamespace(at="")

        def record(stream: Any) -> None:
            event.at = f"{stream.name}:{len(self.log)}"
            self.log.append(f"recorded on {stream.name}")

        event.record, event.synchronize = record, lambda: self.log.append(f"waited for {event.at}")
        return event

    def current_stream(self, device: Any) -> Any:
        return SimpleNamespace(name="main")

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield
        self.log.append(f"off {stream.name}")

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def cudart(self) -> Any:
        return SimpleNamespace(
            cudaHostRegister=lambda pointer, size, flags: self.registered.append(pointer),
            cudaHostUnregister=lambda pointer: self.registered.remove(pointer),
        )

    def check_error(self, result: Any) -> None:
        assert result is None

    def is_initialized(self) -> bool:
        return self.used

    def current_device(self) -> int:
        return self.device_now

    def device_count(self) -> int:
        return len(self.generators)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [state.clone() for state in self.generators.values()]

    def set_rng_state(self, state: torch.Tensor, device: int) -> None:
        self.generators[device] = state


def parts() -> list[torch.Tensor]:
    return [torch.arange(5, dtype=torch.uint8), torch.arange(7, 10, dtype=torch.uint8)]


def memory(size: int) -> memoryview:
    array: Any = numpy.empty(size, dtype=numpy.uint8)
    return memoryview(array)


def test_both_copiers_write_the_same_bytes() -> None:
    for copier in (HostCopier(), DeviceCopier(torch.device("cuda", 0), FakeCuda())):
        room = torch.frombuffer(memory(8), dtype=torch.uint8)
        copier.copy(parts(), room, copier.mark())
        assert room.tolist() == [0, 1, 2, 3, 4, 7, 8, 9]


def test_a_device_is_copied_from_beside_the_training_and_after_what_was_asked_before() -> None:
    cuda = FakeCuda()
    copier = DeviceCopier(torch.device("cuda", 0), cuda)
    mark = copier.mark()
    copier.copy(parts(), torch.empty(8, dtype=torch.uint8), mark)
    assert cuda.log == [
        "recorded on main",
        "side waits for main:0",
        "on side",
        "recorded on side",
        "off side",
        "waited for side:3",
    ]


def test_memory_is_pinned_once_and_as_long_as_it_lives() -> None:
    cuda = FakeCuda()
    copier = DeviceCopier(torch.device("cuda", 0), cuda)
    whole = memory(64)
    for part in (whole, whole[:32]):  # a state of another size in the same room
        copier.pin(part)
    assert cuda.registered == [torch.frombuffer(whole, dtype=torch.uint8).data_ptr()]
    del whole, part
    gc.collect()
    assert cuda.registered == []


def test_a_state_on_the_cpu_is_copied_by_the_cpu() -> None:
    assert isinstance(copier_for(parts()), HostCopier) and isinstance(copier_for([]), HostCopier)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor goes the way of one on a device."""
    monkeypatch.setattr(packing, "_on_host", lambda tensor: not tensor.numel())


@pytest.mark.usefixtures("staged")
def test_a_state_that_is_staged_arrives_in_every_bit() -> None:
    giver, _, _, _ = job(seed=1, steps=3)
    taker, _, _, _ = job(seed=2, steps=1)
    transfer(giver, taker)
    assert taker.digests()[0] == giver.digests()[0]


@pytest.mark.parametrize("way", ["host", "staged"])
def test_contents_in_a_row_are_those_one_by_one(way: str, request: pytest.FixtureRequest) -> None:
    if way == "staged":
        request.getfixturevalue("staged")
    tensors = [torch.arange(3.0), torch.empty(0), torch.tensor(7, dtype=torch.int64), torch.ones(2, 2).bfloat16()]
    assert packing.contents_of(tensors) == b"".join(packing.content_of(tensor) for tensor in tensors)


@pytest.mark.usefixtures("staged")
def test_a_room_on_a_device_is_written_only_once_it_is_full() -> None:
    tensor = torch.zeros(2, dtype=torch.uint8)
    rooms = packing.rooms([tensor])
    next(rooms)[:] = b"\1\2"
    assert tensor.tolist() == [0, 0]
    assert next(rooms, None) is None and tensor.tolist() == [1, 2]


def test_a_tensor_on_another_kind_of_device_is_refused() -> None:
    protected = Protected()
    protected.add({"model": torch.nn.Linear(2, 2, device="meta")})
    with pytest.raises(Exception, match="only on CPU and CUDA"):
        protected.check(1)


@pytest.mark.parametrize(("ours", "expected"), [(0, [10, 11]), (1, [20, 10])])
def test_the_generator_of_the_ranks_device_goes_to_the_device_of_its_successor(ours: int, expected: list[int]) -> None:
    before, after = FakeCuda(), FakeCuda()
    state = rng.capture(before)
    drawn = random.random()
    after.generators, after.device_now = {0: torch.tensor([20]), 1: torch.tensor([21])}, ours
    rng.restore(state, after)
    assert [int(value) for value in after.generators.values()] == expected
    assert random.random() == drawn


def test_a_process_without_cuda_is_not_asked_for_its_generators() -> None:
    cuda = FakeCuda()
    cuda.used = False
    assert "cuda" not in rng.capture(cuda)
