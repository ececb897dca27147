"""Training on GPUs with every launcher: NCCL, the right GPUs, ZeRO, checkpoints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gpu.machine import EXAMPLES, JOBS

if TYPE_CHECKING:
    from tests.gpu.machine import Device, Machine, Run

pytestmark = pytest.mark.gpu
LAUNCHERS = ["torchrun", "elastic", "deepspeed", "accelerate", "direct"]
SUM = """
import glob, sys, torch
state = {}
for path in glob.glob(sys.argv[1] + "/*.bin"):
    state |= torch.load(path, weights_only=True)
print(sum(value.double().sum().item() for value in state.values()))
"""


def losses(text: str) -> list[float]:
    """Return the losses that rank 0 of the example printed."""
    return [float(each) for each in re.findall(r"loss ([0-9.]+)", text)]


@pytest.fixture(scope="session")
def losses_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return the losses of the example in one process without GPUs."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}
    alone |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train_ddp.py"],
        cwd=tmp_path_factory.mktemp("cpu"),
        env={**os.environ, **alone},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return losses(done.stdout)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_training_on_gpus_gives_the_losses_of_one_cpu(
    machine: Machine, devices: tuple[Device, ...], losses_on_cpu: list[float], launcher: str
) -> None:
    if launcher == "accelerate" and len(devices) == 1:
        pytest.skip("`accelerate launch` sets no RANK for a single process: the example needs it")
    run = machine.run(EXAMPLES / "train_ddp.py", "--check", options=("-l", launcher))
    assert run.outcome["exit_code"] == 0, run.text
    ranks = re.findall(r"rank (\d+) of (\d+) on \S+, (cuda:\d+)", run.text)
    count = len(devices)
    assert sorted(ranks) == sorted((f"{n}", f"{count}", f"cuda:{n}") for n in range(count))
    assert losses(run.text) == pytest.approx(losses_on_cpu, rel=1e-3)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_training_on_two_nodes_gives_the_losses_of_one_cpu(
    machine: Machine, losses_on_cpu: list[float], launcher: str
) -> None:
    machine.describe_shared(2)
    run = machine.run(EXAMPLES / "train_ddp.py", "--check", options=("-l", launcher))
    assert run.outcome["exit_code"] == 0, run.text
    ranks = re.findall(r"rank (\d+) of (\d+) on \S+, (cuda:\d+)", run.text)
    assert sorted(ranks) == [("0", "2", "cuda:0"), ("1", "2", "cuda:0")]
    assert losses(run.text) == pytest.approx(losses_on_cpu, rel=1e-3)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_chosen_slot_is_the_gpu_that_its_rank_sees(
    machine: Machine, devices: tuple[Device, ...], launcher: str
) -> None:
    # one slot more than GPUs: so that on a machine with one GPU, too, some slots are left out
    machine.describe(len(devices) + 1)
    last = len(devices) - 1
    options = ("-i", f"node1:{last}", "-l", launcher, "--no-preflight")
    run = machine.run(JOBS / "place.py", options=options)
    assert run.outcome["exit_code"] == 0, run.text
    assert (run.values("rank"), run.values("visible")) == ([0], [1])
    assert run.values("uuid") == [devices[last].uuid]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_zero_checkpoint_gives_the_weights_that_were_trained(
    machine: Machine, stage: int, nodes: int
) -> None:
    if nodes > 1:
        machine.describe_shared(nodes)
    run = machine.run(JOBS / "zero.py", str(stage))
    assert_trained(run)
    machine.call("checkpoint", "verify", "cluster.yaml")
    machine.call("checkpoint", "gather", "cluster.yaml", "--to", "gathered")
    machine.call("checkpoint", "consolidate", "gathered", "--to", "weights")
    done = subprocess.run(
        [sys.executable, "-c", SUM, machine.directory / "weights"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == pytest.approx(run.values("sum")[0], rel=1e-6, abs=1e-6)


def assert_trained(run: Run) -> None:
    """Assert that it ran on a GPU and that the loss fell."""
    assert run.outcome["exit_code"] == 0, run.text
    assert run.values("device")[0].startswith("cuda"), run.text
    (losses,) = run.values("losses")
    assert losses[-1] < losses[0]


def test_preflight_knows_whether_adam_for_the_cpu_can_be_built(machine: Machine) -> None:
    """Offload needs a kernel of DeepSpeed's that is compiled when it is first used."""
    machine.environment["TORCH_EXTENSIONS_DIR"] = str(machine.directory / "extensions")
    checks = ("--only", "sw.deepspeed-ops", "--only", "sw.cuda-toolkit")
    findings = machine.findings(*checks, "--for", "offload")
    bad = {finding["found"] for finding in findings if finding["level"] in ("fail", "warn")}
    run = machine.run(JOBS / "zero.py", "2", "--offload", options=("--no-preflight",))
    if bad:
        assert run.outcome["exit_code"] != 0, bad
        assert run.outcome["ending"] in EXTENSIONS, run.text
    else:
        assert_trained(run)


EXTENSIONS = ("op-build", "no-toolkit", "toolkit-mismatch")


def test_estimate_reads_the_memory_of_the_gpus(
    machine: Machine, devices: tuple[Device, ...]
) -> None:
    machine.findings("--save", "saved.json")
    told = json.loads(
        machine.call("estimate", "--params", "1e9", "--largest-layer", "1e8",
                     "--facts", "saved.json", "--json")
    )  # fmt: skip
    least = min(device.memory for device in devices)
    assert told["machines"]["gpus_per_node"] == len(devices)
    assert told["limits"]["gpu"] == pytest.approx(least, rel=0.05)
