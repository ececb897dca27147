"""Runs in the interpreter that has DeepSpeed: reads configs as JSON lines, says what it does.

With the word `engine`, and the variables of one rank, it starts the engine with each, on a CPU.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any


def main() -> None:
    """First the version; then a line for each config: null where it is taken, else the error."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig

    logging.disable(logging.CRITICAL)
    read: Callable[[Any], object] = DeepSpeedConfig
    if sys.argv[1:] == ["engine"]:
        # on CPU it would compile an all-reduce for one machine first, which takes a minute
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo")
        read = started
    print(json.dumps(deepspeed.__version__), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(judged(read, json.loads(line))), file=answers, flush=True)


def started(config: Any) -> object:
    """The engine, with the smallest of models."""
    import deepspeed
    import torch

    model = torch.nn.Linear(2, 2)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)


def judged(read: Callable[[Any], object], config: Any) -> str | None:
    """What DeepSpeed says when it stops at a config, or at the file that a text names."""
    try:
        read(config)
    except Exception as error:  # noqa: BLE001 - any way to fail is a refusal
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


if __name__ == "__main__":
    main()
