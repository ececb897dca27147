"""Settings of ZeRO that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Remark

ZERO = "zero_optimization"
CONFIG = "DeepSpeed 0.19.8, runtime/config.py"
ZERO_CONFIG = "DeepSpeed 0.19.8, runtime/zero/config.py"


def offload(subject: LintedConfig) -> Iterator[Remark]:
    """Offloading needs a stage, and NVMe a path."""
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = subject.get(f"{ZERO}.{name}.device")
        path = f"{ZERO}.{name}.device"
        if device not in ("cpu", "nvme"):
            continue
        if device == "nvme" and subject.stage != 3:
            yield _nvme_stage(subject, path)
        elif subject.stage < least:
            message = f"ignored without a word: it needs stage {least}, and the stage is "
            yield subject.warning(
                "offload-stage",
                path,
                message + str(subject.stage),
                fix=f"{ZERO}.stage {least}",
                source=f"{ZERO_CONFIG}; runtime/engine.py",
            )
        if device == "nvme" and not subject.get(f"{ZERO}.{name}.nvme_path"):
            yield _nvme_path(subject, path)


def _nvme_stage(subject: LintedConfig, path: str) -> Remark:
    message = f"NVMe is for stage 3 only, and the stage is {subject.stage}"
    return subject.error(
        "nvme-stage",
        path,
        message,
        fix=f'{ZERO}.stage 3, or device "cpu"',
        source="Hugging Face's DeepSpeed guide: ZeRO-Infinity; DeepSpeed, runtime/zero/stage3.py",
    )


def _nvme_path(subject: LintedConfig, path: str) -> Remark:
    message = "NVMe without nvme_path: DeepSpeed reads the config and fails when it sets up ZeRO"
    return subject.error(
        "nvme-path",
        path,
        message,
        fix="set nvme_path to a directory on a local NVMe disk",
        source="DeepSpeed 0.19.8, runtime/zero/stage3.py and partition_parameters.py",
    )


def ratio(subject: LintedConfig) -> Iterator[Remark]:
    """Offloading a part of the optimizer is for stage 3."""
    part = subject.get(f"{ZERO}.offload_optimizer.ratio")
    present = isinstance(subject.raw(f"{ZERO}.offload_optimizer"), dict)
    if present and isinstance(part, float | int) and part < 1 and subject.stage != 3:
        yield subject.error(
            "partial-offload",
            f"{ZERO}.offload_optimizer.ratio",
            "DeepSpeed stops: `Partial offloading only supported for ZeRO Stage 3`",
            fix=f"{ZERO}.stage 3, or ratio 1.0",
            source=ZERO_CONFIG,
        )


def gathered(subject: LintedConfig) -> Iterator[Remark]:
    """Stage 3 saves placeholders instead of weights, unless it is told to gather them."""
    name = f"{ZERO}.stage3_gather_16bit_weights_on_model_save"
    old = subject.raw(f"{ZERO}.stage3_gather_fp16_weights_on_model_save")
    if subject.stage == 3 and subject.get(name) is False and old is not True:
        where = name if subject.has(name) else f"{ZERO}.stage"
        yield subject.warning(
            "not-gathered",
            where,
            "stage 3 without gathering: save_pretrained and save_16bit_model write no weights",
            fix=f"set {name} to true, or convert checkpoints with zero_to_fp32.py",
            source="Hugging Face's DeepSpeed guide: saving weights; DeepSpeed, runtime/engine.py",
        )


def stage3_keys(subject: LintedConfig) -> Iterator[Remark]:
    """Keys that only stage 3 looks at."""
    zero = subject.raw(ZERO)
    if not isinstance(zero, dict) or subject.stage == 3:
        return
    names = [str(name) for name in zero if str(name).startswith("stage3_")]
    useless = [n for n in names if not n.endswith("on_model_save") and zero[n] != "auto"]
    if useless and subject.stage in (1, 2):
        yield subject.info(
            "stage3-key",
            f"{ZERO}.{useless[0]}",
            f"only stage 3 looks at it, and the stage is {subject.stage}",
            fix=None,
            source=ZERO_CONFIG,
        )


def reduction(subject: LintedConfig) -> Iterator[Remark]:
    """How gradients are summed."""
    if str(subject.get("gradient_allreduce_op")).lower() == "sum":
        zenflow = isinstance(subject.raw(f"{ZERO}.zenflow"), dict)
        for why, holds in (
            ("ZeRO stage 3", subject.stage == 3),
            ("ZenFlow", zenflow),
            ("DeepCompile", subject.on("compile.deepcompile")),
        ):
            if holds:
                message = f"DeepSpeed stops: `sum` is not supported with {why}"
                yield subject.error(
                    "sum-reduction",
                    "gradient_allreduce_op",
                    message,
                    fix='use "mean"',
                    source=CONFIG,
                )
    yield from _predivide(subject)


def _predivide(subject: LintedConfig) -> Iterator[Remark]:
    factor = subject.get("gradient_predivide_factor")
    scatter = subject.get(f"{ZERO}.reduce_scatter") is True
    if subject.stage < 2 or not scatter:
        return
    if isinstance(factor, int | float) and not isinstance(factor, bool) and factor != 1:
        yield subject.error(
            "predivide",
            "gradient_predivide_factor",
            f"DeepSpeed stops: stage {subject.stage} with reduce_scatter takes 1.0 only",
            fix="1.0, or zero_optimization.reduce_scatter false",
            source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
        )
    if subject.on("prescale_gradients"):
        yield subject.error(
            "prescale",
            "prescale_gradients",
            f"DeepSpeed stops: not with stage {subject.stage} and reduce_scatter",
            fix="false",
            source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py",
        )


def norm(subject: LintedConfig) -> Iterator[Remark]:
    """`compute_grad_norm` off, and keys whose only value that works is the default."""
    off = subject.get(f"{ZERO}.compute_grad_norm") is False
    if off and subject.stage not in (1, 2):
        yield subject.error(
            "grad-norm",
            f"{ZERO}.compute_grad_norm",
            "DeepSpeed stops: false is supported only with ZeRO stage 1 or 2",
            fix="take it out",
            source=ZERO_CONFIG,
        )
    if subject.on(f"{ZERO}.legacy_stage1"):
        yield subject.error(
            "legacy-stage1",
            f"{ZERO}.legacy_stage1",
            "DeepSpeed stops when it sets up ZeRO: not supported since 0.5.9",
            fix="take it out",
            source="DeepSpeed, runtime/engine.py",
        )
    if subject.on(f"{ZERO}.elastic_checkpoint") and subject.stage == 3:
        yield subject.warning(
            "elastic-checkpoint",
            f"{ZERO}.elastic_checkpoint",
            "not supported with stage 3 any more; DeepSpeed warns and goes on",
            fix="use universal checkpoints",
            source=ZERO_CONFIG,
        )


def pipeline(subject: LintedConfig) -> Iterator[Remark]:
    """A pipeline keeps all gradients of its stage."""
    where = subject.parallelism
    if where is not None and where.pipeline > 1 and subject.stage > 1:
        yield subject.error(
            "pipeline-stage",
            f"{ZERO}.stage",
            f"DeepSpeed stops: a PipelineModule takes stage 0 or 1, and the stage is "
            f"{subject.stage}",
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
