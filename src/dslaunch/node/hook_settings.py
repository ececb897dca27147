"""Notes the settings of trainers and arguments: a part of `hook_rehearsal.py`."""

from .hook_recorder import LONGEST_NAME, setting, watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any

    from .hook_recorder import Recorder

TRAINER = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "learning_rate"),
    *("num_train_epochs", "fp16", "bf16", "save_strategy", "save_steps", "save_on_each_node"),
    *("output_dir", "ddp_find_unused_parameters", "ddp_backend", "dataloader_num_workers"),
    *("gradient_checkpointing", "push_to_hub", "report_to", "use_cpu", "seed", "data_seed"),
    *("group_by_length", "dataloader_drop_last", "load_best_model_at_end", "eval_strategy"),
)
"""Fields of TrainingArguments that are recorded."""
TRAINER_SWITCHES = ("deepspeed", "fsdp")
"""Fields of TrainingArguments of which is recorded whether they are set."""
ACCELERATOR = (
    "mixed_precision",
    "gradient_accumulation_steps",
    "distributed_type",
    "num_processes",
)
"""Attributes of an Accelerator that are recorded."""

_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})
"""Texts that mean False, in lower case. Each is true for `bool`."""


def _watch_parser(recorder: "Recorder", module: "Any") -> None:
    watch(module.ArgumentParser, "_get_value", after=_argument_parsed)


def _argument_parsed(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    _, action, text = args
    if action.type is bool and result is True and text.lower() in _FALSE:
        name = action.option_strings[-1] if action.option_strings else action.dest
        recorder.write("text-is-true", argument=str(name)[:LONGEST_NAME], text=text)


def _watch_arguments(recorder: "Recorder", module: "Any") -> None:
    watch(module.TrainingArguments, "__post_init__", after=_arguments)


def _arguments(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    given = args[0]
    values = {name: setting(getattr(given, name, None)) for name in TRAINER}
    switches = {name: bool(getattr(given, name, None)) for name in TRAINER_SWITCHES}
    recorder.write("trainer", arguments={**values, **switches})


def _watch_accelerator(recorder: "Recorder", module: "Any") -> None:
    watch(module.Accelerator, "__init__", after=_accelerator)


def _accelerator(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    values = {name: setting(getattr(args[0], name, None)) for name in ACCELERATOR}
    recorder.write("accelerator", settings=values)


WATCHES = {
    "argparse": _watch_parser,
    "transformers.training_args": _watch_arguments,
    "accelerate.accelerator": _watch_accelerator,
}
