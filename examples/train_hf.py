"""Train a small language model with Hugging Face's Trainer, on CPU or GPU.

The model and its data are made here, so that nothing is downloaded. With `--deepspeed FILE` the
Trainer uses DeepSpeed.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

WORDS, LENGTH, SAMPLES = 64, 16, 256


class Counting(torch.utils.data.Dataset):
    """Sequences that count upward from a number."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one sequence, which is its own label."""
        tokens = torch.arange(index, index + LENGTH) % WORDS
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train, and save at the end."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, use_cache=False
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Counting())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
