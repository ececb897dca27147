"""End, or block, as a training on GPUs may; the argument says how.

fail.py memory | ordinal | hidden | same-gpu | assertion | spin | kernel | collective
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Do what the last argument says; launchers may put their own in front."""
    {
        "memory": memory,
        "ordinal": ordinal,
        "hidden": hidden,
        "same-gpu": same_gpu,
        "assertion": assertion,
        "spin": spin,
        "kernel": kernel,
        "collective": collective,
    }[sys.argv[-1]]()


def memory() -> None:
    """Ask for more memory than any GPU has."""
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def ordinal() -> None:
    """Choose the GPU after the last one."""
    torch.cuda.set_device(torch.cuda.device_count())


def hidden() -> None:
    """Use a GPU; the environment hides all of them."""
    torch.zeros(1, device="cuda")


def same_gpu() -> None:
    """Let all ranks use the first GPU, which NCCL refuses."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()


def assertion() -> None:
    """Read past the end of a tensor, which a kernel notices."""
    index = torch.tensor([9], device="cuda")
    print(torch.zeros(4, device="cuda")[index].item())


def spin() -> None:
    """Use GPU memory and reduce until killed."""
    join()
    held = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
    ready()
    while True:
        dist.all_reduce(held[:1024])
        torch.cuda.synchronize()


def kernel() -> None:
    """Wait for a kernel that takes minutes."""
    # some 2e9 cycles a second
    torch.cuda._sleep(1 << 40)
    ready()
    torch.cuda.synchronize()


def collective() -> None:
    """Wait for the last rank, which does not take part."""
    join()
    dist.barrier()
    ready()
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(600)
    dist.barrier()


def join() -> None:
    """Initialize the process group, with a GPU for each rank."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)


def ready() -> None:
    """Print this process's number as JSON."""
    print(json.dumps({"pid": os.getpid(), "rank": int(os.environ["RANK"])}), flush=True)


if __name__ == "__main__":
    main()
