"""Trainings that hang as users have reported it: each with its source, and what must be named.

`test_hangs.py` runs them on 2 nodes with 2 ranks each.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = """\
import os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
gradient = torch.ones(256)
for step in range(3):
    dist.all_reduce(gradient)
print("up", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Reported:
    """A training that hangs, and the verdict that a user needs."""

    name: str
    source: str
    codes: tuple[str, ...]
    """One of these; none: gloo makes a rank fail instead."""
    ranks: tuple[int, ...]
    """Those that are named as the reason; none: it shows no rank. NCCL hangs where gloo fails."""
    program: str


REPORTED = (
    Reported(
        "barrier-in-one-branch",
        "https://github.com/pytorch/pytorch/issues/54059",
        ("mismatch",),
        (0,),
        """\
def validate():
    dist.barrier()
if rank == 0:
    validate()
for step in range(100):
    dist.all_reduce(gradient)
""",
    ),
    Reported(
        "broadcast-from-another-source",
        "https://pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast",
        ("network",),
        (),
        """\
weights = torch.zeros(1 << 20)
dist.broadcast(weights, src=3 if rank == 3 else 0)
dist.barrier()
dist.all_reduce(gradient)
dist.barrier()
""",
    ),
    Reported(
        "return-before-the-others",
        "https://github.com/pytorch/pytorch/issues/138322",
        (),
        (2,),
        """\
if rank == 2:
    sys.exit(0)
for step in range(100):
    dist.all_reduce(gradient)
""",
    ),
    Reported(
        "data-of-unequal-length",
        "https://github.com/pytorch/pytorch/issues/33148",
        ("mismatch",),
        (1,),
        """\
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
model = DistributedDataParallel(torch.nn.Linear(8, 8))
samples = torch.randn(24 if rank == 1 else 32, 8)
for batch in DataLoader(samples, batch_size=4):
    model(batch).sum().backward()
results = [None] * world
dist.all_gather_object(results, {"rank": rank})
""",
    ),
    Reported(
        "groups-in-different-order",
        "https://pytorch.org/docs/stable/distributed.html#groups",
        ("mismatch",),
        (0, 2),
        """\
first, second = dist.new_group(group_desc="data"), dist.new_group(group_desc="tensor")
order = (first, second) if rank % 2 == 0 else (second, first)
for group in order:
    dist.all_reduce(gradient, group=group)
""",
    ),
    Reported(
        "exception-before-all-gather-object",
        "https://github.com/huggingface/trl/pull/6862",
        ("mismatch",),
        (2,),
        """\
def evaluate():
    if rank == 2:
        raise ValueError("empty batch")
    results = [None] * world
    dist.all_gather_object(results, 1.0)
try:
    evaluate()
except ValueError as error:
    print("skipped:", error, flush=True)
dist.barrier()
""",
    ),
    Reported(
        "monitored-barrier",
        "https://github.com/pytorch/pytorch/pull/53773",
        ("not-entered",),
        (1,),
        """\
import datetime
def wait_for_index():
    while not os.path.exists("/tmp/index-that-nobody-writes"):
        time.sleep(1)
if rank == 1:
    wait_for_index()
dist.monitored_barrier(timeout=datetime.timedelta(minutes=20))
""",
    ),
    Reported(
        "checkpoint-on-rank-0-only",
        "https://github.com/deepspeedai/DeepSpeed/issues/2993",
        ("mismatch",),
        (0,),
        """\
def save_checkpoint():
    shards = [torch.empty(64) for _ in range(world)]
    dist.all_gather(shards, torch.ones(64))
    torch.save(shards, "/tmp/checkpoint.pt")
if rank == 0:
    save_checkpoint()
dist.barrier()
""",
    ),
    Reported(
        "storage-stalls-in-workers",
        "https://github.com/deepspeedai/DeepSpeed/pull/4536",
        ("dataloader", "filesystem"),
        (3,),
        """\
from torch.utils.data import DataLoader, Dataset
path = f"/tmp/samples-{os.getpid()}"
os.mkfifo(path)
class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 3 and index > 8:
            open(path).read()
        return torch.ones(4)
for batch in DataLoader(Samples(), batch_size=4, num_workers=2):
    dist.all_reduce(gradient)
""",
    ),
    Reported(
        "lock-held-while-a-worker-is-forked",
        "https://github.com/huggingface/tokenizers/issues/258",
        ("dataloader",),
        (1,),
        """\
from torch.utils.data import DataLoader, Dataset
mutex = threading.Lock()
class Texts(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 1:
            with mutex:
                return torch.ones(4)
        return torch.ones(4)
def encode_in_background():
    with mutex:
        time.sleep(600)
threading.Thread(target=encode_in_background, daemon=True).start()
time.sleep(0.5)
for batch in DataLoader(Texts(), batch_size=4, num_workers=1):
    dist.all_reduce(gradient)
""",
    ),
    Reported(
        "evaluation-on-rank-0",
        "https://github.com/pytorch/pytorch/issues/54059",
        ("not-entered", "busy"),
        (0,),
        """\
def evaluate():
    model = torch.nn.Linear(64, 64)
    while True:
        model(torch.randn(64, 64)).sum().backward()
if rank == 0:
    evaluate()
dist.barrier()
""",
    ),
    Reported(
        "gradient-of-another-type",
        "https://github.com/ray-project/ray/pull/64928",
        (),
        (),
        """\
big = torch.ones(1 << 20, dtype=torch.float64 if rank == 2 else torch.float32)
dist.all_reduce(big)
dist.all_reduce(gradient)
dist.barrier()
""",
    ),
    Reported(
        "receive-on-both-sides",
        "https://pytorch.org/docs/stable/distributed.html#torch.distributed.recv",
        ("not-entered", "mismatch"),
        (0, 1),
        """\
if rank < 2:
    dist.recv(gradient, src=1 - rank)
dist.all_reduce(gradient)
""",
    ),
)
