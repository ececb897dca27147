"""`dslaunch checkpoint` and resuming, with the real DeepSpeed on nodes that share no storage.

Each rank is a process that imports DeepSpeed. One training that continues without a lost node
belongs to `make test`; other stages of ZeRO, three nodes, and losses during a training are long.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.testbed.project import Project, wait_for
from tests.testbed.scheduler import EXAMPLES
from tests.testbed.vcluster.api import Text

pytestmark = [pytest.mark.torch, pytest.mark.deepspeed]
TRAIN = ("train.py", "--deepspeed_config", "ds.json", "--steps", "40", "--save_every", "6")
PATIENCE = 240
"""Seconds for one command, most of them for importing torch."""
NO_COMPILER = """\
import torch
torch.compile = lambda function=None, **_: function or (lambda decorated: decorated)
"""
"""DeepSpeed decorates functions of an optimizer that is not used here with `torch.compile`, which
loads torch's compiler: half of the processor time of a short training."""


@pytest.fixture
def training(project: Project) -> Iterator[Project]:
    """A project with the DeepSpeed example."""
    example = (EXAMPLES / "train_deepspeed.py").read_text()
    project.write(
        "train.py", example.replace("import deepspeed\n", f"{NO_COMPILER}import deepspeed\n")
    )
    yield project
    project.cluster.heal()
    project.cluster.run("control", ["rm", "-rf", project.path])


def describe(project: Project, nodes: int) -> str:
    """Write a cluster file of so many nodes, and node4 as a spare; return what includes the spare
    instead of node2."""
    project.describe(
        f"nodes: [{{host: 'node[1-{nodes}]', slots: 1}}, {{host: node4, slots: 1, spare: true}}]"
    )
    kept = [f"node{number}" for number in range(1, nodes + 1) if number != 2]
    return "@".join([*kept, "node4"])


def configure(project: Project, stage: int, **more: object) -> None:
    """Its DeepSpeed config."""
    config = json.loads((EXAMPLES / "ds_config.json").read_text())
    project.write("ds.json", json.dumps(config | {"zero_optimization": {"stage": stage}} | more))


def checkpoint(project: Project, *words: str) -> Text:
    """`dslaunch checkpoint` with these words, which must succeed."""
    command = project.command("checkpoint", *words)
    done = project.cluster.run("control", command, cwd=project.path, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done


def weights(project: Project, directory: str, *tag: str) -> dict[str, object]:
    """What DeepSpeed's converter makes of a directory of the nodes, by dslaunch's commands."""
    which = [word for name in tag for word in ("--tag", name)]
    import io

    import torch

    checkpoint(project, "gather", "c.yaml", directory, "--to", f"all-{directory}", *which)
    checkpoint(project, "consolidate", f"all-{directory}", "--to", f"fp32-{directory}")
    path = f"{project.path}/fp32-{directory}/pytorch_model.bin"
    command = project.cluster.command("control", ["cat", path])
    data = subprocess.run(command, capture_output=True, check=True).stdout
    return torch.load(io.BytesIO(data), weights_only=True)


def assert_resumes_as(project: Project, one: dict[str, object], nodes: int, replaced: str) -> None:
    """A training whose node2 is lost, and whose step 6 is in `safe`, continues on the spare, and
    ends with the same weights as the undisturbed `one`."""
    import torch

    again = (*TRAIN, "--save", "ck", "--resume")
    chosen = ("-i", replaced)
    refused = project.run(*chosen, "c.yaml", *again, timeout=PATIENCE)
    assert refused.returncode == 3, refused.stderr
    assert project.reason("problem") == ("shards-missing-on-nodes",)
    assert "node4" in refused.stderr
    checkpoint(project, "spread", "c.yaml", "ck", "--from", "safe", *chosen)
    resumed = project.run(*chosen, "c.yaml", *again, timeout=PATIENCE)
    assert resumed.returncode == 0, resumed.stderr
    assert len(re.findall(r"rank \d resumes ck/step6/\S+ at step 6", resumed.stdout)) == nodes
    project.cluster.heal()
    other = weights(project, "ck")
    assert one.keys() == other.keys()
    assert one
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.longest
def test_a_node_and_its_disk_lost_after_a_training_are_replaced(training: Project) -> None:
    replaced = describe(training, nodes=2)
    configure(training, stage=2)
    with training.start("c.yaml", *TRAIN, "--save", "ck") as running:
        wait_for(running, "saved ck/step6", times=1)
        checkpoint(training, "gather", "c.yaml", "ck", "--tag", "step6", "--to", "safe")
        out, err = running.communicate(timeout=PATIENCE)
        assert running.popen.returncode == 0, err
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < losses[0]
    assert "built successfully" not in out + err, "DeepSpeed compiled an operator"
    one = weights(training, "ck")
    training.cluster.crash("node2")
    assert_resumes_as(training, one, 2, replaced)


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_training_that_lost_a_node_and_its_disk_ends_as_if_nothing_had_happened(
    training: Project, stage: int
) -> None:
    replaced = describe(training, nodes=3)
    configure(training, stage)
    calm = training.run("c.yaml", *TRAIN, "--save", "calm", timeout=PATIENCE)
    assert calm.returncode == 0, calm.stderr
    one = weights(training, "calm")
    impatient = ("--reconnect-timeout", "2", "--grace", "1")
    slow = ("--save", "ck", "--pause", "0.3")
    with training.start(*impatient, "c.yaml", *TRAIN, *slow) as running:
        wait_for(running, "saved ck/step6", times=1)
        checkpoint(training, "gather", "c.yaml", "ck", "--tag", "step6", "--to", "safe")
        training.cluster.crash("node2")
        _, err = running.communicate(timeout=PATIENCE)
        # which of the two is noticed first: that the node is gone, or what its peers die of
        assert running.popen.returncode in (1, 5), err
    assert_resumes_as(training, one, 3, replaced)


# ---------------------------------------------------------------- Hugging Face's Trainer

TRAINER = """\
import os, sys, time
import deepspeed, torch
import torch.distributed.nn  # first: imported later, it keeps the process group alive at the end
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.set_num_threads(1)
from transformers import (GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer,
                          TrainerCallback, TrainingArguments)

class Slow(TrainerCallback):
    def on_save(self, args, state, control, **_):
        print("saved", state.global_step, flush=True)
    def on_step_end(self, args, state, control, **_):
        time.sleep(float(os.environ.get("PAUSE", "0")) * (state.global_step > args.save_steps))

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": [(i * k) % 32 for k in range(8)]} for i in range(96)]
data = [{**row, "labels": row["input_ids"]} for row in data]
trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[Slow()])
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
print("trained", trainer.state.global_step, flush=True)
torch.distributed.destroy_process_group()
"""
TRAINER_CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
TRAINER_ARGS = (
    *("trainer.py", "--deepspeed", "ds.json", "--use_cpu", "--max_steps", "8"),
    *("--save_steps", "4", "--per_device_train_batch_size", "2", "--save_on_each_node", "True"),
    *("--report_to", "none", "--optim", "adamw_torch", "--disable_tqdm", "True"),
)


def trained(project: Project, directory: str) -> dict[str, object]:
    """The weights that the Trainer itself saved on the first node."""
    from safetensors.torch import load

    path = f"/root/work/{directory}/model.safetensors"
    command = project.cluster.command("node1", ["cat", path])
    return dict(load(subprocess.run(command, capture_output=True, check=True).stdout))


@pytest.mark.long
@pytest.mark.parametrize("stage", [2, 3])
def test_the_trainer_resumes_on_a_spare_what_was_gathered_before(
    training: Project, stage: int
) -> None:
    import torch

    pytest.importorskip("transformers")
    replaced = describe(training, nodes=3)
    training.write("trainer.py", TRAINER)
    # else the Trainer writes no weights with stage 3, and says so
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    training.write("ds.json", json.dumps({**TRAINER_CONFIG, "zero_optimization": zero}))
    calm = training.run("c.yaml", *TRAINER_ARGS, "--output_dir", "calm", timeout=PATIENCE)
    assert calm.returncode == 0, calm.stderr
    one = trained(training, "calm/checkpoint-8")
    ours = ("--reconnect-timeout", "2", "--grace", "1", "--env", "PAUSE=4", "c.yaml")
    with training.start(*ours, *TRAINER_ARGS, "--output_dir", "out") as running:
        wait_for(running, "saved 4", times=3)
        checkpoint(training, "gather", "c.yaml", "out", "--tag", "checkpoint-4", "--to", "safe")
        training.cluster.crash("node2")
        _, err = running.communicate(timeout=PATIENCE)
        assert running.popen.returncode in (1, 5), err
    checkpoint(training, "spread", "c.yaml", "out", "--from", "safe", "-i", replaced)
    again = ("--output_dir", "out", "--resume_from_checkpoint", "out/checkpoint-4")
    resumed = training.run("-i", replaced, "c.yaml", *TRAINER_ARGS, *again, timeout=PATIENCE)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("trained 8") == 3
    assert "saved 4" not in resumed.stdout
    training.cluster.heal()
    other = weights(training, "out", "checkpoint-8")
    assert one
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------- what DeepSpeed alone does

ALONE = """\
import sys
from datetime import timedelta
import deepspeed, torch, torch.distributed as dist
import torch.distributed.nn
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
torch.set_num_threads(1)
deepspeed.init_distributed(timeout=timedelta(seconds=12))
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
config = {"train_batch_size": 2, "zero_optimization": {"stage": int(sys.argv[2])},
          "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
          "checkpoint": {"use_node_local_storage": True}}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
if sys.argv[1] == "resume":
    loaded, _ = engine.load_checkpoint("alone")
    print("rank", dist.get_rank(), "loaded", loaded, flush=True)
for _ in range(3):
    engine.backward(engine(torch.ones(1, 16)).square().mean())
    engine.step()
if sys.argv[1] == "save":
    engine.save_checkpoint("alone")
print("ended well", flush=True)
dist.destroy_process_group()
"""


def by_hand(project: Project, *words: str) -> tuple[str, list[int]]:
    """What two nodes print that torchrun starts, as the guides say, one by one; and their codes."""
    python = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    running = []
    for number, node in enumerate(("node1", "node2")):
        where = ["--node_rank", str(number), "--master_addr", "node1", "--master_port", "29477"]
        command = [*python, *where, "--nproc_per_node", "1", "/tmp/alone.py", *words]
        running.append(project.cluster.popen(node, command, cwd="/tmp"))
    text, codes = "", []
    for one in running:
        with one:
            out, err = one.communicate(timeout=PATIENCE)
            text += out + err
            codes.append(one.popen.returncode)
    return text, codes


@pytest.fixture
def alone(project: Project) -> Iterator[Project]:
    """Two nodes with that script, and no dslaunch."""
    project.cluster.put("node[1-2]", "/tmp/alone.py", ALONE)
    yield project
    for node in ("node1", "node2"):
        project.cluster.run(node, ["rm", "-rf", "/tmp/alone", "/tmp/alone.py"], user="root")


@pytest.mark.long
def test_plain_deepspeed_silently_continues_with_a_mixture_of_two_trainings(
    alone: Project,
) -> None:
    saved, codes = by_hand(alone, "save", "2")
    assert (saved.count("ended well"), codes) == (2, [0, 0])
    said, codes = by_hand(alone, "resume", "2")
    assert "rank 0 loaded alone/global_step3/mp_rank_00_model_states.pt" in said
    assert "rank 1 loaded None" in said
    assert (said.count("ended well"), codes) == (2, [0, 0])


@pytest.mark.long
def test_deepspeed_alone_waits_to_the_time_limit_where_stage_3_finds_no_latest(
    alone: Project,
) -> None:
    saved, codes = by_hand(alone, "save", "3")
    assert (saved.count("ended well"), codes) == (2, [0, 0])
    said, codes = by_hand(alone, "resume", "3")
    assert "rank 1 loaded None" in said
    assert "Timed out waiting" in said
    assert "ended well" not in said
    assert 0 not in codes
