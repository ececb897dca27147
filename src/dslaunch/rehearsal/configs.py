"""The existing rules for DeepSpeed configs, applied to what really reached DeepSpeed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dslaunch.deepspeed import config_text
from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.batch import parallelism
from dslaunch.deepspeed.hardware import NodeHardware
from dslaunch.deepspeed.lint import lint
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.schema import table
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark
from dslaunch.protocol.rehearsal import (
    Engine,
    GivenConfig,
    OptimizerBuilt,
    Started,
    TrainerArguments,
    UnfilledConfig,
)
from dslaunch.rehearsal.findings import Finding
from dslaunch.rehearsal.ranks import RankRecords, Ranks
from dslaunch.run.rehearsal import Rehearsed

IN_CODE = "config in code"
"""The place of a config that was given as a dict."""


def config_findings(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the findings about the config that DeepSpeed got, and about the config files."""
    remarks = [*_effective(rehearsed, ranks), *rehearsed.config_errors]
    seen: set[tuple[str, str]] = set()
    for remark in remarks:
        if (remark.rule, remark.path) not in seen and remark.level != "info":
            seen.add((remark.rule, remark.path))
            yield _finding(remark)


def _finding(remark: Remark) -> Finding:
    place = f"{remark.file}:{remark.line}:{remark.column}" if remark.line else remark.file
    if remark.file == IN_CODE:
        place = IN_CODE
    text = ": ".join(part for part in (remark.path, remark.message) if part)
    return Finding(remark.rule, remark.level, place, text, remark.fix)


def _effective(rehearsed: Rehearsed, ranks: Ranks) -> tuple[Remark, ...]:
    """Return the findings of the lint about the config of the first rank that has one. If the run
    failed before DeepSpeed got one, that is what a framework got."""
    for rank in ranks:
        config = rank.last(GivenConfig)
        if config is not None:
            return _lint(rehearsed, rank, config)
    for rank in ranks:
        unfilled = rank.every(UnfilledConfig)
        if unfilled and rehearsed.outcome.status == "failed":
            return _lint(rehearsed, rank, unfilled[0])
    return ()


def _lint(
    rehearsed: Rehearsed, rank: RankRecords, config: GivenConfig | UnfilledConfig
) -> tuple[Remark, ...]:
    trainer = rank.last(TrainerArguments)
    name = config.path or IN_CODE
    try:
        # the hook writes a dict as Python does, with Infinity
        document = config_text.parse(config.text, name, by_python=config.path is None)
    except ConfigError:
        return ()
    sizes = rank.last(OptimizerBuilt)
    subject = LintedConfig(
        document=document,
        table=table(),
        # frameworks have filled in `auto` when DeepSpeed gets it
        reader="native" if isinstance(config, GivenConfig) else "hf",
        arguments=_arguments(trainer),
        parallelism=parallelism(
            document.data, _world(rehearsed, config), pipeline=_parts_of_model(rehearsed, rank)
        ),
        nodes=_hardware(rehearsed, rank),
        parameters=sizes.parameters if sizes is not None else None,
    )
    found = lint(subject)
    return tuple(remark for remark in found if not _refuted(remark, rehearsed, rank))


def _world(rehearsed: Rehearsed, config: GivenConfig | UnfilledConfig) -> int:
    """Return for how many ranks a config is meant: a file, or what was scaled for fewer ranks, for
    those of the real run; what a script has computed, for those that it found."""
    is_scaled = isinstance(config, GivenConfig) and config.simulated is not None
    is_of_real_run = config.path is not None or is_scaled
    return rehearsed.full_ranks if is_of_real_run else rehearsed.plan.world_size


def _parts_of_model(rehearsed: Rehearsed, rank: RankRecords) -> int:
    """Return among how many ranks the script divides a model: by a PipelineModule, or by the groups
    that it gives DeepSpeed (`mpu`). The config tells neither."""
    engine = rank.last(Engine)
    if engine is None or not (engine.pipeline or engine.model_parallel):
        return 1
    return max(rehearsed.plan.world_size // max(engine.data_parallel, 1), 1)


def _refuted(remark: Remark, rehearsed: Rehearsed, rank: RankRecords) -> bool:
    """Return whether a rehearsal has shown that what a rule calls fatal works: DeepSpeed has made
    an engine from it, and steps in the memory of the node on as many ranks."""
    if remark.rule == "cpu-memory":
        return rank.steps > 0 and not rehearsed.is_smaller
    return remark.rule == "batch-missing" and rank.last(Engine) is not None


def _arguments(trainer: TrainerArguments | None) -> Arguments | None:
    if trainer is None:
        return None
    given: Mapping[str, Any] = trainer.arguments
    return Arguments({name: value for name, value in given.items() if value is not None})


def _hardware(rehearsed: Rehearsed, rank: RankRecords) -> tuple[NodeHardware, ...]:
    """Return what is known of the nodes of the real run; the memory only of the rank's own."""
    started = rank.last(Started)
    by_host = {node.host: node for node in rehearsed.facts.nodes}
    slots = {node.host: len(node.slots) for node in rehearsed.plan.nodes}
    if rehearsed.limits.full is not None:
        slots = {each.node.host: len(each.slots) for each in rehearsed.limits.full.placements}
    return tuple(
        NodeHardware(
            host=host,
            slots=count,
            gpus=by_host[host].gpus if host in by_host else None,
            memory=started.node_memory if started is not None and host == rank.host else None,
        )
        for host, count in slots.items()
    )
