"""Checkpoint settings that produce checkpoints which cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

LOCAL = "checkpoint.use_node_local_storage"
ENGINE = "DeepSpeed 0.19.8, runtime/engine.py"


@rule(
    "local-model-parallel",
    "error",
    "node-local checkpoints lose model states of tensor or pipeline ranks",
    source=ENGINE,
)
@rule("local-universal", "error", "a universal checkpoint on node-local storage", source=ENGINE)
@rule(
    "local-writer",
    "warning",
    "the fast checkpoint writer ignores `use_node_local_storage`",
    source="DeepSpeed 0.19.8, runtime/checkpoint_engine",
)
@rule("local-elastic", "error", "an elastic checkpoint on node-local storage", source=ENGINE)
def node_local(config: LintedConfig) -> Iterator[Remark]:
    """Report settings that lose parts of a checkpoint on node-local storage."""
    if not config.raw(LOCAL):
        return
    where = config.parallelism
    # with stage 3 every rank writes its own part of the model
    if where is not None and where.tensor * where.pipeline > 1 and config.stage != 3:
        yield config.error(
            "local-model-parallel",
            LOCAL,
            "only local rank 0 of each node saves model states: those of other tensor and pipeline "
            "ranks are lost, and the checkpoint cannot be loaded",
            fix="save to shared storage, and set it to false",
        )
    if config.raw("checkpoint.load_universal") is True:
        yield config.error(
            "local-universal",
            "checkpoint.load_universal",
            f"a universal checkpoint needs all shards in one directory, but {LOCAL} is set",
            fix="gather the checkpoint first: dslaunch checkpoint gather",
        )
    if config.raw("checkpoint.writer"):
        yield config.warning(
            "local-writer",
            "checkpoint.writer",
            f"{LOCAL} has no effect with this writer",
            fix="remove checkpoint.writer",
        )
    if config.on("zero_optimization.elastic_checkpoint") and config.stage in (1, 2):
        yield config.error(
            "local-elastic",
            "zero_optimization.elastic_checkpoint",
            f"every rank reads the shards of all ranks, but {LOCAL} leaves them on their nodes",
            fix="set it to false",
        )


@rule(
    "datastates",
    "error",
    "`datastates_ckpt` that is on although `enabled` is false",
    source="DeepSpeed 0.19.8, runtime/model_checkpointing/datastates",
)
def always_on(config: LintedConfig) -> Iterator[Remark]:
    """`datastates_ckpt` is on unless it is `false` itself."""
    section = config.raw("datastates_ckpt")
    off = isinstance(section, dict) and section.get("enabled") is False
    if off and config.has("datastates_ckpt"):
        yield config.error(
            "datastates",
            "datastates_ckpt",
            "enabled although `enabled` is false: any section turns it on",
            fix="remove the section",
        )
