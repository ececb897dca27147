"""Further trainings that hang as users have reported it, with 8 ranks, launchers and frameworks.

`test_hangs.py` runs them. They were written before the rules were looked at again. The line at
which the rank must be shown to be ends in MARK. RECORDED has what the runs have recorded, of which
the section of docs/reference/hangs.md is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dslaunch.run.hang_verdict import HangVerdict
from dslaunch.run.outcome_text import message
from dslaunch.run.reasons import EndCode, EndReason
from tests.testbed.reported_hangs import Reported, cells

MARK = "#!"
RECORDED = Path(__file__).with_name("further_hangs.jsonl")
SLOTS, MANY_SLOTS = 2, 16
"""Ranks of each of four nodes."""

DDP = """\
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train_step():
    loss = model(torch.randn(4, 8)).sum()
    loss.backward()
    optimizer.step()
    return loss
train_step()
"""
TRAINER = """\
import os, sys, torch, torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments
rank = int(os.environ["RANK"])
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        out = self.layer(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}
samples = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(256)]
arguments = TrainingArguments("/tmp/out", use_cpu=True, ddp_backend="gloo", max_steps=6,
    per_device_train_batch_size=2, report_to=[], save_strategy="no", logging_strategy="no",
    disable_tqdm=True, dataloader_pin_memory=False)
"""
LIGHTNING = """\
import os, torch, lightning as L
from torch.utils.data import DataLoader
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch).sum()
        self.step_done(index, loss)
        return loss
    def step_done(self, index, loss):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
def fit(model, **more):
    trainer = L.Trainer(accelerator="cpu", devices=2, num_nodes=4, strategy="ddp", max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **more)
    trainer.fit(model, DataLoader(torch.randn(256, 4), batch_size=4))
"""

FURTHER = (
    Reported(
        "metrics-in-the-order-of-a-set",
        "https://github.com/NVIDIA/nvalchemi-toolkit/pull/143",
        ("mismatch",),
        (2, 5),
        """\
def reduce(name):
    if name == "energy":
        dist.all_reduce(torch.ones(1))
    else:
        dist.all_to_all_single(torch.empty(world), torch.ones(world))
outputs = {"energy": 1, "forces": 2}
if rank in (2, 5):  # whose hashes of strings give a set another order
    outputs = {"forces": 2, "energy": 1}
for name in outputs:
    reduce(name)
dist.barrier()
""".replace("torch.ones(world))", "torch.ones(world))  #!"),
        nodes=4,
    ),
    Reported(
        "a-batch-without-labels-is-skipped",
        "https://github.com/pytorch/pytorch/issues/23425",
        ("mismatch",),
        (6,),
        DDP
        + """\
for step in range(8):
    if rank == 6 and step == 3:
        continue
    train_step()
dist.barrier()  #!
""",
        nodes=4,
        launcher="torchrun",
    ),
    Reported(
        "no-sync-on-one-rank",
        "https://github.com/pytorch/pytorch/issues/44425",
        ("mismatch",),
        (2,),
        DDP
        + """\
def train(microbatches):
    for index in range(microbatches):
        last = index == 3
        if last:
            train_step()
        else:
            with model.no_sync():
                train_step()
train(microbatches=3 if rank == 2 else 4)
losses = [torch.empty(1) for _ in range(world)]
dist.all_gather(losses, torch.ones(1))  #!
""",
        nodes=4,
    ),
    Reported(
        "early-stopping-by-the-loss-of-a-rank",
        "https://github.com/huggingface/transformers/issues/17478",
        ("mismatch",),
        (4,),
        DDP
        + """\
def validate(epoch):
    return 2.0 if rank == 4 and epoch > 1 else 1.0 / (epoch + 1)
best = 10.0
for epoch in range(20):
    train_step()
    loss = validate(epoch)
    if loss > best:
        print("early stopping", flush=True)
        break
    best = loss
dist.barrier()  #!
""",
        nodes=4,
        also_with_64=True,
        launcher="torchrun",
    ),
    Reported(
        "a-tracker-uploads-at-exit",
        "https://github.com/wandb/wandb/issues/5601",
        ("exiting", "not-entered"),
        (7,),
        """\
import atexit, socket
def finish():
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).recv(1)  #!
if rank == 7:
    atexit.register(finish)
for step in range(20):
    if rank == 7 and step == 10:
        break
    dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-worker-inherits-the-lock-of-a-log",
        "https://github.com/awslabs/graphrag-toolkit/issues/418",
        ("dataloader",),
        (5,),
        """\
import logging
from torch.utils.data import DataLoader, Dataset
class Log:
    lock = threading.Lock()
    def write(self, text):
        with self.lock:
            pass
    flush = write
logger = logging.getLogger("data")
logger.addHandler(logging.StreamHandler(Log()))
logger.propagate = False
class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        logger.warning("decode %d", index)
        return torch.ones(4)
if rank == 5:
    Log.lock.acquire()  # as by a thread that writes while the workers are forked
for batch in DataLoader(Samples(), batch_size=4, num_workers=2):  #!
    dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-pool-is-forked-while-a-lock-is-held",
        "https://github.com/awslabs/graphrag-toolkit/pull/419",
        ("lock", "not-entered"),
        (3,),
        """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
cache = threading.Lock()
def tokenize(text):
    with cache:
        return len(text)
def prepare():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return [each.result() for each in [pool.submit(tokenize, "text") for _ in range(4)]]  #!
if rank == 3:
    cache.acquire()
    prepare()
dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "native-code-keeps-the-interpreter-lock",
        "https://github.com/dask/distributed/pull/3926",
        ("not-entered", "lock"),
        (1,),
        """\
import ctypes
def decode():
    ctypes.PyDLL(None).usleep(900_000_000)  #!
if rank == 1:
    decode()
dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-checkpoint-is-written-to-storage-that-stalls",
        "https://github.com/openzfs/zfs/issues/16480",
        ("filesystem",),
        (0,),
        DDP
        + """\
def save_checkpoint(path):
    torch.save(model.state_dict(), path)  #!
if rank == 0:
    os.mkfifo("/tmp/checkpoint.pt")
    save_checkpoint("/tmp/checkpoint.pt")
dist.barrier()
""",
        nodes=4,
        also_with_64=True,
    ),
    Reported(
        "a-worker-of-the-loader-is-stopped",
        "https://github.com/pytorch/pytorch/issues/1355",
        ("dataloader",),
        (2,),
        """\
import signal
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if rank == 2 and index == 20:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.ones(4)
def batches():
    yield from DataLoader(Samples(), batch_size=4, num_workers=1)  #!
for batch in batches():
    dist.all_reduce(gradient)
""",
        nodes=4,
        launcher="torchrun",
    ),
    Reported(
        "the-producer-of-a-queue-was-killed",
        "https://github.com/RolnickLab/ami-data-companion/issues/140",
        ("dataloader", "not-entered", "lock"),
        (6,),
        """\
import multiprocessing, signal
context = multiprocessing.get_context("fork")
batches = context.Queue(2)
def produce():
    for index in range(64):
        if rank == 6 and index == 5:
            os.kill(os.getpid(), signal.SIGKILL)  # as the out-of-memory killer does
        batches.put(torch.ones(4).numpy())
context.Process(target=produce, daemon=True).start()
def next_batch():
    return batches.get()  #!
for step in range(64):
    next_batch()
    dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-zombie-is-taken-for-a-process",
        "https://github.com/pytorch/pytorch/issues/39570",
        ("not-entered",),
        (1,),
        """\
import subprocess
def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
def stop_tracker(process):
    process.terminate()
    while alive(process.pid):
        time.sleep(0.5)  #!
if rank == 1:
    tracker = subprocess.Popen(["sleep", "900"])
    stop_tracker(tracker)
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "the-pipe-of-a-child-is-not-read",
        "https://github.com/dgrauet/ltx-2-mlx/issues/92",
        ("not-entered",),
        (4,),
        """\
import subprocess
def encode_video():
    noise = [sys.executable, "-c", "import sys; sys.stderr.write('frame dropped ' * 100_000)"]
    process = subprocess.Popen(noise, stderr=subprocess.PIPE)
    process.wait()  #!
if rank == 4:
    encode_video()
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "a-download-by-the-main-process-stalls",
        "https://github.com/PaddlePaddle/GraphNet/pull/718",
        ("not-entered",),
        (0,),
        """\
import socket, urllib.request
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
server = socket.create_server(("127.0.0.1", 0))
def download(name):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/{name}") as file:  #!
        return file.read()
with accelerator.main_process_first():
    download("config.json")
accelerator.wait_for_everyone()
""",
        nodes=4,
        launcher="accelerate",
    ),
    Reported(
        "a-key-that-rank-0-did-not-set",
        "https://github.com/pytorch/pytorch/issues/129367",
        ("mismatch",),
        (0,),
        """\
store = dist.distributed_c10d._get_default_store()
def publish_run_id():
    raise OSError("tracker is not configured")
if rank == 0:
    try:
        publish_run_id()
    except OSError as error:
        print("ignored:", error, flush=True)
else:
    store.get("run-id")
dist.barrier()  #!
""",
        nodes=4,
    ),
    Reported(
        "a-key-with-another-name",
        "https://github.com/pytorch/pytorch/issues/53840",
        ("not-entered",),
        (3,),
        """\
store = dist.distributed_c10d._get_default_store()
store.set(f"ready/{rank}", "1")
def wait_for_neighbor():
    store.wait([f"ready/{rank + 1}" if rank != 3 else "Ready/4"])  #!
if rank < world - 1:
    wait_for_neighbor()
dist.all_reduce(gradient)
""",
        nodes=4,
        launcher="torchrun",
    ),
    Reported(
        "a-group-is-made-by-some-ranks",
        "https://github.com/modelscope/DiffSynth-Engine/pull/265",
        ("mismatch",),
        (6, 7),
        """\
def expert_group():
    return dist.new_group()  #!
if rank >= 6:
    group = expert_group()
for step in range(10):
    dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "a-stage-does-not-receive",
        "https://github.com/pytorch/pytorch/issues/108378",
        ("mismatch", "one-way"),
        (2,),
        """\
activation = torch.ones(1 << 22)
def send_forward():
    dist.send(activation, dst=rank + 1)  #!
if rank == 2:
    send_forward()
if rank == 3 and os.environ.get("RECOMPUTE"):
    dist.recv(activation, src=2)
dist.all_reduce(gradient)
""",
        nodes=4,
    ),
    Reported(
        "an-asynchronous-gather-on-one-rank",
        "https://github.com/meta-pytorch/torchrec/pull/4149",
        ("mismatch",),
        (1,),
        """\
def prefetch():
    parts = [torch.empty(256) for _ in range(world)]
    return dist.all_gather(parts, gradient, async_op=True)  #!
if rank == 1:
    prefetching = prefetch()
for step in range(5):
    dist.all_reduce(gradient)  #!
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "join-with-another-collective",
        "https://github.com/pytorch/pytorch/issues/38174",
        ("mismatch",),
        (0,),
        DDP
        + """\
losses = [torch.empty(1) for _ in range(world)]
with model.join():
    for step in range(4 if rank == 0 else 6):
        train_step()
        dist.all_gather(losses, torch.ones(1))
dist.barrier()  #!
""".replace("with model.join():", "with model.join():  #!"),
        nodes=4,
    ),
    Reported(
        "lists-of-different-lengths",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/7507",
        (),
        (),
        """\
def share(settings):
    dist.broadcast_object_list(settings, src=0)
share([None, None] if rank == 3 else [{"seed": 1}])
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "two-locks-in-another-order",
        "https://github.com/earth-mover/icechunk/pull/563",
        ("lock",),
        (7,),
        """\
index, cache = threading.Lock(), threading.Lock()
def flush_in_background():
    with cache:
        time.sleep(1)
        with index:
            pass
def lookup():
    with index:
        time.sleep(1)
        with cache:  #!
            return 1
if rank == 7:
    threading.Thread(target=flush_in_background, daemon=True).start()
    lookup()
dist.all_reduce(gradient)
""",
        nodes=4,
        launcher="torchrun",
    ),
    Reported(
        "the-thread-that-prefetches-has-died",
        "https://github.com/meta-pytorch/data/issues/1169",
        ("lock", "dataloader"),
        (3,),
        """\
import queue
ready = queue.Queue(2)
def prefetch():
    for index in range(64):
        if rank == 3 and index == 7:
            raise MemoryError("cannot pin memory")
        ready.put(torch.ones(4))
threading.Thread(target=prefetch, daemon=True).start()
for step in range(64):
    batch = ready.get()  #!
    dist.all_reduce(gradient)
""",
        nodes=4,
        launcher="deepspeed",
    ),
    Reported(
        "a-thread-computes-and-is-waited-for",
        "https://github.com/huggingface/datasets/issues/6319",
        ("busy",),
        (0,),
        """\
def evaluate():
    total = 0
    while True:
        total += 1  #!
worker = threading.Thread(target=evaluate, daemon=True)
if rank == 0:
    worker.start()
    worker.join()  #!
dist.barrier()
""",
        nodes=4,
        also_with_64=True,
    ),
    Reported(
        "an-index-on-the-disk-of-rank-0",
        "https://github.com/NVIDIA/Megatron-LM/issues/907",
        ("not-entered",),
        (2, 3, 4, 5, 6, 7),
        """\
path = "/tmp/index-cache.npy"
if rank == 0:
    open(path, "w").close()
def wait_for_index():
    while not os.path.exists(path):
        time.sleep(1)  #!
wait_for_index()
dist.barrier()
""",
        nodes=4,
    ),
    Reported(
        "a-regular-expression-that-backtracks",
        "https://github.com/nltk/nltk/issues/2866",
        ("busy",),
        (2,),
        """\
import re
def tokenize(text):
    return re.match(r"(a+)+$", text)  #!
tokenize("a" * 20)
if rank == 2:
    tokenize("a" * 60 + "!")
dist.all_reduce(gradient)
""",
        nodes=4,
        launcher="accelerate",
    ),
    Reported(
        "a-barrier-inside-a-lock",
        "https://github.com/huggingface/datasets/issues/1672",
        ("lock",),
        (1, 3, 5, 7),
        """\
import fcntl
def build_cache():
    with open("/tmp/cache.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  #!
        dist.barrier()
time.sleep(rank % 2)
build_cache()
""",
        nodes=4,
    ),
    Reported(
        "a-rank-prepares-data-before-it-joins",
        "https://github.com/alibaba/graphlearn-for-pytorch/pull/102",
        ("not-entered", "rendezvous"),
        (5,),
        """\
import os, time, torch, torch.distributed as dist
def load_partition():
    time.sleep(900)  #!
if os.environ["RANK"] == "5":
    load_partition()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
""",
        nodes=4,
        launcher="torchrun",
        prefix="",
    ),
    Reported(
        "a-rank-is-stopped-in-its-step",
        "https://github.com/pytorch/pytorch/issues/49733",
        ("stopped",),
        (6,),
        DDP
        + """\
import signal
for step in range(100):
    train_step()
    if rank == 6 and step == 20:
        os.kill(os.getpid(), signal.SIGSTOP)
""",
        nodes=4,
        launcher="deepspeed",
    ),
    Reported(
        "evaluation-by-the-main-process",
        "https://github.com/huggingface/transformers/issues/31532",
        ("mismatch", "not-entered"),
        (0,),
        TRAINER
        + """\
trainer = Trainer(Model(), arguments, train_dataset=samples, eval_dataset=samples[:64])
trainer.train()
if trainer.is_world_process_zero():
    print(trainer.evaluate())  #!
dist.barrier()
""",
        nodes=4,
        launcher="torchrun",
        prefix="",
    ),
    Reported(
        "a-callback-stops-one-rank",
        "https://github.com/huggingface/transformers/pull/8581",
        ("mismatch",),
        (3,),
        TRAINER
        + """\
class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = rank == 3 and state.global_step == 2
trainer = Trainer(Model(), arguments, train_dataset=samples, callbacks=[Stop()])
trainer.train()  #!
""",
        nodes=4,
        launcher="accelerate",
        prefix="",
    ),
    Reported(
        "a-metric-is-logged-by-rank-0",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/16417",
        ("mismatch",),
        (0,),
        LIGHTNING
        + """\
class Logs(Model):
    def step_done(self, index, loss):
        if index == 3 and self.trainer.is_global_zero:
            self.log("loss", loss, sync_dist=True)  #!
fit(Logs())
""",
        nodes=4,
        launcher="torchrun",
        prefix="",
    ),
    Reported(
        "lightning-saves-on-rank-0",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/19604",
        ("mismatch",),
        (0,),
        LIGHTNING
        + """\
class Saves(Model):
    def step_done(self, index, loss):
        if index == 3 and self.global_rank == 0:
            self.trainer.save_checkpoint("/tmp/model.ckpt")  #!
fit(Saves())
""",
        nodes=4,
        prefix="",
    ),
    Reported(
        "the-full-state-on-rank-0",
        "https://github.com/pytorch/pytorch/issues/143536",
        ("mismatch", "not-entered"),
        (0,),
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
mesh = init_device_mesh("cpu", (world,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model(torch.randn(2, 64)).sum().backward()
def save():
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)  #!
if rank == 0:
    torch.save(save(), "/tmp/model.pt")
dist.barrier()
""",
        nodes=4,
        launcher="torchrun",
    ),
    Reported(
        "a-message-in-the-order-of-ranks",
        "https://github.com/huggingface/accelerate/issues/3939",
        ("mismatch",),
        (0,),
        """\
import logging
from accelerate import Accelerator
from accelerate.logging import get_logger
accelerator = Accelerator(cpu=True)
logger = get_logger("train")
logger.logger.setLevel(logging.INFO)
if accelerator.is_main_process:
    logger.info("begin", in_order=True, main_process_only=False)  #!
accelerator.gather(torch.ones(2))
""",
        nodes=4,
        launcher="accelerate",
    ),
    Reported(
        "a-breakpoint-was-left-in",
        "https://github.com/robometer/robometer/pull/19",
        (),
        (),
        """\
if rank == 0:
    breakpoint()
dist.all_reduce(gradient)
""",
        nodes=4,
    ),
)


# ------------------------------------------------------------ the section of the page

FIRST_RIGHT, FIRST = 31, 33
"""Of FURTHER, those that hung in their first run, and those of them with the right ranks, code and
line: before any rule was changed for them."""
HEAD = """
## With launchers and frameworks

Further trainings made from public reports, with two ranks on each of four nodes: with each
launcher, and with plain PyTorch, DistributedDataParallel, FSDP, Hugging Face's Trainer and
Accelerate, and Lightning. The line at which the rank is said to be is compared too. In
their first run, before any rule was changed for them, {right} of {count} were right. Rows with
"64" are of 16 ranks on each node.

| training | launcher | code | ranks | dslaunch |
|---|---|---|---|---|
"""


def recorded() -> list[dict[str, Any]]:
    """Return the rows of the runs."""
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of the page; the last row of a training counts."""
    found = {(row["reported"], row["slots"]): row for row in rows}
    shown = [
        _row(each, found[each.name, slots])
        for each in FURTHER
        for slots in (SLOTS, MANY_SLOTS)
        if (each.name, slots) in found
    ]
    return "".join((HEAD.format(right=FIRST_RIGHT, count=FIRST), *shown))


def _row(reported: Reported, row: Mapping[str, Any]) -> str:
    name, *rest = cells(reported, {**row, "said": _said(row)})
    ranks = "" if row["slots"] == SLOTS else ", 64"
    return f"| {' | '.join((name + ranks, f'`{reported.launcher}`', *rest))} |\n"


def _said(row: Mapping[str, Any]) -> str:
    """Return the text of a recorded verdict, in the words of today."""
    if not row["hang"]:
        return str(row["said"])
    verdict = msgspec.convert(row["hang"], HangVerdict)
    return message(EndReason(EndCode.HANG, seconds=row["seconds"], hang=verdict))
