"""Train a small bf16 model with ZeRO, save a checkpoint, print what its weights sum up to as JSON.

zero.py STAGE [--offload]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.distributed.nn
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn

HIDDEN, STEPS = 256, 8


def main() -> None:
    """Train, save, print."""
    args = parse_args()
    config = make_config(args.stage, args.offload)
    deepspeed.init_distributed()
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
        model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)))
    # offload needs DeepSpeed's own Adam for the CPU, which the config names
    optimizer = None if args.offload else torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = [train_step(engine) for _ in range(STEPS)]
    engine.save_checkpoint("checkpoints", tag="end")
    # every rank must take part in gathering the weights
    total = sum(safe_get_full_fp32_param(p).double().sum().item() for p in model.parameters())
    if dist.get_rank() == 0:
        device = str(engine.device)
        print(json.dumps({"losses": losses, "sum": total, "device": device}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", type=int)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--local_rank", help="DeepSpeed's launcher gives it; not used")
    return parser.parse_args()


def make_config(stage: int, offload: bool) -> dict[str, Any]:
    """Return the DeepSpeed config."""
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 1_000_000}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
    return config


def train_step(engine: Any) -> float:
    """Train the model to give back its input; return the loss."""
    inputs = torch.ones(4, HIDDEN, dtype=torch.bfloat16, device=engine.device)
    loss = (engine(inputs) - inputs).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


if __name__ == "__main__":
    main()
