"""The rules of the lint, a module for each subject. A rule takes a Subject and gives Remarks."""

from collections.abc import Callable, Iterator

from dslaunch.deepspeed.rules import (
    activations,
    auto,
    batches,
    checkpoint,
    cluster,
    deprecated,
    hf,
    keys,
    optimizer,
    precision,
    syntax,
    types,
    zero,
)
from dslaunch.deepspeed.subject import Subject
from dslaunch.lint import Remark

MODULES = (
    syntax, keys, types, deprecated, auto, batches, zero, precision, activations, optimizer,
    checkpoint, hf, cluster,
)  # fmt: skip
RULES: tuple[Callable[[Subject], Iterator[Remark]], ...] = tuple(
    rule for module in MODULES for rule in module.RULES
)
STOPS = frozenset({
    "unknown-key", "removed-key", "wrong-type", "wrong-value", "old-and-new", "wrong-batch",
    "batch", "batch-missing", "partial-offload", "sum-reduction", "grad-norm", "both-precisions",
    "loss-scale", "master-weights", "duplicate-key", "missing-key", "no-object", "auto-batch",
})  # fmt: skip
"""The rules at whose remarks DeepSpeed stops when it reads the config; at others it goes on."""
