"""Train a small model with fully sharded data parallelism (FSDP2), on CPU or GPU."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported before there is a process group: see train_ddp.py
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Shard the parameters over all ranks, and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    train(args.steps, device)
    dist.barrier()
    dist.destroy_process_group()


def train(steps: int, device: str) -> None:
    """Train; rank 0 shows the loss."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())  # each rank has its own data
    for step in range(steps):
        inputs = torch.randn(32, 16, device=device)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].sum(1, keepdim=True).tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
