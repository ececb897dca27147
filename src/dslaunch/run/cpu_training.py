"""Settings of Accelerate on nodes without accelerators.

As measured with accelerate 1.15.0, transformers 5.23.0 and DeepSpeed 0.19.8, two ranks on CPU:

ACCELERATE_USE_CPU  DeepSpeed           what the ranks do
------------------  ------------------  --------------------------------------------------------
not set             no                  each trains alone (state.py, `_prepare_backend`)
true                no                  DDP over Gloo
true                Trainer or plugin   DDP over Gloo; the DeepSpeed config is silently ignored
                                        (state.py, `AcceleratorState`: DeepSpeed needs `not cpu`)
not set             Trainer, --use_cpu  DeepSpeed over Gloo, as intended
not set             Trainer alone       the Trainer counts one process: the batch sizes of the
                                        config are rejected, or every rank trains on all data
not set             plugin in the code  DeepSpeed, but every rank trains on all data

Therefore the variable is set, unless the Trainer uses DeepSpeed. Below a launcher other than
Accelerate's own it is set for scripts that are known to use Accelerate without DeepSpeed.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.deepspeed.resume import is_on, options
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.devices import has_accelerator
from dslaunch.pysource.module import CallSite, read_module
from dslaunch.registry import LAUNCHERS
from dslaunch.run.job_files import program_text

if TYPE_CHECKING:
    from pathlib import Path

    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.facts import Facts
    from dslaunch.launch.job import Job


VARIABLE = "ACCELERATE_USE_CPU"


class Training(Struct, frozen=True):
    """The kind of training, from a script's arguments and source."""

    trainer_deepspeed: bool = False
    """Hugging Face's Trainer has a DeepSpeed config."""
    plugin: bool = False
    """The source creates a `DeepSpeedPlugin` for Accelerate."""
    use_cpu: bool = False
    """The Trainer has --use_cpu."""
    accelerate: bool = False
    """The source creates an `Accelerator`, or arguments of the Trainer, which creates one."""


def for_accelerate(
    allocation: Allocation, job: Job, facts: Facts, cwd: Path
) -> tuple[Job, tuple[Decision, ...]]:
    """Return the job with Accelerate's settings for nodes without accelerators, and the
    decisions."""
    if any(map(has_accelerator, facts.nodes)):
        return job, ()
    of_launcher = LAUNCHERS.get(job.launcher).cpu_variable
    variable = of_launcher or VARIABLE
    given = dict((*job.env, *job.overrides))
    own = [dict(placement.node.env) for placement in allocation.placements]
    if variable in given or any(variable in env for env in own):
        return job, ()
    training = read_training(job, cwd)
    has_deepspeed = training.trainer_deepspeed or training.plugin
    if not of_launcher and (has_deepspeed or not training.accelerate):
        return job, ()
    if training.trainer_deepspeed:
        return job, (_not_set(training, variable),)
    decisions = [decision(DecisionCode.ACCELERATE_ON_CPU, variable=variable)]
    if training.plugin:
        decisions.append(decision(DecisionCode.ACCELERATE_PLUGIN))
    return replace(job, env=(*job.env, (variable, "true"))), tuple(decisions)


def _not_set(training: Training, variable: str) -> Decision:
    if training.use_cpu:
        return decision(DecisionCode.ACCELERATE_NOT_SET, variable=variable)
    return decision(DecisionCode.TRAINER_WITHOUT_CPU)


def read_training(job: Job, cwd: Path) -> Training:
    """Return the kind of training from a job's arguments and script; nothing is run."""
    given = dict(options(job.args))
    by_argument = given.get("deepspeed", "true") != "true"
    told = is_on(job.args, "use_cpu") or is_on(job.args, "no_cuda")
    in_source = _in_source(job, cwd)
    return Training(
        trainer_deepspeed=by_argument or in_source.trainer_deepspeed,
        plugin=in_source.plugin,
        use_cpu=told or in_source.use_cpu,
        accelerate=in_source.accelerate,
    )


def _in_source(job: Job, cwd: Path) -> Training:
    """Return the kind of training from a local program; unknown if it cannot be read."""
    text = program_text(job, cwd)
    module = read_module(job.program, text) if text is not None else None
    if module is None:
        return Training()
    trainer = [call for call in module.calls if call.last_name.endswith("TrainingArguments")]
    return Training(
        trainer_deepspeed=any(_given(call, "deepspeed") for call in trainer),
        plugin=any(call.last_name == "DeepSpeedPlugin" for call in module.calls),
        use_cpu=any(_given(call, "use_cpu") or _given(call, "no_cuda") for call in trainer),
        accelerate=bool(trainer) or any(call.last_name == "Accelerator" for call in module.calls),
    )


def _given(call: CallSite, name: str) -> bool:
    """Return whether a call has this argument with a value that is not a false constant."""
    value = call.keywords.get(name)
    if isinstance(value, ast.Constant):
        return bool(value.value)
    return value is not None
