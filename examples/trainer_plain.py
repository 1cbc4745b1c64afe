"""A small GPT-2 on the source of a Python module, with the Trainer of transformers; README.md says how to start it."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


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


def train(options: argparse.Namespace) -> None:
    text = Path(argparse.__file__).read_bytes()
    trainer = Trainer(
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", default="trainer-output", metavar="DIR", help="checkpoints (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
