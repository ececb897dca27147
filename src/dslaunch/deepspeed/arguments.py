"""The Hugging Face arguments of a training script that affect the DeepSpeed config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "linear",
    "save_on_each_node": False,
    "fp16": False,
    "bf16": False,
}
"""transformers 5.23, training_args.py."""


class Arguments(Struct, frozen=True):
    """The arguments on the command line of the script."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, DEFAULTS.get(name))

    def says(self, name: str) -> bool:
        """Return whether the argument is set; otherwise it has its default."""
        return name in self.given


def read(words: Sequence[str]) -> Arguments:
    """Parse `--name value`, `--name=value` and `--switch`, with numbers and booleans converted.

    Words before the first option are ignored.
    """
    given: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].replace("-", "_", _dashes(word)).partition("=")
            given[name] = plain(value) if equals else True
            name = None if equals else name
        elif name is not None:
            given[name] = plain(word)
            name = None
    return Arguments(given)


def _dashes(word: str) -> int:
    """Return the number of dashes in the name of an option, without its value."""
    return word[2:].partition("=")[0].count("-")


def plain(word: str) -> Any:
    """Return a word of a command line, as a number or a boolean if it is one."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
