"""What one GPU can show. Two ranks on one GPU are not among it: NCCL refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from benchmarks.gpu_parts import PARTS, Outcome, Place, Training
from phoenix_core import backends
from phoenix_core.copier import DeviceCopier, copier_for
from phoenix_core.device_errors import of_exception
from phoenix_core.packing import content_of, flat_bytes, pack, rooms

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_part_of_the_check_passes(part: Callable[[Place], Outcome]) -> None:
    outcome = part(Place.of("cuda", tiny=True))
    assert outcome.verdict == "PASS", outcome.reason


def test_groups_take_tensors_of_both_devices() -> None:
    assert backends.devices() == ("cpu", "cuda")


def test_a_snapshot_is_of_the_instant_of_its_mark_however_much_is_queued_before_it() -> None:
    tensor = torch.zeros(1 << 24, dtype=torch.uint8, device="cuda")
    parts = [flat_bytes(tensor)]
    copier = copier_for(parts)
    assert isinstance(copier, DeviceCopier)
    for _ in range(200):
        tensor.add_(1)  # queued, and not waited for
    array: Any = numpy.empty(tensor.numel(), dtype=numpy.uint8)
    copier.pin(memoryview(array))
    copier.copy(parts, torch.from_numpy(array), copier.mark())
    assert (array == 200).all()


def test_a_state_goes_to_the_host_and_back_in_every_bit() -> None:
    one, other = Training(Place.of("cuda", tiny=True), seed=1), Training(Place.of("cuda", tiny=True), seed=2)
    for training in (one, other):
        training.step()
    described, contents = one.protected.describe([], one.protected.capture_start())
    _, places = other.protected.place(described)
    for content, room in zip(contents, places, strict=True):
        room[:] = content
    assert other.protected.digests()[0] == one.protected.digests()[0]


def test_optimizer_state_that_is_not_there_yet_is_made_on_the_device() -> None:
    one, fresh = Training(Place.of("cuda", tiny=True)), Training(Place.of("cuda", tiny=True), seed=2)
    one.step()
    described, contents = one.protected.describe([], one.protected.capture_start())
    for content, room in zip(contents, fresh.protected.place(described)[1], strict=True):
        room[:] = content
    fresh.protected.load_start(one.protected.capture_start())
    fresh.step()
    assert all(tensor.is_cuda for tensor in fresh.tensors())


def test_a_room_on_the_device_is_written_once_it_is_full() -> None:
    tensor = torch.zeros(2, dtype=torch.uint8, device="cuda")
    places = rooms([tensor])
    next(places)[:] = b"\1\2"
    assert next(places, None) is None and bytes(content_of(tensor)) == b"\1\2"


def test_equal_states_on_a_device_are_equal_bytes() -> None:
    assert pack({"a": torch.ones(3, device="cuda")}) == pack({"a": torch.ones(3, device="cuda")})


def test_out_of_memory_is_the_scripts_own_error() -> None:
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert of_exception(raised.value) is None
