"""End, or block, as a training on GPUs may; the argument says how.

fail.py memory | ordinal | hidden | same-gpu | assertion | token | address | fork | devices |
        backend | architecture | spin | kernel | collective | timeout | error | killed
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.utils.cpp_extension import load_inline
from torch.utils.data import DataLoader, Dataset

DECLARED = "torch::Tensor call(torch::Tensor x);"
KERNEL = """
__global__ void set(float* x) { *x = 1; }
torch::Tensor call(torch::Tensor x) { set<<<1, 1>>>(x.data_ptr<float>()); return x; }
"""


def main() -> None:
    """Do what the last argument says; launchers may put their own in front."""
    {
        "memory": memory,
        "ordinal": ordinal,
        "hidden": hidden,
        "same-gpu": same_gpu,
        "assertion": assertion,
        "token": token,
        "address": address,
        "fork": fork,
        "devices": devices,
        "backend": backend,
        "architecture": architecture,
        "spin": spin,
        "kernel": kernel,
        "collective": collective,
        "timeout": timeout,
        "error": error,
        "killed": killed,
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


def token() -> None:
    """Look up a token that the vocabulary does not have."""
    embedding = nn.Embedding(10, 4).cuda()
    print(embedding(torch.tensor([[1, 50]], device="cuda")).sum().item())


@triton.jit  # type: ignore[untyped-decorator]
def store_at(target: Any, offset: int) -> None:
    """Write at a distance from an address: a kernel."""
    tl.store(target + offset, 1.0)


def address() -> None:
    """Write to an address that is not mapped."""
    store_at[(1,)](torch.ones(4, device="cuda"), 1 << 40)
    torch.cuda.synchronize()


class OnGpu(Dataset[torch.Tensor]):
    """A dataset that makes its samples on the GPU."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2, device="cuda")


def fork() -> None:
    """Use the GPU in the workers of a data loader, which are forked."""
    torch.zeros(1, device="cuda")
    next(iter(DataLoader(OnGpu(), num_workers=1)))


def devices() -> None:
    """Give a model on the GPU a sample on the CPU."""
    nn.Linear(4, 4).cuda()(torch.ones(1, 4))


def backend() -> None:
    """Reduce a tensor on the CPU with NCCL."""
    join()
    dist.all_reduce(torch.ones(4))


def architecture() -> None:
    """Call a kernel that was built for GPUs before these."""
    os.environ["TORCH_CUDA_ARCH_LIST"] = "7.5"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(Path("extensions").absolute())
    extension = load_inline("old", cpp_sources=DECLARED, cuda_sources=KERNEL, functions=["call"])
    extension.call(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()


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


def timeout() -> None:
    """Wait longer for the last rank than the process group does."""
    value = reduced(seconds=5)
    if is_last():
        time.sleep(600)
    dist.all_reduce(value)
    torch.cuda.synchronize()


def error() -> None:
    """Fail on the last rank, while the others wait for it."""
    value = reduced()
    if is_last():
        raise ValueError("sample 7 has no label")
    dist.all_reduce(value)
    torch.cuda.synchronize()


def killed() -> None:
    """Be killed on the last rank, while the others wait for it."""
    value = reduced()
    if is_last():
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(value)
    torch.cuda.synchronize()


def reduced(seconds: float = 600) -> torch.Tensor:
    """Join the others and reduce; return the tensor."""
    join(seconds)
    value = torch.ones(1024, device="cuda")
    dist.all_reduce(value)
    torch.cuda.synchronize()
    return value


def is_last() -> bool:
    """Return whether this is the last rank."""
    return dist.get_rank() == dist.get_world_size() - 1


def join(seconds: float = 600) -> None:
    """Initialize the process group, with a GPU for each rank. `seconds`: its timeout."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=seconds))


def ready() -> None:
    """Print this process's number as JSON."""
    print(json.dumps({"pid": os.getpid(), "rank": int(os.environ["RANK"])}), flush=True)


if __name__ == "__main__":
    main()
