"""What a script does to its protected state at a wrong time is named, and what is in order is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join

from phoenix_core import advice
from phoenix_core.errors import UsageError
from phoenix_core.misuse import Misuse, Samples
from phoenix_core.snapshot import Protected


class Script:
    """One linear layer, trained with a scaler in torch's own order: gradients stay until the next step."""

    def __init__(self, scale: float = 2.0) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.protected = Protected()
        self.protected.add({"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler})
        self.misuse = Misuse(self.protected)
        self.misuse.at_loop(2)

    def begin(self) -> None:
        self.optimizer.zero_grad()
        self.misuse.at_step()

    def backward(self) -> None:
        self.scaler.scale(self.model(torch.ones(1, 2)).sum() * 4).backward()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr("phoenix_core.misuse.say_once", texts.append)
    return texts


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_optimizer_may_be_skipped() -> None:
    """By a scaler after an overflow or by the script: the gradients that stay are gone before the next are made."""
    script = Script(scale=3e38)
    script.begin()
    script.backward()
    script.scaler.step(script.optimizer)
    script.scaler.update()
    assert bool(torch.isinf(next(script.model.parameters()).grad).any()), "it did overflow"  # type: ignore[arg-type]
    script.misuse.at_end(0)
    script.begin()
    script.misuse.at_backward()


def test_gradients_for_a_later_step_are_a_mistake() -> None:
    script = Script()
    script.begin()
    script.backward()
    script.misuse.at_end(7)
    script.misuse.at_step()
    with pytest.raises(UsageError, match="step 7 left gradients"):
        script.misuse.at_backward()
    script.misuse.at_backward()


def test_an_optimizer_that_is_not_protected_is_a_mistake() -> None:
    script = Script()
    script.begin()
    script.backward()
    torch.optim.SGD(script.model.parameters(), lr=0.1).step()
    with pytest.raises(UsageError, match="hand every optimizer to protect"):
        script.misuse.at_end(0)


def test_parameters_of_an_optimizer_do_not_become_more() -> None:
    script = Script()
    script.begin()
    script.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(UsageError, match="before the loop"):
        script.misuse.at_step()


@pytest.mark.parametrize("swap", ["content", "memory"])
def test_weights_that_are_swapped_by_data_are_not_those_of_the_boundary(said: list[str], swap: str) -> None:
    script = Script()
    for _ in range(2):  # each step is compared with its own beginning
        script.begin()
        kept = [parameter.data.clone() for parameter in script.model.parameters()]
        assert not script.misuse.at_break() and said == []
        for parameter in script.model.parameters():
            if swap == "content":
                parameter.data.copy_(parameter.data / 2)
            else:
                parameter.data = parameter.data / 2
        assert script.misuse.at_break() and said.pop() == advice.SWAPPED
        for parameter, values in zip(script.model.parameters(), kept, strict=True):
            parameter.data = values
        assert not script.misuse.at_break(), "the evaluation has put them back, on its way out"
        script.backward()
        script.optimizer.step()


def test_what_torch_counts_does_not_give_a_rank_s_state_up(said: list[str]) -> None:
    """A script that changes parameters early in each step has been told of it, and is not refused."""
    script = Script()
    script.begin()
    with torch.no_grad():
        script.model.bias.mul_(0.5)
    assert not script.misuse.at_break() and said == []


def test_samples_hold_for_tensors_of_any_kind() -> None:
    double, empty = torch.tensor([1.0, float("nan")], dtype=torch.float64), torch.zeros(0, 3)
    tensors = [torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last), empty, double, torch.zeros(())]
    samples = Samples()
    samples.take(tensors)
    assert samples.differing(tensors) == set()
    tensors[0].add_(1)
    double[1] = 2.0
    assert samples.differing(tensors) == {0, 2}


def test_parameters_that_change_before_the_optimizer_are_told_of(said: list[str]) -> None:
    script = Script()
    script.begin()
    script.backward()
    script.misuse.at_optimizer(whole=False)
    script.optimizer.step()
    script.begin()  # what the step before changed is no change of this one
    script.misuse.at_optimizer(whole=False)
    assert said == []
    with torch.no_grad():
        script.model.bias.mul_(0.5)
    script.misuse.at_optimizer(whole=True)  # such a job has a snapshot to begin the step from
    assert said == []
    script.misuse.at_optimizer(whole=False)
    assert said == [advice.EARLY_CHANGE]


def test_what_torch_does_not_count_is_told_of_too(said: list[str]) -> None:
    script = Script()
    script.misuse.at_loop(2)
    script.begin()
    script.backward()
    script.model.weight.data.add_(1)
    script.misuse.at_optimizer(whole=True)
    assert said == []
    script.misuse.at_optimizer(whole=False)
    assert said == [advice.EARLY_CHANGE]


@pytest.mark.usefixtures("_alone")
def test_a_communication_hook_that_remembers_is_refused() -> None:
    for state, hook in ((None, fp16_compress_hook), (PowerSGDState(None), powerSGD_hook)):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        model.register_comm_hook(state, hook)
        protected = Protected()
        protected.add({"model": model})
        with pytest.raises(UsageError, match="has a PowerSGDState that") if state else nullcontext():
            protected.check(2)


@pytest.mark.usefixtures("_alone")
def test_a_copy_that_makes_every_rank_send_all_of_its_state_is_named(said: list[str]) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    average = torch.optim.swa_utils.AveragedModel(model.module)
    protected = Protected()
    protected.add({"model": model, "optimizer": torch.optim.SGD(model.parameters()), "ema": average})
    Misuse(protected).at_loop(1)
    assert protected.has_own_state(1)
    assert said == [advice.COPIES.format("protect(ema=...)")]
    average.requires_grad_(False)
    Misuse(protected).at_loop(1)
    assert len(said) == 1 and not protected.has_own_state(1)


@pytest.mark.usefixtures("_alone")
def test_ranks_with_backward_passes_of_their_own_number_are_refused() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    protected = Protected()
    protected.add({"model": model, "optimizer": torch.optim.SGD(model.parameters())})
    misuse = Misuse(protected)
    misuse.at_loop(1)
    misuse.at_backward()
    with Join([model]), pytest.raises(UsageError, match="as many batches in a step"):
        misuse.at_backward()


@pytest.mark.usefixtures("_alone")
def test_a_group_of_another_backend_is_refused_before_training_begins() -> None:
    script = Script()
    dist.new_group(backend="gloo")
    with pytest.raises(UsageError, match='Found: backend="gloo"'):
        script.misuse.at_loop(2)
    script.misuse.at_loop(1)
