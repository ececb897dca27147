"""Settings of ZeRO that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark

ZERO = "zero_optimization"
CONFIG = "DeepSpeed 0.19.8, runtime/config.py"
ZERO_CONFIG = "DeepSpeed 0.19.8, runtime/zero/config.py"


def offload(config: LintedConfig) -> Iterator[Remark]:
    """Offloading needs a stage, and NVMe a path."""
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = config.get(f"{ZERO}.{name}.device")
        path = f"{ZERO}.{name}.device"
        if device not in ("cpu", "nvme"):
            continue
        if device == "nvme" and config.stage != 3:
            yield _nvme_stage(config, path)
        elif config.stage < least:
            message = f"ignored without a word: it needs stage {least}, and the stage is "
            yield config.warning(
                "offload-stage",
                path,
                message + str(config.stage),
                fix=f"{ZERO}.stage {least}",
                source=f"{ZERO_CONFIG}; runtime/engine.py",
            )
        if device == "nvme" and not config.get(f"{ZERO}.{name}.nvme_path"):
            yield _nvme_path(config, path)


def _nvme_stage(config: LintedConfig, path: str) -> Remark:
    message = f"NVMe is for stage 3 only, and the stage is {config.stage}"
    return config.error(
        "nvme-stage",
        path,
        message,
        fix=f'{ZERO}.stage 3, or device "cpu"',
        source="Hugging Face's DeepSpeed guide: ZeRO-Infinity; DeepSpeed, runtime/zero/stage3.py",
    )


def _nvme_path(config: LintedConfig, path: str) -> Remark:
    message = "NVMe without nvme_path: DeepSpeed reads the config and fails when it sets up ZeRO"
    return config.error(
        "nvme-path",
        path,
        message,
        fix="set nvme_path to a directory on a local NVMe disk",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py and partition_parameters.py",
    )


def ratio(config: LintedConfig) -> Iterator[Remark]:
    """Offloading a part of the optimizer is for stage 3."""
    part = config.get(f"{ZERO}.offload_optimizer.ratio")
    present = isinstance(config.raw(f"{ZERO}.offload_optimizer"), dict)
    if present and isinstance(part, float | int) and part < 1 and config.stage != 3:
        yield config.error(
            "partial-offload",
            f"{ZERO}.offload_optimizer.ratio",
            "DeepSpeed stops: `Partial offloading only supported for ZeRO Stage 3`",
            fix=f"{ZERO}.stage 3, or ratio 1.0",
            source=ZERO_CONFIG,
        )


def gathered(config: LintedConfig) -> Iterator[Remark]:
    """Stage 3 saves placeholders instead of weights, unless it is told to gather them."""
    name = f"{ZERO}.stage3_gather_16bit_weights_on_model_save"
    old = config.raw(f"{ZERO}.stage3_gather_fp16_weights_on_model_save")
    if config.stage == 3 and config.get(name) is False and old is not True:
        where = name if config.has(name) else f"{ZERO}.stage"
        yield config.warning(
            "not-gathered",
            where,
            "stage 3 without gathering: save_pretrained and save_16bit_model write no weights",
            fix=f"set {name} to true, or convert checkpoints with zero_to_fp32.py",
            source="Hugging Face's DeepSpeed guide: saving weights; DeepSpeed, runtime/engine.py",
        )


def stage3_keys(config: LintedConfig) -> Iterator[Remark]:
    """Keys that only stage 3 looks at."""
    zero = config.raw(ZERO)
    if not isinstance(zero, dict) or config.stage == 3:
        return
    names = [str(name) for name in zero if str(name).startswith("stage3_")]
    useless = [n for n in names if not n.endswith("on_model_save") and zero[n] != "auto"]
    if useless and config.stage in (1, 2):
        yield config.info(
            "stage3-key",
            f"{ZERO}.{useless[0]}",
            f"only stage 3 looks at it, and the stage is {config.stage}",
            fix=None,
            source=ZERO_CONFIG,
        )


def reduction(config: LintedConfig) -> Iterator[Remark]:
    """How gradients are summed."""
    if str(config.get("gradient_allreduce_op")).lower() == "sum":
        zenflow = isinstance(config.raw(f"{ZERO}.zenflow"), dict)
        for why, holds in (
            ("ZeRO stage 3", config.stage == 3),
            ("ZenFlow", zenflow),
            ("DeepCompile", config.on("compile.deepcompile")),
        ):
            if holds:
                message = f"DeepSpeed stops: `sum` is not supported with {why}"
                yield config.error(
                    "sum-reduction",
                    "gradient_allreduce_op",
                    message,
                    fix='use "mean"',
                    source=CONFIG,
                )
    yield from _predivide(config)


def _predivide(config: LintedConfig) -> Iterator[Remark]:
    factor = config.get("gradient_predivide_factor")
    scatter = config.get(f"{ZERO}.reduce_scatter") is True
    if config.stage < 2 or not scatter:
        return
    if isinstance(factor, int | float) and not isinstance(factor, bool) and factor != 1:
        yield config.error(
            "predivide",
            "gradient_predivide_factor",
            f"DeepSpeed stops: stage {config.stage} with reduce_scatter takes 1.0 only",
            fix="1.0, or zero_optimization.reduce_scatter false",
            source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
        )
    if config.on("prescale_gradients"):
        yield config.error(
            "prescale",
            "prescale_gradients",
            f"DeepSpeed stops: not with stage {config.stage} and reduce_scatter",
            fix="false",
            source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
        )


def norm(config: LintedConfig) -> Iterator[Remark]:
    """`compute_grad_norm` off, and keys whose only value that works is the default."""
    off = config.get(f"{ZERO}.compute_grad_norm") is False
    if off and config.stage not in (1, 2):
        yield config.error(
            "grad-norm",
            f"{ZERO}.compute_grad_norm",
            "DeepSpeed stops: false is supported only with ZeRO stage 1 or 2",
            fix="take it out",
            source=ZERO_CONFIG,
        )
    if config.on(f"{ZERO}.legacy_stage1"):
        yield config.error(
            "legacy-stage1",
            f"{ZERO}.legacy_stage1",
            "DeepSpeed stops when it sets up ZeRO: not supported since 0.5.9",
            fix="take it out",
            source="DeepSpeed, runtime/engine.py",
        )
    if config.on(f"{ZERO}.elastic_checkpoint") and config.stage == 3:
        yield config.warning(
            "elastic-checkpoint",
            f"{ZERO}.elastic_checkpoint",
            "not supported with stage 3 any more; DeepSpeed warns and goes on",
            fix="use universal checkpoints",
            source=ZERO_CONFIG,
        )


def pipeline(config: LintedConfig) -> Iterator[Remark]:
    """A pipeline keeps all gradients of its stage."""
    where = config.parallelism
    if where is not None and where.pipeline > 1 and config.stage > 1:
        yield config.error(
            "pipeline-stage",
            f"{ZERO}.stage",
            f"DeepSpeed stops: a PipelineModule takes stage 0 or 1, and the stage is "
            f"{config.stage}",
            fix="stage 1",
            source="DeepSpeed 0.19.8, runtime/pipe/engine.py",
        )


NAMES = (
    "elastic-checkpoint",
    "grad-norm",
    "legacy-stage1",
    "not-gathered",
    "nvme-path",
    "nvme-stage",
    "offload-stage",
    "partial-offload",
    "pipeline-stage",
    "predivide",
    "prescale",
    "stage3-key",
    "sum-reduction",
)
RULES = (pipeline, offload, ratio, gathered, stage3_keys, reduction, norm)
