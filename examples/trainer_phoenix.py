"""A small GPT-2 on the source of a Python module, with the Trainer of transformers; README.md says how to start it."""

import argparse
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import phoenix_core as phoenix


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Pieces of a text, byte by byte."""

    def __init__(self, text: bytes, length: int) -> None:
        whole = len(text) // length * length
        self.pieces = torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).long().view(-1, length)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def make_model() -> GPT2LMHeadModel:
    """From its configuration alone: nothing is downloaded."""
    torch.manual_seed(0)  # every rank starts from the same weights
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


class Books:
    """What a Trainer counts and remembers, as a part of the protected state."""

    COUNTERS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos", "learning_rate")

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        counters = {name: getattr(self.trainer, name) for name in self.COUNTERS}
        return {"state": vars(self.trainer.state), "control": vars(self.trainer.control), "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self.trainer.state).update(state["state"])
        vars(self.trainer.control).update(state["control"])
        for name, value in state["counters"].items():
            setattr(self.trainer, name, value)


class PhoenixTrainer(Trainer):
    """A Trainer whose loop is PHOENIX's. README.md says what of the Trainer it keeps, and what not.

    The report on a step (callbacks, logging, evaluation, saving) opens the step after it: collectives are healed there,
    and all that it counts is safe before the optimizer runs.
    """

    control: Any
    current_flos: float

    def __init__(self, ft: phoenix.Session, **options: Any) -> None:
        self.ft = ft
        super().__init__(**options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of torch's own: accelerate's keeps its position to itself."""
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.train_dataset, self.ft.world_size, self.ft.rank, seed=self.args.seed, drop_last=True
        )
        size = self.args.per_device_train_batch_size
        return DataLoader(self.train_dataset, size, sampler=sampler, collate_fn=self.data_collator, drop_last=True)

    def _inner_training_loop(self, args: TrainingArguments, resume_from_checkpoint: Any = None, **_: Any) -> Any:
        if resume_from_checkpoint is not None or args.auto_find_batch_size or self.is_fsdp_enabled:
            raise ValueError("PhoenixTrainer has no resume_from_checkpoint, auto_find_batch_size and fsdp")
        loader = self.get_train_dataloader()
        epochs, self.per_epoch, _, samples, _, _, total = self.set_initial_training_values(args, loader)
        self._init_training_state(total, self.per_epoch, epochs, None, None)
        self.model_wrapped, _ = self._prepare_for_training(total, loader, None)
        self._tr_loss, self._total_loss_scalar, self.learning_rate = torch.tensor(0.0), 0.0, 0.0
        self._globalstep_last_logged = self._initial_global_step = self._initial_num_input_tokens_seen = 0
        self.started_at, self.grad_norm = time.time(), None
        self.batches = phoenix.Batches(loader)
        optimizer = self.optimizer.optimizer  # inside of accelerate's
        self.ft.protect(model=self.model_wrapped, optimizer=optimizer, scheduler=self.lr_scheduler)
        self.ft.protect(data=self.batches, books=Books(self))
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        for step in self.ft.steps(total + 1):  # the last of them only reports
            with step:
                if step.index > 0:
                    self.report(step.index)
                if not self.control.should_training_stop:
                    self.train_step(step)
                else:
                    dist.barrier()  # rank 0 may be saving: it can be replaced while the others are in the step
            if self.control.should_training_stop:
                break
        return self._finalize_training(None, samples, self.started_at)

    def report(self, done: int) -> None:
        """On the last of the `done` steps so far."""
        self.state.global_step, self.state.epoch = done, done / self.per_epoch
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self.log_save_evaluate()
        if done % self.per_epoch == 0:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self.log_save_evaluate()

    def log_save_evaluate(self) -> None:
        self._maybe_log_save_evaluate(
            *(self._tr_loss, self.grad_norm, self.model_wrapped, None, self.state.epoch, None, self.started_at),
            learning_rate=self.learning_rate,
        )

    def train_step(self, step: phoenix.Step) -> None:
        events, model = self.callback_handler, self.model_wrapped
        place = step.index % self.per_epoch
        if place == 0:
            self.control = events.on_epoch_begin(self.args, self.state, self.control)
        self.control = events.on_step_begin(self.args, self.state, self.control)
        count = min(
            self.args.gradient_accumulation_steps, len(self.batches) - place * self.args.gradient_accumulation_steps
        )
        micro_batches, items = self.get_batch_samples(self.batches, count, self.args.device)
        self.current_gradient_accumulation_steps = count
        self.learning_rate = self._get_learning_rate()
        loss = 0.0
        for left, inputs in zip(reversed(range(count)), micro_batches, strict=True):
            self.current_flos += float(self.floating_point_ops(inputs))
            self._track_num_input_tokens(inputs)
            with self.accelerator.no_sync(model=model) if left else nullcontext():
                loss += self.training_step(model, inputs, items).item()
            if left:
                self.control = events.on_substep_end(self.args, self.state, self.control)
        step.record(loss=loss)
        clip = self.args.max_grad_norm if self.args.max_grad_norm > 0 else float("inf")
        grad_norm = self.accelerator.clip_grad_norm_(model.parameters(), clip)
        self.control = events.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.grad_norm = grad_norm  # from here on the step is executed to its end
        self.control = events.on_optimizer_step(self.args, self.state, self.control)
        if not isinstance(self.lr_scheduler, ReduceLROnPlateau):
            self.lr_scheduler.step()
        model.zero_grad()

    def compute_loss(self, model: torch.nn.Module, inputs: Any, *args: Any, **options: Any) -> Any:
        """Books the loss before the backward pass, in which the small state of this rank is sent away."""
        found = super().compute_loss(model, inputs, *args, **options)
        if model.training:
            scaled = options.get("num_items_in_batch") is not None
            self._tr_loss += found.detach() / (1 if scaled else self.current_gradient_accumulation_steps)
        return found

    def store_flos(self) -> None:
        """Without a collective, for it is called after the last step too."""
        self.state.total_flos += self.current_flos * self.ft.world_size
        self.current_flos = 0


def train(options: argparse.Namespace, ft: phoenix.Session) -> None:
    text = Path(argparse.__file__).read_bytes()
    trainer = PhoenixTrainer(
        ft,
        model=make_model(),
        args=TrainingArguments(
            output_dir=options.output,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=3e-3,
            warmup_steps=10,
            max_grad_norm=1.0,
            logging_steps=20,
            eval_strategy="steps",
            eval_steps=50,
            save_strategy="steps",
            save_steps=100,
            use_cpu=True,
            ddp_find_unused_parameters=False,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=Windows(text[:-8192], 64),
        eval_dataset=Windows(text[-8192:], 64),
    )
    trainer.train()
    ft.digest()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", default="trainer-output", metavar="DIR", help="checkpoints (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    with phoenix.session() as ft:
        train(options, ft)
