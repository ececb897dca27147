"""Activation checkpointing: who reads the section, and which settings belong together."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

SECTION = "activation_checkpointing"


@rule(
    "hf-activation-checkpointing",
    "warning",
    "`activation_checkpointing` has no effect with the Trainer",
    source="Hugging Face's DeepSpeed guide: activation checkpointing",
)
def trainer(config: LintedConfig) -> Iterator[Remark]:
    """The Trainer uses torch for activation checkpointing and ignores the section."""
    given = config.raw(SECTION)
    wanted = isinstance(given, dict) and any(value not in (None, False) for value in given.values())
    if config.reader == "hf" and wanted:
        yield config.warning(
            "hf-activation-checkpointing",
            SECTION,
            "no effect: the Trainer ignores this section, unless the model itself calls "
            "deepspeed.checkpointing",
            fix="add --gradient_checkpointing to the arguments of the script",
        )


@rule(
    "contiguous-activations",
    "warning",
    "`contiguous_memory_optimization` without the settings it needs",
    source="DeepSpeed 0.19.8, runtime/activation_checkpointing/checkpointing.py",
)
def contiguous(config: LintedConfig) -> Iterator[Remark]:
    """One buffer for all checkpoints needs partitioned activations and the number of layers."""
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
            f"needs {names}: deepspeed.checkpointing.configure stops with an AssertionError, "
            "unless the script passes them",
            fix=f"set {names}",
        )
