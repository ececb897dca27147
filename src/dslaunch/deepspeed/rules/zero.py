"""ZeRO settings that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

ZERO = "zero_optimization"
CONFIG = "DeepSpeed 0.19.8, runtime/config.py"
ZERO_CONFIG = "DeepSpeed 0.19.8, runtime/zero/config.py"


@rule(
    "offload-stage",
    "warning",
    "offloading that is ignored at this ZeRO stage",
    source=f"{ZERO_CONFIG}; runtime/engine.py",
)
@rule(
    "nvme-path",
    "error",
    "NVMe offloading without `nvme_path`",
    source="DeepSpeed 0.19.8, runtime/zero/stage3.py and partition_parameters.py",
)
@rule(
    "nvme-stage",
    "error",
    "NVMe offloading below ZeRO stage 3",
    source="Hugging Face's DeepSpeed guide: ZeRO-Infinity; DeepSpeed, runtime/zero/stage3.py",
)
def offload(config: LintedConfig) -> Iterator[Remark]:
    """Offloading needs a ZeRO stage, and NVMe a path."""
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = config.get(f"{ZERO}.{name}.device")
        path = f"{ZERO}.{name}.device"
        if device not in ("cpu", "nvme"):
            continue
        if device == "nvme" and config.stage != 3:
            yield _nvme_stage(config, path)
        elif config.stage < least:
            yield config.warning(
                "offload-stage",
                path,
                f"silently ignored: {name} needs ZeRO stage {least}, got stage {config.stage}",
                fix=f"set {ZERO}.stage to {least}",
            )
        if device == "nvme" and not config.get(f"{ZERO}.{name}.nvme_path"):
            yield _nvme_path(config, path)


def _nvme_stage(config: LintedConfig, path: str) -> Remark:
    message = f"NVMe offloading needs ZeRO stage 3, got stage {config.stage}"
    return config.error(
        "nvme-stage",
        path,
        message,
        fix=f'set {ZERO}.stage to 3, or device to "cpu"',
    )


def _nvme_path(config: LintedConfig, path: str) -> Remark:
    message = "device is nvme, but nvme_path is not set: DeepSpeed fails when it initializes ZeRO"
    return config.error(
        "nvme-path",
        path,
        message,
        fix="set nvme_path to a directory on the local NVMe disk of each node",
    )


@rule(
    "partial-offload",
    "error",
    "partial optimizer offloading below ZeRO stage 3",
    source=ZERO_CONFIG,
)
def ratio(config: LintedConfig) -> Iterator[Remark]:
    """Partial offloading of the optimizer needs stage 3."""
    part = config.get(f"{ZERO}.offload_optimizer.ratio")
    present = isinstance(config.raw(f"{ZERO}.offload_optimizer"), dict)
    if present and isinstance(part, float | int) and part < 1 and config.stage != 3:
        yield config.error(
            "partial-offload",
            f"{ZERO}.offload_optimizer.ratio",
            f"{part} needs ZeRO stage 3, got stage {config.stage}: DeepSpeed stops with "
            "`Partial offloading only supported for ZeRO Stage 3`",
            fix=f"set {ZERO}.stage to 3, or ratio to 1.0",
        )


@rule(
    "not-gathered",
    "warning",
    "ZeRO stage 3 saves no 16-bit weights",
    source="Hugging Face's DeepSpeed guide: saving weights; DeepSpeed, runtime/engine.py",
)
def gathered(config: LintedConfig) -> Iterator[Remark]:
    """Stage 3 saves 16-bit weights only if it gathers them."""
    name = f"{ZERO}.stage3_gather_16bit_weights_on_model_save"
    old = config.raw(f"{ZERO}.stage3_gather_fp16_weights_on_model_save")
    if config.stage == 3 and config.get(name) is False and old is not True:
        where = name if config.has(name) else f"{ZERO}.stage"
        yield config.warning(
            "not-gathered",
            where,
            "stage 3 does not gather the weights: save_pretrained and save_16bit_model save none",
            fix=f"set {name} to true, or convert the checkpoints with zero_to_fp32.py",
        )


@rule("stage3-key", "info", "a stage 3 setting at another ZeRO stage", source=ZERO_CONFIG)
def stage3_keys(config: LintedConfig) -> Iterator[Remark]:
    """Report settings that only stage 3 reads."""
    zero = config.raw(ZERO)
    if not isinstance(zero, dict) or config.stage == 3:
        return
    names = [str(name) for name in zero if str(name).startswith("stage3_")]
    useless = [n for n in names if not n.endswith("on_model_save") and zero[n] != "auto"]
    if useless and config.stage in (1, 2):
        yield config.info(
            "stage3-key",
            f"{ZERO}.{useless[0]}",
            f"no effect: used by ZeRO stage 3 only, got stage {config.stage}",
            fix=None,
        )


@rule(
    "sum-reduction",
    "error",
    "`gradient_allreduce_op` of `sum` where it is not supported",
    source=CONFIG,
)
@rule(
    "predivide",
    "error",
    "`gradient_predivide_factor` with `reduce_scatter`",
    source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
)
@rule(
    "prescale",
    "error",
    "`prescale_gradients` with `reduce_scatter`",
    source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
)
def reduction(config: LintedConfig) -> Iterator[Remark]:
    """Report reductions of gradients that the other settings do not support."""
    if str(config.get("gradient_allreduce_op")).lower() == "sum":
        zenflow = isinstance(config.raw(f"{ZERO}.zenflow"), dict)
        for why, holds in (
            ("ZeRO stage 3", config.stage == 3),
            ("ZenFlow", zenflow),
            ("DeepCompile", config.on("compile.deepcompile")),
        ):
            if holds:
                yield config.error(
                    "sum-reduction",
                    "gradient_allreduce_op",
                    f'"sum" is not supported with {why}: DeepSpeed stops',
                    fix='write "mean"',
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
            f"{factor}, but stage {config.stage} with reduce_scatter needs 1.0: DeepSpeed stops",
            fix="set it to 1.0, or zero_optimization.reduce_scatter to false",
        )
    if config.on("prescale_gradients"):
        yield config.error(
            "prescale",
            "prescale_gradients",
            f"not supported by stage {config.stage} with reduce_scatter: DeepSpeed stops",
            fix="set it to false, or zero_optimization.reduce_scatter to false",
        )


@rule(
    "grad-norm",
    "error",
    "`compute_grad_norm` of false where it is not supported",
    source=ZERO_CONFIG,
)
@rule(
    "legacy-stage1",
    "error",
    "`legacy_stage1`, which is not supported",
    source="DeepSpeed, runtime/engine.py",
)
@rule("elastic-checkpoint", "warning", "`elastic_checkpoint` with ZeRO stage 3", source=ZERO_CONFIG)
def norm(config: LintedConfig) -> Iterator[Remark]:
    """Report settings for which only the default works at this stage."""
    off = config.get(f"{ZERO}.compute_grad_norm") is False
    if off and config.stage not in (1, 2):
        yield config.error(
            "grad-norm",
            f"{ZERO}.compute_grad_norm",
            f"false needs ZeRO stage 1 or 2, got stage {config.stage}: DeepSpeed stops",
            fix="remove it",
        )
    if config.on(f"{ZERO}.legacy_stage1"):
        yield config.error(
            "legacy-stage1",
            f"{ZERO}.legacy_stage1",
            "not supported since DeepSpeed 0.5.9, which stops when it initializes ZeRO",
            fix="remove it",
        )
    if config.on(f"{ZERO}.elastic_checkpoint") and config.stage == 3:
        yield config.warning(
            "elastic-checkpoint",
            f"{ZERO}.elastic_checkpoint",
            "no longer supported with stage 3; DeepSpeed warns and continues without it",
            fix="use universal checkpoints",
        )


@rule(
    "pipeline-stage",
    "error",
    "pipeline parallelism with ZeRO stage 2 or 3",
    source="DeepSpeed 0.19.8, runtime/pipe/engine.py",
)
def pipeline(config: LintedConfig) -> Iterator[Remark]:
    """Pipeline parallelism needs all gradients of a stage on each rank."""
    where = config.parallelism
    if where is not None and where.pipeline > 1 and config.stage > 1:
        yield config.error(
            "pipeline-stage",
            f"{ZERO}.stage",
            f"a PipelineModule needs ZeRO stage 0 or 1, got stage {config.stage}: DeepSpeed stops",
            fix=f"set {ZERO}.stage to 1",
        )
