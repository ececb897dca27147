"""Optimizer and scheduler: names, parameters, and what does not go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dslaunch.deepspeed import other_programs
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules.keys import closest
from dslaunch.deepspeed.rules.types import shown
from dslaunch.deepspeed.schema import by_hand, number
from dslaunch.lint import Remark

ENGINE = "DeepSpeed 0.19.8, runtime/engine.py"
SCHEDULES = "DeepSpeed 0.19.8, runtime/lr_schedules.py"
TESTED = ("adam", "adamw", "adagrad", "lion", "muon")
"""What ZeRO takes without zero_allow_untested_optimizer (0.19.8, runtime/zero/utils.py)."""
ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
TORCH = "torch 2.13, optim/lr_scheduler.py"
NOT_FROM_JSON = ("ChainedScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR")
POSITIVE_SINCE = (0, 19, 6)
"""From here on a warm-up of 0 steps is refused; before, it was taken for 2."""


def optimizer(config: LintedConfig) -> Iterator[Remark]:
    """The name and the parameters."""
    name = config.raw("optimizer.type")
    section = config.raw("optimizer")
    if not isinstance(section, dict) or (name is not None and not isinstance(name, str)):
        return
    if name is None:
        message = "no type, so this section is ignored and DeepSpeed makes no optimizer"
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
        message = f"{config.version} has no {name} any more and stops when the engine starts"
        return config.error("optimizer", "optimizer.type", message, fix="use Adam", source=ENGINE)
    message = f"{name} is neither DeepSpeed's nor in torch.optim: DeepSpeed stops, unless the "
    message += "script hands over an optimizer of its own"
    fix = "use one of Adam, AdamW, Adagrad, Lamb, Lion, Muon, SGD, "
    fix += "or make it in the script and hand it to deepspeed.initialize"
    if similar:
        fix = f"did you mean {similar}?"
    return config.error("optimizer", "optimizer.type", message, fix=fix, source=ENGINE, edits=edits)


def _parameters(config: LintedConfig, name: str) -> Iterator[Remark]:
    given = config.raw("optimizer.params")
    if not isinstance(given, dict):
        return
    if "max_grad_norm" in given:
        yield config.error(
            "max-grad-norm",
            "optimizer.params.max_grad_norm",
            "DeepSpeed stops when the engine starts: no parameter of an optimizer",
            fix="use gradient_clipping at the top level",
            source=ENGINE,
        )
    known = _known(config, name)
    for key in given if known else ():
        if key not in known and key != "max_grad_norm":
            fix = _parameter_meant(name, str(key), known)
            message = f"{name} does not take it: DeepSpeed stops with a TypeError"
            yield config.error(
                "unknown-parameter", ("optimizer", "params", key), message, fix=fix, source=ENGINE
            )


def _parameter_meant(name: str, key: str, known: Iterable[str]) -> str:
    """What to do about a parameter that an optimizer or schedule does not have."""
    names = sorted(known)
    other = other_programs.normalized(key)
    meant = other_programs.meanings("parameters").get(other)
    if meant in names:
        note = other_programs.names("parameter_notes").get(other)
        return f"the parameter is {meant}" + (f", {note}" if note else "")
    similar, _ = closest(key, names)
    return f"did you mean {similar}?" if similar else f"{name} takes {', '.join(names)}"


def _known(config: LintedConfig, name: str) -> tuple[str, ...]:
    """The parameters of a DeepSpeed optimizer; empty where they are not known."""
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
            f"DeepSpeed stops: not with ZeRO, and the stage is {config.stage}",
            fix="use Adam, or zero_optimization.stage 0",
            source="DeepSpeed 0.16.9, runtime/engine.py",
        )
    elif config.stage > 0 and name not in TESTED and not config.on("zero_allow_untested_optimizer"):
        yield config.error(
            "untested-optimizer",
            "optimizer.type",
            "DeepSpeed stops: ZeRO was not tested with it",
            fix="set zero_allow_untested_optimizer to true, at your own risk",
            source=ENGINE,
        )
    if name == "lamb" and config.on("fp16.enabled") and config.get("fp16.loss_scale"):
        yield config.error(
            "lamb-scale",
            "fp16.loss_scale",
            "DeepSpeed stops: Lamb needs the dynamic loss scale",
            fix="set fp16.loss_scale to 0",
            source=ENGINE,
        )
    if name == "muon" and config.stage == 3 and config.get("zero_optimization.reduce_scatter"):
        yield config.error(
            "muon-scatter",
            "optimizer.type",
            "DeepSpeed stops: Muon with stage 3 needs reduce_scatter off",
            fix="set zero_optimization.reduce_scatter to false",
            source="DeepSpeed 0.19.8, zero/stage3.py",
        )


def scheduler(config: LintedConfig) -> Iterator[Remark]:
    """The name and the parameters."""
    section, name = config.raw("scheduler"), config.raw("scheduler.type")
    if not isinstance(section, dict):
        return
    if name is None:
        message = "no type, so this section is ignored and the learning rate stays as it is"
        yield config.error("no-type", "scheduler", message, fix="set scheduler.type", source=ENGINE)
        return
    known = config.table.schedulers.get(name) if isinstance(name, str) else None
    params = config.raw("scheduler.params")
    if known is None:
        yield from _other_scheduler(config, str(name))
    elif isinstance(params, dict):
        yield from _arguments(config, str(name), known, params)
    elif params is None:
        message = f"no params: DeepSpeed stops when it makes {name}"
        yield config.error(
            "no-params", "scheduler", message, fix='write at least "params": {}', source=ENGINE
        )


def _other_scheduler(config: LintedConfig, name: str) -> Iterator[Remark]:
    """A name that is not DeepSpeed's: torch's, or one at which the engine stops."""
    of_torch = by_hand("torch")["schedulers"]
    if name in of_torch:
        yield from _of_torch(config, name)
        return
    own = list(config.table.schedulers)
    message = f"{shown(name)} is neither DeepSpeed's nor in torch.optim.lr_scheduler: DeepSpeed "
    message += "stops when the engine starts"
    plain = name.lower().replace("_", "").replace("-", "")
    meant = other_programs.meanings("schedulers").get(plain)
    exact = next((each for each in (*own, *of_torch) if _alike(each, name)), None)
    similar, _ = closest(name, [*own, *of_torch])
    if exact:
        message += ": the case of the letters counts"
        edits = config.rewrite(("scheduler", "type"), exact)
        fix = f"write {exact}"
    else:
        edits = ()
        fix = meant or (
            f"did you mean {similar}?" if similar else f"DeepSpeed has {', '.join(own)}"
        )
    yield config.error("scheduler", "scheduler.type", message, fix=fix, source=ENGINE, edits=edits)


def _alike(name: str, other: str) -> bool:
    return name.lower() == other.lower()


def _of_torch(config: LintedConfig, name: str) -> Iterator[Remark]:
    """torch's schedulers: their parameters, and those that no JSON can make."""
    parameters = by_hand("torch")["schedulers"][name]
    needed, taken = parameters["needs"], parameters["takes"]
    params = config.raw("scheduler.params")
    if name in NOT_FROM_JSON:
        message = f"{name} needs {needed[0]}, which JSON cannot hold: DeepSpeed stops"
        fix = "make it in the script, and hand it to deepspeed.initialize"
        yield config.error("scheduler", "scheduler.type", message, fix=fix, source=TORCH)
        return
    if name == "ReduceLROnPlateau":
        yield config.error(
            "plateau",
            "scheduler.type",
            "DeepSpeed has no metric for it and gives it the batch size, so that it lowers the "
            "learning rate every `patience` steps",
            fix="step it in the script, with the metric",
            source="DeepSpeed 0.19.8, runtime/engine.py, `_take_model_step`",
        )
    if params is None:
        message = f"no params: DeepSpeed stops when it makes {name}"
        yield config.error(
            "no-params", "scheduler", message, fix='write at least "params": {}', source=ENGINE
        )
        return
    given = params if isinstance(params, dict) else {}
    for key in given:
        if key not in (*needed, *taken, "last_epoch"):
            similar, _ = closest(str(key), [*needed, *taken])
            listed = ", ".join((*needed, *taken))
            fix = f"did you mean {similar}?" if similar else f"{name} takes {listed}"
            message = f"torch's {name} does not take it: DeepSpeed stops with a TypeError"
            path = ("scheduler", "params", key)
            yield config.error("unknown-parameter", path, message, fix=fix, source=TORCH)
    for key in needed:
        if key not in given:
            message = f"{name} needs {key}: DeepSpeed stops with a TypeError"
            yield config.error(
                "missing-parameter", "scheduler.params", message, fix=f"set {key}", source=TORCH
            )


def _arguments(
    config: LintedConfig, name: str, known: dict[str, Any], params: dict[str, Any]
) -> Iterator[Remark]:
    for key in params:
        if key not in known:
            fix = _parameter_meant(name, str(key), known)
            message = f"{name} does not take it: DeepSpeed stops with a TypeError"
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
                f"{name} needs {key}: DeepSpeed stops with a TypeError",
                fix=f'set {key}, or "auto" where Hugging Face fills it in',
                source=SCHEDULES,
            )
    yield from _warm_up(config, params)


def _warm_up(config: LintedConfig, params: dict[str, Any]) -> Iterator[Remark]:
    path, steps = "scheduler.params.warmup_num_steps", params.get("warmup_num_steps")
    if steps is None or steps == "auto":
        return
    strict = number(config.table.version) >= POSITIVE_SINCE
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    if strict and not (whole and steps > 0):
        message = "DeepSpeed stops when the engine starts: a whole number of 1 or more"
        yield config.error("warmup-steps", path, message, fix="at least 1", source=SCHEDULES)
    elif whole and steps < 2:
        message = "taken for 2"
        yield config.info("warmup-steps", path, message, fix=None, source=SCHEDULES)
    total = params.get("total_num_steps")
    if whole and isinstance(total, int) and total < steps:
        message = f"longer than the whole training: total_num_steps is {total}"
        yield config.warning("warmup-steps", path, message, fix=None, source=SCHEDULES)


NAMES = (
    "lamb-scale",
    "max-grad-norm",
    "missing-parameter",
    "muon-scatter",
    "no-params",
    "no-type",
    "one-bit-zero",
    "optimizer",
    "plateau",
    "scheduler",
    "unknown-parameter",
    "untested-optimizer",
    "warmup-steps",
)
RULES = (optimizer, scheduler)
