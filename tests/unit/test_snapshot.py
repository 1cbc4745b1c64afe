"""What belongs to a rank's state, and that it comes back exactly."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from phoenix_core.errors import SnapshotUnavailable, UsageError
from phoenix_core.packing import fill, memory_of, pack
from phoenix_core.snapshot import Protected


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def running_mean(model: torch.nn.Sequential) -> torch.Tensor:
    return model.get_buffer("1.running_mean").clone()


def job(seed: int, steps: int) -> tuple[Protected, torch.nn.Sequential, torch.optim.Optimizer, Counter]:
    """A model with buffers, trained for some steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    counter = Counter()
    protected = Protected()
    protected.add({"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": counter})
    for _ in range(steps):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        counter.value += 1
    return protected, model, optimizer, counter


def transfer(giver: Protected, taker: Protected) -> None:
    described, parts = giver.describe(layouts=[], start=giver.capture_start())
    description, rooms = taker.place(described)
    for part, room in zip(parts, rooms, strict=True):
        room[:] = part
    taker.load_start(description["start"])


@pytest.mark.parametrize("own_steps", [0, 1])
def test_a_twins_state_arrives_in_every_bit(own_steps: int) -> None:
    giver, _, given_optimizer, _ = job(seed=1, steps=3)
    taker, _, optimizer, _ = job(seed=2, steps=own_steps)
    transfer(giver, taker)
    taker.load_small(giver.capture_small({}))
    assert taker.digests() == giver.digests()
    assert optimizer.param_groups[0]["lr"] == given_optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


def test_training_goes_on_equally_after_the_transfer() -> None:
    giver, model, optimizer, _ = job(seed=1, steps=3)
    taker, other_model, other_optimizer, _ = job(seed=2, steps=0)
    transfer(giver, taker)
    batch = torch.randn(8, 4)
    for net, opt in ((model, optimizer), (other_model, other_optimizer)):
        net(batch).sum().backward()
        opt.step()
    assert giver.digests()[0] == taker.digests()[0]


def test_the_small_state_brings_back_random_numbers_data_and_buffers() -> None:
    protected, model, _, counter = job(seed=1, steps=2)
    payload = protected.capture_small({"loss": 0.25})
    expected = (torch.rand(3), random.random(), counter.value, running_mean(model))
    model(torch.randn(8, 4))
    counter.value = 99
    assert protected.load_small(payload) == {"loss": 0.25}
    found = (torch.rand(3), random.random(), counter.value, running_mean(model))
    assert torch.equal(found[0], expected[0]) and found[1:3] == expected[1:3] and torch.equal(found[3], expected[3])


def test_a_large_buffer_that_never_changes_does_not_travel() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.zeros(1024, 1024))
    protected = Protected()
    protected.add({"model": model})
    assert len(protected.capture_small({})) < 100_000
    model.get_buffer("mask")[0, 0] = 1.0
    assert len(protected.capture_small({})) > 4_000_000


def test_another_shape_is_refused_with_both_shapes_named() -> None:
    giver, taker = Protected(), Protected()
    giver.add({"model": torch.nn.Linear(3, 2)})
    taker.add({"model": torch.nn.Linear(4, 2)})
    with pytest.raises(SnapshotUnavailable, match=r"model.parameter.weight comes as torch.float32 \(2, 3\).*\(2, 4\)"):
        taker.place(giver.describe([], giver.capture_start())[0])


def test_an_object_without_a_state_is_refused() -> None:
    with pytest.raises(UsageError, match=r"protect\(data=...\): a list has no state_dict"):
        Protected().add({"data": [1, 2]})


def test_what_a_broken_step_changed_is_put_back() -> None:
    protected, model, optimizer, _ = job(seed=1, steps=1)
    first, *others = model.parameters()
    first.grad = torch.zeros_like(first)
    start = protected.capture_start()
    protected.gradients.arrive()
    model(torch.randn(8, 4)).sum().backward()
    model.eval()
    optimizer.param_groups[0]["lr"] = 7.0
    protected.load_start(start)
    assert first.grad is not None and not first.grad.any()
    assert all(parameter.grad is None for parameter in others)
    assert model.training and optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_what_cannot_be_restored_is_refused_before_the_first_step() -> None:
    protected = Protected()
    protected.add({"model": torch.nn.Linear(2, 2)})
    protected.check(world_size=1)
    with pytest.raises(UsageError, match="hand over the wrapped model"):
        protected.check(world_size=2)
    strided = Protected()
    model = torch.nn.Linear(2, 2)
    model.register_buffer("view", torch.zeros(4, 4)[:, ::2])
    strided.add({"model": model})
    with pytest.raises(UsageError, match=r"protect\(model=...\): view: .* has gaps"):
        strided.check(world_size=1)


def test_a_job_that_protects_too_little_is_refused() -> None:
    with pytest.raises(UsageError, match="no module is protected"):
        Protected().check(world_size=2)
    protected = Protected()
    protected.add({"optimizer": torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)})
    with pytest.raises(UsageError, match=r"protect\(optimizer=...\): it changes parameters"):
        protected.check(world_size=1)


def test_a_tensor_in_another_memory_order_travels() -> None:
    tensor = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    copy = torch.empty_like(tensor)
    memory_of(copy)[:] = memory_of(tensor)
    assert torch.equal(copy, tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_memory_of_a_tensor_is_not_a_copy(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 2).to(dtype)
    memory_of(tensor)[0] = 1
    assert tensor.view(-1).view(torch.uint8)[0] == 1
    assert len(memory_of(torch.empty(0, dtype=dtype))) == 0


def test_equal_states_are_equal_bytes() -> None:
    states = [{"position": torch.arange(5), "epoch": 3} for _ in range(2)]
    assert pack(states[0]) == pack(states[1])
    restored = pickle.loads(pack(states[0]))
    assert torch.equal(restored["position"], states[0]["position"]) and restored["epoch"] == 3  # type: ignore[arg-type]


def test_a_state_that_did_not_change_is_not_taken_for_changed() -> None:
    protected, _, _, _ = job(seed=1, steps=2)
    assert protected.capture_small({"loss": 1.0}) == protected.capture_small({"loss": 1.0})


def test_equal_states_are_equal_bytes_whoever_holds_them() -> None:
    """Also after a round trip, which makes equal strings one object or one object two."""
    state = {"epoch": 1.0, "log": [{"epoch": 0.5}], "names": ["a", "a"]}
    again = pickle.loads(pack(state))
    again["log"] = [{"".join(("ep", "och")): 0.5}]
    assert pack(again) == pack(state)


def test_a_state_that_contains_itself_is_packed_all_the_same() -> None:
    state: dict[str, object] = {"value": 1}
    state["self"] = state
    assert pickle.loads(pack(state))["self"]["self"]["value"] == 1


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    """Hands over to another scheduler, as warm-ups of many libraries do; grows by a function that cannot be saved."""

    def __init__(self, optimizer: torch.optim.Optimizer, after: torch.optim.lr_scheduler.LRScheduler) -> None:
        self.after = after
        self.grow: Callable[[int], float] = lambda step: 0.1 * step
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        if self.last_epoch < 3:
            return [base * self.grow(self.last_epoch) for base in self.base_lrs]
        self.after.step()
        return self.after.get_last_lr()


def test_a_scheduler_inside_of_another_goes_on_with_the_same_optimizer() -> None:
    def rates(disturbed: bool) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        warmup = Warmup(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        protected = Protected()
        protected.add({"optimizer": optimizer, "scheduler": warmup})
        found = []
        for _ in range(7):
            start = protected.capture_start()
            if disturbed:
                optimizer.step()
                warmup.step()
                protected.load_start(start)
                assert warmup.after.optimizer is optimizer
            optimizer.step()
            warmup.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates(disturbed=True) == rates(disturbed=False)


def test_every_scaler_is_known_whenever_and_however_it_was_made() -> None:
    """In a process of its own, where nobody has looked yet."""
    code = """
import copy, gc, torch
first = torch.amp.GradScaler("cpu")
class Own(torch.amp.GradScaler): pass
from phoenix_core.carried import SCALERS
from phoenix_core.snapshot import Protected
Protected()
made = [first, torch.amp.GradScaler("cpu", init_scale=2.0), Own("cpu"), copy.deepcopy(first)]
gc.get_objects = None  # nobody looks again
Protected()
assert set(SCALERS) == set(made) and made[1].get_scale() == 2.0
del made, first
assert not SCALERS
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_scaler_inside_of_an_own_object_and_a_fused_optimizer_begin_the_step_anew() -> None:
    class Native:
        """As in image libraries: it hands its scaler's state on."""

        def __init__(self) -> None:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            self.state_dict, self.load_state_dict = self.scaler.state_dict, self.scaler.load_state_dict

    model, native = torch.nn.Linear(2, 1), Native()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    protected = Protected()
    protected.add({"model": model, "optimizer": optimizer, "scaler": native})
    protected.check(1)
    start = protected.capture_start()
    protected.gradients.arrive()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    hook = optimizer.register_step_pre_hook(interrupted)
    native.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    with pytest.raises(KeyboardInterrupt):
        native.scaler.step(optimizer)
    assert getattr(optimizer, "grad_scale", None) is not None, "the scaler left it"
    hook.remove()
    protected.load_start(start)
    assert getattr(optimizer, "grad_scale", None) is None
    native.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    native.scaler.unscale_(optimizer)
    assert model.bias.grad == 1.0


def test_what_was_frozen_is_frozen_again() -> None:
    protected, model, _, _ = job(seed=1, steps=1)
    model[0].requires_grad_(False)
    start = protected.capture_start()
    model.requires_grad_(True)
    protected.load_start(start)
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True, True, True, True]


def test_tensors_without_content_are_filled_with_nothing() -> None:
    fill([torch.empty(0), torch.zeros(1, dtype=torch.uint8), torch.empty(0, 3)], b"\1")


def test_a_large_buffer_that_a_broken_step_changed_first_is_as_at_the_start_again() -> None:
    model = torch.nn.Module()
    model.register_buffer("large", torch.zeros(20_000))
    protected = Protected()
    protected.add({"model": model})
    small = protected.capture_small({})
    model.get_buffer("large").add_(1)
    protected.load_small(small)
    assert not model.get_buffer("large").any()


def test_a_state_that_a_twin_gives_lies_in_memory_as_its_parameter() -> None:
    def made(steps: int) -> tuple[Protected, torch.nn.Module]:
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters())
        protected = Protected()
        protected.add({"model": model, "optimizer": optimizer})
        for _ in range(steps):
            model(torch.ones(1, 3, 5, 5)).square().sum().backward()
            optimizer.step()
        return protected, model

    (giver, given), (taker, taken) = made(2), made(0)
    transfer(giver, taker)
    mine, theirs = dict(taker.tensors()), dict(giver.tensors())
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert given is not taken


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    model = torch.nn.Linear(2, 1)
    protected = Protected()
    protected.add({"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=rate)})
    start = protected.capture_start()
    rate.fill_(0.5)
    protected.load_start(start)
    assert rate == torch.tensor(0.1) and protected.optimizers()["optimizer"].param_groups[0]["lr"] is rate
