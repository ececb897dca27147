"""Optimizer and scheduler: names, parameters, and combinations that do not work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dslaunch.deepspeed import other_programs
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.keys import closest
from dslaunch.deepspeed.rules.types import shown
from dslaunch.deepspeed.schema import by_hand, number
from dslaunch.lint import Remark
from dslaunch.lint.rules import rule

ENGINE = "DeepSpeed 0.19.8, runtime/engine.py"
SCHEDULES = "DeepSpeed 0.19.8, runtime/lr_schedules.py"
TESTED = ("adam", "adamw", "adagrad", "lion", "muon")
"""Optimizers that ZeRO accepts without zero_allow_untested_optimizer (0.19.8, zero/utils.py)."""
ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
TORCH = "torch 2.13, optim/lr_scheduler.py"
NOT_FROM_JSON = ("ChainedScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR")
POSITIVE_SINCE = (0, 19, 6)
"""From this version on, 0 warmup steps are an error; before, they counted as 2."""


@rule("optimizer", "error", "an unknown optimizer", source=ENGINE)
@rule("no-type", "error", "an optimizer or scheduler without `type`", source=ENGINE)
@rule(
    "one-bit-zero",
    "error",
    "a 1-bit optimizer with ZeRO",
    source="DeepSpeed 0.16.9, runtime/engine.py",
)
@rule("lamb-scale", "error", "Lamb with a static loss scale", source=ENGINE)
@rule(
    "muon-scatter",
    "error",
    "Muon with ZeRO stage 3 and `reduce_scatter`",
    source="DeepSpeed 0.19.8, zero/stage3.py",
)
@rule(
    "untested-optimizer",
    "error",
    "an optimizer that ZeRO does not accept by default",
    source=ENGINE,
)
@rule("max-grad-norm", "error", "`max_grad_norm` in the optimizer parameters", source=ENGINE)
@rule(
    "unknown-parameter", "error", "an unknown parameter of an optimizer or scheduler", source=ENGINE
)
def optimizer(config: LintedConfig) -> Iterator[Remark]:
    """Check the name and the parameters of the optimizer."""
    name = config.raw("optimizer.type")
    section = config.raw("optimizer")
    if not isinstance(section, dict) or (name is not None and not isinstance(name, str)):
        return
    if name is None:
        message = "type is not set: the section is ignored, and DeepSpeed creates no optimizer"
        yield config.error("no-type", "optimizer", message, fix="set optimizer.type", source=ENGINE)
        return
    own = config.table.optimizers
    if name.lower() not in own and name not in by_hand("torch")["optimizers"]:
        yield _unknown_optimizer(config, name)
    yield from _parameters(config, name)
    yield from _with_zero(config, name.lower())


def _unknown_optimizer(config: LintedConfig, name: str) -> Remark:
    names = [*by_hand("torch")["optimizers"], "Lamb", "Lion", "Muon"]
    similar, ratio = closest(name, names)
    edits = config.rewrite(("optimizer", "type"), similar) if similar and ratio >= 0.9 else ()
    if name.lower() in ONE_BIT:
        message = f"{name} was removed: {config.version} stops when the engine starts"
        return config.error("optimizer", "optimizer.type", message, fix="use Adam")
    message = (
        f"{name} is not an optimizer of DeepSpeed or torch.optim: DeepSpeed stops, unless the "
        "script passes its own optimizer"
    )
    fix = "use one of Adam, AdamW, Adagrad, Lamb, Lion, Muon, SGD, "
    fix += "or create it in the script and pass it to deepspeed.initialize"
    if similar:
        fix = f"did you mean {similar}?"
    return config.error("optimizer", "optimizer.type", message, fix=fix, edits=edits)


def _parameters(config: LintedConfig, name: str) -> Iterator[Remark]:
    given = config.raw("optimizer.params")
    if not isinstance(given, dict):
        return
    if "max_grad_norm" in given:
        yield config.error(
            "max-grad-norm",
            "optimizer.params.max_grad_norm",
            "not a parameter of an optimizer: DeepSpeed stops when the engine starts",
            fix="use gradient_clipping at the top level",
        )
    known = _known(config, name)
    for key in given if known else ():
        if key not in known and key != "max_grad_norm":
            fix = _parameter_meant(name, str(key), known)
            message = f"unknown parameter of {name}: DeepSpeed stops with a TypeError"
            yield config.error("unknown-parameter", ("optimizer", "params", key), message, fix=fix)


def _parameter_meant(name: str, key: str, known: Iterable[str]) -> str:
    """Return what to write instead of an unknown parameter of an optimizer or scheduler."""
    names = sorted(known)
    other = other_programs.normalized(key)
    meant = other_programs.meanings("parameters").get(other)
    if meant in names:
        note = other_programs.names("parameter_notes").get(other)
        return f"write {meant}" + (f", {note}" if note else "")
    similar, _ = closest(key, names)
    return f"did you mean {similar}?" if similar else f"{name} accepts {', '.join(names)}"


def _known(config: LintedConfig, name: str) -> tuple[str, ...]:
    """Return the parameters of a DeepSpeed optimizer; empty if they are unknown."""
    if name.lower() not in TESTED or config.raw("optimizer.params.torch_adam"):
        return ()
    found = []
    for key in config.table.below("optimizer.params"):
        types = {each.lower().removesuffix("(cpu)") for each in key.applies_to or ()}
        if name.lower() in types:
            found.append(key.name)
    return tuple(found) if len(found) > 1 else ()


def _with_zero(config: LintedConfig, name: str) -> Iterator[Remark]:
    own = name in config.table.optimizers
    if config.stage > 0 and name in ONE_BIT and own:
        yield config.error(
            "one-bit-zero",
            "optimizer.type",
            f"{name} does not support ZeRO, got stage {config.stage}: DeepSpeed stops",
            fix="use Adam, or set zero_optimization.stage to 0",
        )
    elif config.stage > 0 and name not in TESTED and not config.on("zero_allow_untested_optimizer"):
        yield config.error(
            "untested-optimizer",
            "optimizer.type",
            f"{name} is not tested with ZeRO: DeepSpeed stops",
            fix="use Adam, or set zero_allow_untested_optimizer to true",
        )
    if name == "lamb" and config.on("fp16.enabled") and config.get("fp16.loss_scale"):
        yield config.error(
            "lamb-scale",
            "fp16.loss_scale",
            "a static loss scale, but Lamb needs the dynamic one: DeepSpeed stops",
            fix="set fp16.loss_scale to 0",
        )
    if name == "muon" and config.stage == 3 and config.get("zero_optimization.reduce_scatter"):
        yield config.error(
            "muon-scatter",
            "optimizer.type",
            "Muon does not support ZeRO stage 3 with reduce_scatter: DeepSpeed stops",
            fix="set zero_optimization.reduce_scatter to false",
        )


@rule("scheduler", "error", "an unknown or unusable scheduler", source=ENGINE)
@rule("no-params", "error", "a scheduler without `params`", source=ENGINE)
@rule("missing-parameter", "error", "a missing parameter of a scheduler", source=SCHEDULES)
@rule(
    "warmup-steps",
    "error",
    "a number of warmup steps that is invalid or too large",
    source=SCHEDULES,
)
@rule(
    "plateau",
    "error",
    "ReduceLROnPlateau without a metric",
    source="DeepSpeed 0.19.8, runtime/engine.py, `_take_model_step`",
)
def scheduler(config: LintedConfig) -> Iterator[Remark]:
    """Check the name and the parameters of the scheduler."""
    section, name = config.raw("scheduler"), config.raw("scheduler.type")
    if not isinstance(section, dict):
        return
    if name is None:
        message = "type is not set: the section is ignored, and the learning rate is constant"
        yield config.error("no-type", "scheduler", message, fix="set scheduler.type", source=ENGINE)
        return
    known = config.table.schedulers.get(name) if isinstance(name, str) else None
    params = config.raw("scheduler.params")
    if known is None:
        yield from _other_scheduler(config, str(name))
    elif isinstance(params, dict):
        yield from _arguments(config, str(name), known, params)
    elif params is None:
        message = f"params is not set: DeepSpeed stops when it creates {name}"
        yield config.error("no-params", "scheduler", message, fix='add "params": {}', source=ENGINE)


def _other_scheduler(config: LintedConfig, name: str) -> Iterator[Remark]:
    """Report a scheduler that DeepSpeed does not have: of torch, or unknown."""
    of_torch = by_hand("torch")["schedulers"]
    if name in of_torch:
        yield from _of_torch(config, name)
        return
    own = list(config.table.schedulers)
    message = (
        f"{shown(name)} is not a scheduler of DeepSpeed or torch.optim.lr_scheduler: DeepSpeed "
        "stops when the engine starts"
    )
    plain = name.lower().replace("_", "").replace("-", "")
    meant = other_programs.meanings("schedulers").get(plain)
    exact = next((each for each in (*own, *of_torch) if _alike(each, name)), None)
    similar, _ = closest(name, [*own, *of_torch])
    if exact:
        message += " (names are case-sensitive)"
        edits = config.rewrite(("scheduler", "type"), exact)
        fix = f"write {exact}"
    else:
        edits = ()
        fix = meant or (f"did you mean {similar}?" if similar else f"use one of {', '.join(own)}")
    yield config.error("scheduler", "scheduler.type", message, fix=fix, edits=edits)


def _alike(name: str, other: str) -> bool:
    return name.lower() == other.lower()


def _of_torch(config: LintedConfig, name: str) -> Iterator[Remark]:
    """Check the parameters of a torch scheduler, and whether JSON can express them."""
    parameters = by_hand("torch")["schedulers"][name]
    needed, taken = parameters["needs"], parameters["takes"]
    params = config.raw("scheduler.params")
    if name in NOT_FROM_JSON:
        message = f"{name} needs {needed[0]}, which JSON cannot express: DeepSpeed stops"
        fix = "create the scheduler in the script, and pass it to deepspeed.initialize"
        yield config.error("scheduler", "scheduler.type", message, fix=fix, source=TORCH)
        return
    if name == "ReduceLROnPlateau":
        yield config.error(
            "plateau",
            "scheduler.type",
            "DeepSpeed passes the batch size as its metric, so the learning rate is reduced every "
            "`patience` steps",
            fix="remove the section, and step the scheduler in the script with the metric",
        )
    if params is None:
        message = f"params is not set: DeepSpeed stops when it creates {name}"
        yield config.error("no-params", "scheduler", message, fix='add "params": {}', source=ENGINE)
        return
    given = params if isinstance(params, dict) else {}
    for key in given:
        if key not in (*needed, *taken, "last_epoch"):
            similar, _ = closest(str(key), [*needed, *taken])
            listed = ", ".join((*needed, *taken))
            fix = f"did you mean {similar}?" if similar else f"{name} accepts {listed}"
            message = f"unknown parameter of {name} in torch: DeepSpeed stops with a TypeError"
            path = ("scheduler", "params", key)
            yield config.error("unknown-parameter", path, message, fix=fix, source=TORCH)
    for key in needed:
        if key not in given:
            message = f"{key} is missing, which {name} needs: DeepSpeed stops with a TypeError"
            yield config.error(
                "missing-parameter", "scheduler.params", message, fix=f"set {key}", source=TORCH
            )


def _arguments(
    config: LintedConfig, name: str, known: dict[str, Any], params: dict[str, Any]
) -> Iterator[Remark]:
    for key in params:
        if key not in known:
            fix = _parameter_meant(name, str(key), known)
            message = f"unknown parameter of {name}: DeepSpeed stops with a TypeError"
            yield config.error(
                "unknown-parameter",
                ("scheduler", "params", key),
                message,
                fix=fix,
                source=SCHEDULES,
            )
    for key, default in known.items():
        if default == "required" and key not in params:
            yield config.error(
                "missing-parameter",
                "scheduler.params",
                f"{key} is missing, which {name} needs: DeepSpeed stops with a TypeError",
                fix=f'set {key}, or write "auto" if the Trainer replaces it',
            )
    yield from _warm_up(config, params)


def _warm_up(config: LintedConfig, params: dict[str, Any]) -> Iterator[Remark]:
    path, steps = "scheduler.params.warmup_num_steps", params.get("warmup_num_steps")
    if steps is None or steps == "auto":
        return
    strict = number(config.table.version) >= POSITIVE_SINCE
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    if strict and not (whole and steps > 0):
        message = f"expected an integer of 1 or more, got {shown(steps)}: DeepSpeed stops"
        yield config.error("warmup-steps", path, message, fix="write 1 or more")
    elif whole and steps < 2:
        message = f"{steps} counts as 2"
        yield config.info("warmup-steps", path, message, fix=None)
    total = params.get("total_num_steps")
    if whole and isinstance(total, int) and total < steps:
        message = f"{steps} warmup steps, but the whole training has {total} (total_num_steps)"
        yield config.warning("warmup-steps", path, message, fix=None)
