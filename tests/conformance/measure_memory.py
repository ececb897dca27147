"""A rank that trains with DeepSpeed and prints what it took, as JSON.

    measure_memory.py CONFIGS.json HIDDEN LAYERS

The file is a list of configs, and so is the answer. Peaks are of memory that PyTorch allocated on
the GPU, on the CPU of resident memory, over what the process had after it trained a tiny model in
the same way, so that libraries and the process group do not count.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

SENT: Counter[str] = Counter()
"""Bytes of the tensors that were given to each collective."""


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def on_gpu() -> bool:
    return bool(get_accelerator().device_name() == "cuda")


def used() -> int:
    """Bytes in use now."""
    return torch.cuda.memory_allocated() if on_gpu() else status("VmRSS")


def most_used() -> int:
    """Bytes in use at most since `forget_most_used`."""
    return torch.cuda.max_memory_allocated() if on_gpu() else status("VmHWM")


def forget_most_used() -> None:
    if on_gpu():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


COLLECTIVES = {
    "all_reduce": (0, "tensor"),
    "reduce": (0, "tensor"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "reduce_scatter_tensor": (1, "input"),
}
"""Where each has its larger tensor."""


def count(name: str) -> None:
    real = getattr(dist, name)
    place, word = COLLECTIVES[name]

    def counted(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs[word]
        SENT[name] += given.numel() * given.element_size()
        return real(*args, **kwargs)

    setattr(dist, name, counted)


class Net(torch.nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        made = (torch.nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.layers = torch.nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().pow(2).mean()


def train(config: dict[str, Any], hidden: int, layers: int, steps: int) -> dict[str, Any]:
    stage = config["zero_optimization"]["stage"]
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = Net(hidden, layers)
    total = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    x = torch.ones(1, hidden, dtype=torch.bfloat16, device=engine.device)
    for step in range(steps):
        if step:  # the first step is the one in which Adam's states are made
            forget_most_used()
            SENT.clear()
        engine.backward(engine(x))
        engine.step()
    result = {"params": total, "peak": most_used(), "sent": dict(SENT)}
    engine.destroy()
    return result


def measured(config: dict[str, Any], hidden: int, layers: int) -> dict[str, Any]:
    train(config, 64, layers, 2)
    gc.collect()
    base = used()
    result = train(config, hidden, layers, 2)
    gc.collect()
    return {**result, "peak": result["peak"] - base}


def main() -> None:
    hidden, layers = map(int, sys.argv[2:])
    for name in COLLECTIVES:
        count(name)
    # it would compile an all-reduce for one machine first, which takes a minute
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if on_gpu() else "gloo")
    configs = json.loads(Path(sys.argv[1]).read_text())
    results = [measured(config, hidden, layers) for config in configs]
    if dist.get_rank() == 0:
        print("MEASURED " + json.dumps(results), flush=True)
    dist.barrier()


main()
