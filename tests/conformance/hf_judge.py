"""Runs in the interpreter that has transformers: reads configs with arguments as JSON lines, says
which keys the Trainer finds wrong and which `auto` accelerate does not fill in."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """A line first; then, for each config, `{"mismatched": [...], "unfilled": key or null}`."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr
    import transformers

    print(json.dumps(transformers.__version__), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            print(json.dumps(started(asked["start"], asked["arguments"])), file=answers, flush=True)
            continue
        mismatched, filled = trainer(asked["config"], asked["arguments"])
        answer = {"mismatched": mismatched, "unfilled": accelerate(filled)}
        print(json.dumps(answer), file=answers, flush=True)


def started(text: str, given: dict[str, Any]) -> dict[str, Any]:
    """What becomes of a file's text under TrainingArguments: `error`, or `stage` and `zero3`."""
    import tempfile

    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = SimpleNamespace(**given, fp16_full_eval=False, bf16_full_eval=False)
    arguments.get_warmup_steps = lambda total: given["warmup_steps"]
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=8))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        try:
            held = HfTrainerDeepSpeedConfig(file.name)
            held.trainer_config_process(arguments)
            plugin = DeepSpeedPlugin(hf_ds_config=held)
            plugin.set_mixed_precision("bf16" if given["bf16"] else "no")
            held.trainer_config_finalize(arguments, model, given["max_steps"])
        except Exception as error:  # noqa: BLE001 - any way to fail is a refusal
            return {"error": f"{type(error).__name__}: {error}"}
    zero = held.config["zero_optimization"] or {}
    return {"error": None, "stage": zero.get("stage"), "zero3": held.is_zero3()}


def trainer(config: dict[str, Any], given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The keys that do not say what the arguments say, and the config with `auto` filled in."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = SimpleNamespace(**given, fp16_full_eval=False, bf16_full_eval=False)
    arguments.get_warmup_steps = lambda total: given["warmup_steps"]
    held = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    held.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=8))
    try:
        held.trainer_config_finalize(arguments, model, given["max_steps"])
    except ValueError:
        return [text.split()[2].partition("=")[0] for text in held.mismatches], held.config
    return [], held.config


def accelerate(config: dict[str, Any]) -> str | None:
    """The first key whose `auto` is still there when accelerate hands the config on."""
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(config))
    sizes = "zero_optimization.stage3_"
    known = {
        "gradient_clipping": 1.0,
        f"{sizes}gather_16bit_weights_on_model_save": False,
        f"{sizes}prefetch_bucket_size": 8,
        f"{sizes}param_persistence_threshold": 8,
        "zero_optimization.reduce_bucket_size": 8,
        "fp16.enabled": False,
        "bf16.enabled": False,
    }
    try:
        plugin.deepspeed_config_process(must_match=False, **known)
    except ValueError as error:
        return str(error).split("`")[1]
    return None


if __name__ == "__main__":
    main()
