"""Trains one step with each DeepSpeed config of a directory, on one CPU, and says which did.

Adam is torch's own here, since DeepSpeed's is compiled for the accelerator or the CPU first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch


def run(config: dict[str, Any]) -> None:
    stage = config.get("zero_optimization", {}).get("stage", 0)
    config["optimizer"]["params"]["torch_adam"] = True
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = torch.nn.Linear(8, 8)
    parameters: Any = model.parameters()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    dtype = next(engine.parameters()).dtype
    engine.backward(engine(torch.ones(1, 8, dtype=dtype)).float().sum())
    engine.step()
    assert engine.zero_optimization_stage() == stage
    engine.destroy()


def main() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2], "DS_ACCELERATOR": "cpu",
                   "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # fmt: skip
    # it would compile an all-reduce for one machine first, which takes a minute
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        run(json.loads(path.read_text()))
        print(f"TRAINED {path.stem}", flush=True)


main()
