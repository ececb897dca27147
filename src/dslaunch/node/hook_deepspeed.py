"""Notes the configs and the engine of DeepSpeed: a part of `hook_rehearsal.py`."""

import functools
import json
import math
import os

from .hook_models import described, note_input, sizes
from .hook_recorder import (
    LONGEST_PATH,
    argument,
    class_name,
    current,
    note,
    path_of,
    text,
    variable,
    watch,
)
from .hook_steps import MOST_RATES, begin_steps, hold, note_step, parameters_of, rates_of
from .hook_training import training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

    from .hook_recorder import Recorder

MOST_CONFIG = 100_000
"""Bytes of a DeepSpeed config."""
TRAIN_BATCH = "train_batch_size"


# ------------------------------------------------------------ the config


def _watch_config(recorder: "Recorder", module: "Any") -> None:
    function = module.DeepSpeedConfig.__init__

    @functools.wraps(function)
    def watched(self: "Any", config: "Any", *args: "Any", **kwargs: "Any") -> None:
        simulated: List[Any] = []
        note(_config, config, simulated)
        function(self, simulated[0] if simulated else config, *args, **kwargs)

    module.DeepSpeedConfig.__init__ = watched


def _config(recorder: "Recorder", config: "Any", simulated: "List[Any]") -> None:
    """Note the config as it was given: DeepSpeed adds defaults to it. Add to `simulated` the config
    for the number of ranks here, if it is meant for the real run."""
    path, written = _place_and_text(config)
    if written is None:
        return
    batch = None
    if recorder.world is not None:
        parsed = config if path is None else json.loads(written)
        batch = _batch_here(parsed, recorder.world)
        if batch is not None:
            simulated.append({**parsed, TRAIN_BATCH: batch})
    recorder.write("deepspeed-config", path=path, text=written, simulated=batch)


def _place_and_text(config: "Any") -> "Tuple[Optional[str], Optional[str]]":
    """Return the path of a config and its text; the path is None for a dict, and the text for what
    is neither."""
    if isinstance(config, str) and os.path.isfile(config):
        with open(config, "rb") as file:
            return config[:LONGEST_PATH], file.read(MOST_CONFIG).decode(errors="replace")
    if isinstance(config, dict):
        return None, json.dumps(config, default=text, indent=1)[:MOST_CONFIG]
    return None, None


def _watch_frameworks(recorder: "Recorder", module: "Any") -> None:
    watch(module.HfDeepSpeedConfig, "__init__", before=_unfilled_config)


def _unfilled_config(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note the config that Accelerate or Transformers fills in: it may fail before DeepSpeed."""
    path, written = _place_and_text(argument(args, kwargs, 1, "config_file_or_dict"))
    if written is not None:
        recorder.write("unfilled-config", path=path, text=written)


def _batch_here(config: "Dict[str, Any]", world: int) -> "Optional[int]":
    """Return the batch size with which the ranks here have the micro-batches of the real run; None:
    the config is not meant for that many ranks."""
    here = variable("WORLD_SIZE") or 1
    train = config.get(TRAIN_BATCH)
    if not isinstance(train, int) or here >= world or train * here % world:
        return None
    micro = config.get("train_micro_batch_size_per_gpu")
    steps = config.get("gradient_accumulation_steps")
    known = [value for value in (micro, steps) if isinstance(value, int)]
    of_all_here = math.prod(known) * here
    if len(known) == 2 and train == of_all_here:
        return None  # it is meant for the ranks here
    batch = train * here // world
    return None if batch % of_all_here else batch


# ------------------------------------------------------------ the engine


def _watch_engine(recorder: "Recorder", module: "Any") -> None:
    engine = module.DeepSpeedEngine
    step = "_take_model_step" if hasattr(engine, "_take_model_step") else "step"
    watch(engine, "__init__", after=_engine)
    watch(engine, "forward", before=note_input)
    watch(engine, "save_checkpoint", before=_checkpoint)
    function = getattr(engine, step)

    @functools.wraps(function)
    def watched(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        recorder = current()
        if recorder is None:
            return function(self, *args, **kwargs)
        count = training.counts.get(id(self), 0)
        if count >= recorder.steps:
            hold()
        rates: List[float] = []
        # afterwards the scheduler has set those of the next step
        note(_note_rates, self, rates)
        training.in_engine = True
        try:
            result = function(self, *args, **kwargs)
        finally:
            training.in_engine = False
        training.counts[id(self)] = count + 1
        note(_engine_stepped, self, count + 1, rates)
        return result

    setattr(engine, step, watched)


def _engine(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    engine = args[0]
    stage = int(engine.zero_optimization_stage())
    scheduler = engine.lr_scheduler
    training.engine = engine
    training.sharded = stage == 3
    training.model = engine.module
    recorder.write("wrapped", wrapper="DeepSpeedEngine", **described(engine.module))
    recorder.write(
        "engine",
        stage=stage,
        data_parallel=int(engine.dp_world_size),
        train_batch=int(engine.train_batch_size()),
        micro_batch=int(engine.train_micro_batch_size_per_gpu()),
        accumulation=int(engine.gradient_accumulation_steps()),
        pipeline=class_name(engine) == "PipelineEngine",
        model_parallel=engine.mpu is not None,
        optimizer=class_name(engine.basic_optimizer),
        scheduler=class_name(scheduler) if scheduler is not None else None,
    )
    begin_steps([])
    if engine.basic_optimizer is not None:
        recorder.write(
            "optimizer",
            optimizer=class_name(engine.basic_optimizer),
            lr=rates_of(engine.basic_optimizer),
            tensors=len(parameters_of(engine.basic_optimizer)),
            owned=None,
            gradients=None,
            fingerprint=training.fingerprint,
            **sizes(engine.module.parameters()),
        )


def _note_rates(recorder: "Recorder", engine: "Any", rates: "List[float]") -> None:
    rates += [float(rate) for rate in (engine.get_lr() or [])[:MOST_RATES]]


def _engine_stepped(recorder: "Recorder", engine: "Any", count: int, rates: "List[float]") -> None:
    optimizer = engine.basic_optimizer
    note_step(recorder, count, [], rates, optimizer, skipped=int(engine.skipped_steps))


def _checkpoint(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    directory = argument(args, kwargs, 1, "save_dir")
    recorder.write("saved", by="save_checkpoint", path=path_of(directory))


WATCHES = {
    "accelerate.utils.deepspeed": _watch_frameworks,
    "deepspeed.runtime.engine": _watch_engine,
    "deepspeed.runtime.config": _watch_config,
}
