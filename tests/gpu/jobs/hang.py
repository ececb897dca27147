"""Train a few steps over NCCL, then hang in one way; the argument says which.

hang.py not-entered | busy | lock | dataloader | stopped | exited | kernel | barrier | operation |
        order | sizes | gather | receive | sharded | uneven
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 512
DEVICE = torch.device("cuda", 0)
SHARDED = ("sharded", "uneven")
"""Ways whose model is divided by FSDP; the others have replicas."""


class Stuck(Dataset[int]):
    """A dataset whose samples are never read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(600)
        return index


def main() -> None:
    """Train, hang."""
    how = sys.argv[-1]
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    last = dist.get_world_size() - 1
    is_last = dist.get_rank() == last
    pair = dist.new_group([0, last], group_desc="pair")
    model = make_model(sharded=how in SHARDED)
    for _ in range(3):
        train_step(model)
    print("up", flush=True)
    if is_last and how in OF_THE_LAST_RANK:
        OF_THE_LAST_RANK[how]()
    value = torch.ones(16, device=DEVICE)
    if how == "operation" and not is_last:
        dist.all_reduce(value)
    if how == "order" and is_last:
        dist.all_reduce(value, group=pair)
    if how == "sizes":
        dist.all_reduce(torch.ones(1 << 22, device=DEVICE) if is_last else value)
    if how == "receive":
        dist.recv(value, src=(dist.get_rank() + 1) % dist.get_world_size())
        torch.cuda.synchronize()
    while True:
        train_step(model)


def make_model(*, sharded: bool) -> nn.Module:
    """Return a small model on the GPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    if sharded:
        return fully_shard(model)
    return DistributedDataParallel(model, device_ids=[0])


def train_step(model: nn.Module) -> None:
    """Train one step, and read the loss, for which the CPU waits for the GPU."""
    loss = model(torch.ones(8, WIDTH, device=DEVICE)).pow(2).mean()
    loss.backward()
    loss.item()


def save_checkpoint() -> None:
    """Save for ten minutes."""
    time.sleep(600)


def compute() -> None:
    """Compute on the CPU, without end."""
    while True:
        pass


def lock() -> None:
    """Wait for a lock that this thread has."""
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()


def load() -> None:
    """Wait for a worker of a data loader."""
    next(iter(DataLoader(Stuck(), num_workers=1)))


def stop() -> None:
    """Be stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    """Exit successfully; a child keeps the connections."""
    if not os.fork():
        time.sleep(600)
    os._exit(0)


def occupy() -> None:
    """Let the GPU wait for minutes: what is launched after this is queued."""
    # some 2e9 cycles a second
    torch.cuda._sleep(1 << 40)


def evaluate() -> None:
    """Meet the others at a barrier, which they do not call."""
    dist.barrier()
    torch.cuda.synchronize()


def broadcast() -> None:
    """Receive from the first rank, which reduces with the others."""
    dist.broadcast(torch.ones(16, device=DEVICE), src=0)


def gather_metrics() -> None:
    """Gather from the others, which train."""
    dist.all_gather_object([None] * dist.get_world_size(), "metrics")


OF_THE_LAST_RANK: Mapping[str, Callable[[], None]] = {
    "not-entered": save_checkpoint,
    "sharded": save_checkpoint,
    "busy": compute,
    "lock": lock,
    "dataloader": load,
    "stopped": stop,
    "exited": leave,
    "kernel": occupy,
    "barrier": evaluate,
    "uneven": evaluate,
    "operation": broadcast,
    "gather": gather_metrics,
}


if __name__ == "__main__":
    main()
