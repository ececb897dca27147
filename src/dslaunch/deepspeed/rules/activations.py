"""Activation checkpointing: who reads the section, and what goes together in it."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark

SECTION = "activation_checkpointing"


def trainer(config: LintedConfig) -> Iterator[Remark]:
    """The Trainer checkpoints activations by torch's means, and never reads DeepSpeed's section."""
    given = config.raw(SECTION)
    wanted = isinstance(given, dict) and any(value not in (None, False) for value in given.values())
    if config.reader == "hf" and wanted:
        yield config.warning(
            "hf-activation-checkpointing",
            SECTION,
            "the Trainer does not use it, so that it saves no memory, unless the model itself "
            "calls deepspeed.checkpointing",
            fix="--gradient_checkpointing",
            source="Hugging Face's DeepSpeed guide: activation checkpointing",
        )


def contiguous(config: LintedConfig) -> Iterator[Remark]:
    """Copies in one buffer are for parts of activations, of a known number of layers."""
    path = f"{SECTION}.contiguous_memory_optimization"
    if config.raw(path) is not True or config.reader == "hf":
        return
    missing = [
        name
        for name, there in (
            ("partition_activations", config.raw(f"{SECTION}.partition_activations") is True),
            ("number_checkpoints", bool(config.raw(f"{SECTION}.number_checkpoints"))),
        )
        if not there
    ]
    if missing:
        names = " and ".join(missing)
        yield config.warning(
            "contiguous-activations",
            path,
            f"it needs {names}: deepspeed.checkpointing.configure stops with an AssertionError, "
            "unless the script hands them over",
            fix=f"set {names}",
            source="DeepSpeed 0.19.8, runtime/activation_checkpointing/checkpointing.py",
        )


NAMES = ("contiguous-activations", "hf-activation-checkpointing")
RULES = (trainer, contiguous)
