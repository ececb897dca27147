"""DeepSpeed configs, and estimates of memory and traffic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from dslaunch.api.arguments import PathText
from dslaunch.errors import UsageError
from dslaunch.json_text import json_literal
from dslaunch.registry import plugin_faults

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dslaunch.deepspeed.estimate import EstimateInput, Recommendation, Row
    from dslaunch.deepspeed.initial_config import Precision
    from dslaunch.deepspeed.model_size import Sized
    from dslaunch.lint import Screened
    from dslaunch.run.hardware import Hardware

AttentionKind = Literal["sdpa", "eager"]
MOST_FACTOR = 1000
"""The largest `buffer_factor`: a larger one is a slip."""


@plugin_faults()
def lint_config(
    config: PathText | Mapping[str, object],
    *,
    hardware: Hardware | None = None,
    script_args: Sequence[str] | None = None,
    reader: str | None = None,
    version: str | None = None,
    world: int | None = None,
    tensor: int = 1,
    pipeline: int = 1,
    parameters: float | None = None,
    ignore: Collection[str] = (),
) -> Screened:
    """Return what DeepSpeed would ignore, coerce or stop at, in a file or in a config itself.

    Raises UsageError for an unknown reader, version or rule, ConfigError for an unreadable file.
    """

    from dslaunch.deepspeed.config_lint import LintContext, check_config
    from dslaunch.deepspeed.rules import rules
    from dslaunch.lint.suppression import check_rules

    if isinstance(config, str | os.PathLike):
        from dslaunch.lint.user_text import read_file

        text, name = read_file(Path(config)), str(config)
    else:
        text, name = json_literal(config, indent=2), "config"
    check_rules(ignore, rules().names)
    context = LintContext(
        reader=reader,
        version=version,
        script_args=None if script_args is None else tuple(script_args),
        world=world or (hardware.ranks if hardware else None),
        tensor=tensor,
        pipeline=pipeline,
        parameters=parameters,
        nodes=hardware.nodes if hardware else (),
        ignore=frozenset(ignore),
    )
    return check_config(text, name, context)


class Estimate(Struct, frozen=True):
    """The memory and traffic of training a model, for each way to train it."""

    question: EstimateInput
    """The model, the nodes and the config that were given."""
    rows: tuple[Row, ...]
    """All ways to train, fastest first, with what each needs."""
    recommendation: Recommendation


def estimate(
    model: PathText | None = None,
    *,
    params: int | None = None,
    largest_layer: int | None = None,
    meta: bool = False,
    hardware: Hardware | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    gpu_memory: int | None = None,
    cpu_memory: int | None = None,
    nvme: int | None = None,
    headroom: float = 0.1,
    precision: Precision = "bf16",
    micro_batch: int = 1,
    sequence: int = 2048,
    attention: AttentionKind = "sdpa",
    accumulation: int = 1,
    reduce_bucket: int = 500_000_000,
    buffer_factor: float = 1.5,
    bandwidth: float | None = None,
    gpu_bandwidth: float | None = None,
) -> Estimate:
    """Estimate memory and traffic of every ZeRO stage and offload, and recommend the fastest.

    The model is a file, or `params` with `largest_layer`. Sizes are bytes, rates bytes per second.
    What is given comes before what the hardware has. Raises UsageError, ConfigError.
    """
    from dslaunch.deepspeed.activations import MicroBatch
    from dslaunch.deepspeed.communication import Bandwidth
    from dslaunch.deepspeed.estimate import EstimateInput, Limits, recommend
    from dslaunch.deepspeed.estimate import estimate as rows_of
    from dslaunch.deepspeed.memory import Machines, MemorySettings
    from dslaunch.run.hardware import Hardware

    if buffer_factor > MOST_FACTOR:
        raise UsageError(f"--buffer-factor: {buffer_factor:g} is more than {MOST_FACTOR}")
    known = hardware or Hardware()
    fewest_gpus = min((node.slots for node in known.nodes), default=1)
    machines = Machines(nodes or len(known.nodes) or 1, gpus_per_node or fewest_gpus)
    limits = Limits(
        gpu=gpu_memory or _least(node.gpu_memory for node in known.nodes),
        cpu=cpu_memory or _least(node.memory for node in known.nodes),
        nvme=nvme or known.nvme,
        headroom=headroom,
    )
    settings = MemorySettings(
        width=4 if precision == "fp32" else 2,
        reduce_bucket=reduce_bucket,
        factor=buffer_factor,
    )
    question = EstimateInput(
        sized=_sized(model, params, largest_layer, meta=meta),
        machines=machines,
        settings=settings,
        limits=limits,
        batch=MicroBatch(micro_batch, sequence, attention),
        accumulation=accumulation,
        bandwidth=Bandwidth(bandwidth or known.network, gpu_bandwidth),
    )
    rows = rows_of(question)
    return Estimate(question, rows, recommend(question, rows))


def _least(sizes: Iterable[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _sized(
    path: PathText | None, params: int | None, largest_layer: int | None, *, meta: bool
) -> Sized:
    from dslaunch.deepspeed.memory import Model
    from dslaunch.deepspeed.model_size import Sized, from_path, on_meta

    if path is not None:
        if params or largest_layer:
            raise UsageError("give a model's file, or --params and --largest-layer, not both")
        return on_meta(Path(path)) if meta else from_path(Path(path))
    if not params or not largest_layer:
        given = {"--params": params, "--largest-layer": largest_layer}
        missing = " and ".join(name for name, number in given.items() if not number)
        hint = (
            "the largest layer of a text model is usually its embedding: vocabulary x hidden "
            "size; or name the model's config.json, safetensors file or index, or its directory"
        )
        raise UsageError(f"missing {missing}", hint=hint)
    if largest_layer > params:
        raise UsageError("--largest-layer: one layer cannot have more than all --params")
    return Sized(Model(params, largest_layer), "--params and --largest-layer")
