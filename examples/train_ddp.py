"""Train a small model with DistributedDataParallel, on CPU (gloo) or GPU (nccl).

The global batch is fixed and split over the ranks, so that any number of ranks, also on nodes
with different numbers of slots, gives the result of one process (up to rounding).
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

# Its functions' defaults name the process group if there is one when it is imported, as DDP does,
# and keep it alive past its end: the interpreter may then abort (torch 2.13).
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Join the other ranks, train, leave."""
    args = parse_args()
    torch.set_num_threads(1)
    device = start_process_group()
    train(args, device)
    # the model is gone here: it must not be what keeps the process group alive past its end
    dist.barrier()
    dist.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train, show the loss, save a checkpoint."""
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} on {socket.gethostname()}, {device}", flush=True)

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first = resume(args.save, model, optimizer)
    if first and rank == 0:
        print(f"resumed after step {first} of {args.steps}", flush=True)
    wrapped = DistributedDataParallel(model)
    for step in range(first, args.steps):
        loss = train_step(wrapped, optimizer, make_batch(step, args.batch), rank, world, device)
        if rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step:3d}  loss {loss:.6f}", flush=True)
    if first < args.steps and (rank == 0 or (args.each_node and os.environ["LOCAL_RANK"] == "0")):
        save(args.save, args.steps, model, optimizer)
    if rank == 0:
        print(f"sum of parameters {checksum(model).item():.6f}", flush=True)
    if args.check:
        check_equal(checksum(model), rank)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=96, help="global batch size")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path("checkpoints"), help="directory")
    parser.add_argument("--check", action="store_true", help="compare the ranks' parameters")
    parser.add_argument("--each-node", action="store_true", help="save on every node")
    parser.add_argument("--local_rank", "--local-rank", help="some launchers give it; not used")
    return parser.parse_args()


def start_process_group() -> torch.device:
    """Join the others: nccl with a GPU per local rank, else gloo."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def make_batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same batch on every rank: inputs and the function that is to be learned."""
    generator = torch.Generator().manual_seed(1_000_003 + step)
    inputs = torch.randn(size, 16, generator=generator)
    return inputs, torch.tanh(inputs[:, :4].sum(1, keepdim=True)) + 0.5 * inputs[:, 4:5]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    rank: int,
    world: int,
    device: torch.device,
) -> float:
    """One step on this rank's share of the batch; gives the loss of the whole batch."""
    inputs, targets = (part.tensor_split(world)[rank].to(device) for part in batch)
    # DDP averages over the ranks; shares of different size need the sum over the whole batch
    loss = nn.functional.mse_loss(model(inputs), targets, reduction="sum") * world / len(batch[0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach() / world
    dist.all_reduce(shown)
    return float(shown)


def checksum(model: nn.Module) -> torch.Tensor:
    """The sum of all parameters, in double precision."""
    return torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()


def check_equal(value: torch.Tensor, rank: int) -> None:
    """End with an error unless every rank has the same value, to the last bit."""
    least, most = value.clone(), value.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if least.item() != most.item():
        raise SystemExit(f"rank {rank}: the ranks' parameters differ: {least} to {most}")
    if rank == 0:
        print("the parameters are equal on all ranks", flush=True)


def save(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint; it appears whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / "checkpoint.new"
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary)
    temporary.replace(directory / "checkpoint.pt")
    print(f"saved {directory / 'checkpoint.pt'} after step {step}", flush=True)


def resume(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if every rank sees one; return the step to continue with."""
    path = directory / "checkpoint.pt"
    everywhere = torch.tensor([float(path.is_file())])
    if torch.cuda.is_available():
        everywhere = everywhere.cuda()
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    if everywhere.item() < 1:
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main()
