"""Trainings that hang as users have reported it: each with its source, and what must be named.

`test_hangs.py` runs them with 2 ranks a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    nodes: int = 2
    """Each runs two ranks, if nothing else is said."""
    launcher: str = "direct"
    prefix: str = PREFIX
    also_with_64: bool = False
    """Whether it also runs with 16 ranks on each of four nodes."""


def cells(reported: Reported, row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return what a recorded row shows: the training, the code, the ranks and the text."""
    name = f"[{reported.name.replace('-', ' ')}]({reported.source})"
    code = f"`{row['code']}`" if row["code"] is not None else ""
    ranks = ", ".join(map(str, row["ranks"]))
    said = "; ".join(filter(None, (row["said"], row["what"])))
    return name, code, ranks, said


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
        ("mismatch",),
        (3,),
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
        ("one-way",),
        (0, 1),
        """\
if rank < 2:
    dist.recv(gradient, src=1 - rank)
dist.all_reduce(gradient)
""",
    ),
    Reported(
        "final-evaluation-by-rank-0-alone",
        "https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/32",
        ("mismatch",),
        (0,),
        """\
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.BatchNorm1d(8))
model(torch.randn(4, 8)).sum().backward()
def evaluate():
    for batch in range(100):
        model(torch.randn(4, 8))
        dist.all_reduce(gradient)
if rank == 0:
    evaluate()
dist.barrier()
dist.destroy_process_group()
""",
        nodes=4,
    ),
    Reported(
        "gather-for-metrics-on-the-main-process",
        "https://github.com/huggingface/accelerate/issues/2785",
        ("mismatch",),
        (0,),
        """\
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
def log_metrics():
    losses = accelerator.gather_for_metrics(torch.ones(4))
    print("loss", losses.mean(), flush=True)
if accelerator.is_main_process:
    log_metrics()
accelerator.wait_for_everyone()
""",
        nodes=4,
    ),
    Reported(
        "no-metrics-on-some-ranks",
        "https://github.com/bo-ke/llm-internal-medicine/pull/45",
        ("mismatch",),
        (6, 7),
        """\
def gather(metrics):
    if not metrics:
        return []
    results = [None] * world
    dist.all_gather_object(results, metrics)
    return results
gather({"loss": 1.0} if rank < 6 else {})
for step in range(100):
    dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-metric-more-on-one-rank",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/19106",
        ("mismatch",),
        (3,),
        """\
metrics = {"loss": 1.0, "accuracy": 0.5}
if rank == 3:
    metrics["rare class"] = 0.1
for value in metrics.values():
    dist.all_reduce(torch.tensor(value))
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "experiment-tracker-is-not-reached",
        "https://github.com/s-JoL/Open-Llama/issues/47",
        ("not-entered",),
        (0,),
        """\
import socket
def start_tracking():
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).recv(1)
if rank == 0:
    start_tracking()
group = dist.new_group()
dist.all_reduce(gradient, group=group)
""",
        nodes=4,
    ),
    Reported(
        "worker-of-a-pool-was-killed",
        "https://github.com/huggingface/datasets/pull/5976",
        ("not-entered", "lock"),
        (0,),
        """\
import multiprocessing
def tokenize(text):
    if text == 3:
        os.kill(os.getpid(), 9)
    return text
def prepare():
    with multiprocessing.Pool(2) as pool:
        pool.map(tokenize, range(8), chunksize=1)
if rank == 0:
    prepare()
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "lock-of-an-extension-build-was-left",
        "https://github.com/pytorch/pytorch/issues/189245",
        ("lock",),
        (4, 5),
        """\
from torch.utils.file_baton import FileBaton
lock = f"/tmp/lock-{os.getpid()}"
def load_extension():
    if rank // 2 == 2:
        open(lock, "w").close()
    baton = FileBaton(lock)
    if not baton.try_acquire():
        baton.wait()
    else:
        baton.release()
load_extension()
dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "writer-of-events-has-failed",
        "https://github.com/tensorflow/tensorboard/issues/6167",
        ("lock",),
        (0,),
        """\
import queue
events = queue.Queue(10)
def write_events():
    events.get()
    raise OSError("No space left on device")
def add_scalar(value):
    events.put(value)
if rank == 0:
    threading.Thread(target=write_events, daemon=True).start()
for step in range(100):
    dist.all_reduce(gradient)
    if rank == 0:
        add_scalar(step)
""",
        nodes=4,
    ),
    Reported(
        "checkpoint-in-a-thread-with-the-same-group",
        "https://github.com/KempnerInstitute/KempnerForge/issues/104",
        ("mismatch",),
        (1,),
        """\
def save_in_background():
    shards = [torch.empty(64) for _ in range(world)]
    dist.all_gather(shards, torch.ones(64))
saving = threading.Thread(target=save_in_background)
if rank == 1:
    saving.start()
    time.sleep(2)
    dist.barrier()
else:
    time.sleep(1)
    dist.barrier()
    saving.start()
saving.join()
""",
        nodes=4,
    ),
    Reported(
        "upload-of-a-checkpoint-stalls",
        "https://github.com/marin-community/marin/issues/9209",
        ("not-entered",),
        (5,),
        """\
import subprocess
def upload():
    subprocess.run(["sleep", "600"], check=True)
if rank == 5:
    upload()
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "stages-of-a-pipeline-receive-from-each-other",
        "https://github.com/NVIDIA/nccl/issues/479",
        ("one-way",),
        (3, 4),
        """\
def exchange(peer):
    incoming = torch.empty(256)
    dist.recv(incoming, src=peer)
    dist.send(gradient, dst=peer)
exchange(rank + 1 if rank < world // 2 else rank - 1)
""",
        nodes=4,
    ),
)
