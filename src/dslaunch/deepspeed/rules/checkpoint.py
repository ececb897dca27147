"""Checkpoints: what nothing can be loaded from again."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark

LOCAL = "checkpoint.use_node_local_storage"
ENGINE = "DeepSpeed 0.19.8, runtime/engine.py"


def node_local(config: LintedConfig) -> Iterator[Remark]:
    """Each node writes its part: who writes what, and what is missing in the end."""
    if not config.raw(LOCAL):
        return
    where = config.parallelism
    # with stage 3 every rank writes its own part of the model
    if where is not None and where.tensor * where.pipeline > 1 and config.stage != 3:
        yield config.error(
            "local-model-parallel",
            LOCAL,
            "only local rank 0 of each node writes model states, so those of the other tensor and "
            "pipeline ranks are written nowhere: nothing can be loaded from the checkpoint",
            fix="save to storage that all nodes share",
            source=ENGINE,
        )
    if config.raw("checkpoint.load_universal") is True:
        yield config.error(
            "local-universal",
            "checkpoint.load_universal",
            f"a universal checkpoint needs all parts in one directory, and {LOCAL} is set",
            fix="gather the checkpoint first",
            source=ENGINE,
        )
    if config.raw("checkpoint.writer"):
        yield config.warning(
            "local-writer",
            "checkpoint.writer",
            f"the fast writer does not ask who writes on each node, so {LOCAL} has no effect",
            fix="take the writer out",
            source="DeepSpeed 0.19.8, runtime/checkpoint_engine",
        )
    if config.on("zero_optimization.elastic_checkpoint") and config.stage in (1, 2):
        yield config.error(
            "local-elastic",
            "zero_optimization.elastic_checkpoint",
            f"every rank reads the parts of all ranks, and {LOCAL} leaves them on their nodes",
            fix="set it to false",
            source=ENGINE,
        )


def always_on(config: LintedConfig) -> Iterator[Remark]:
    """`datastates_ckpt` is on unless it is `false`, whatever is in it."""
    section = config.raw("datastates_ckpt")
    off = isinstance(section, dict) and section.get("enabled") is False
    if off and config.has("datastates_ckpt"):
        yield config.error(
            "datastates",
            "datastates_ckpt",
            "on all the same: only `false` turns it off",
            fix="take the section out",
            source="DeepSpeed 0.19.8, runtime/model_checkpointing/datastates",
        )


NAMES = ("datastates", "local-elastic", "local-model-parallel", "local-universal", "local-writer")
RULES = (node_local, always_on)
