"""Train a small model with DeepSpeed, ZeRO as the config says, on CPU or GPU."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.distributed.nn  # first: see train_ddp.py
from torch import nn


def main() -> None:
    """Train, show the loss, save checkpoints."""
    args = parse_args()
    torch.set_num_threads(1)
    # on CPU DeepSpeed would compile an all-reduce for one machine first: a minute, and a compiler
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=args.lr),
        config=str(args.deepspeed_config),
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} on {engine.device}", flush=True)
    if args.resume:
        # without a tag: the one that `latest` names
        loaded, _ = engine.load_checkpoint(str(args.save))
        print(f"rank {rank} resumes {loaded} at step {engine.global_steps}", flush=True)
    for step in range(engine.global_steps, args.steps):
        generator = torch.Generator().manual_seed(1_000_003 + step)
        inputs = torch.randn(engine.train_batch_size(), 16, generator=generator)
        targets = torch.tanh(inputs[:, :4].sum(1, keepdim=True))
        mine = slice(rank, None, world)
        loss = nn.functional.mse_loss(
            engine(inputs[mine].to(engine.device)), targets[mine].to(engine.device)
        )
        engine.backward(loss)
        engine.step()
        dist.all_reduce(loss := loss.detach())
        if rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step:3d}  loss {loss.item() / world:.6f}", flush=True)
        if engine.global_steps % args.save_every == 0 or step == args.steps - 1:
            engine.save_checkpoint(str(args.save), tag=f"step{engine.global_steps}")
            if rank == 0:
                print(f"saved {args.save}/step{engine.global_steps}", flush=True)
        time.sleep(args.pause)
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path("checkpoints"), help="directory")
    parser.add_argument("--save_every", type=int, default=1000, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--pause", type=float, default=0, help="seconds after each step")
    parser.add_argument("--deepspeed_config", type=Path, default=Path("ds_config.json"))
    parser.add_argument("--local_rank", help="DeepSpeed's launcher gives it; not used")
    return parser.parse_args()


if __name__ == "__main__":
    main()
