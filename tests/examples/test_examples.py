"""The example trainings do what their first lines promise, with real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_THREADS = """
import os, runpy, sys
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
for task in os.listdir("/proc/self/task"):
    os.write(1, b"thread " + open(f"/proc/self/task/{task}/comm", "rb").read())
"""
"""Runs a script and names the threads that are left when it is through.

Each line is one write: the ranks share a pipe, and smaller pieces of lines may run into each other.
"""


def train(script: str, ranks: int, directory: Path, *args: str) -> str:
    """Run an example on this machine, with torchrun if there are several ranks; its output."""
    # CUDA off and one thread: the same arithmetic on every machine
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(directory), "GLOO_SOCKET_IFNAME": "lo"}
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # 0: any port that is free
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    if ranks == 1:
        torchrun, environment = [], environment | alone
    done = subprocess.run(
        [sys.executable, *torchrun, EXAMPLES / script, *args],
        cwd=directory,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(output: str) -> list[float]:
    """The losses that rank 0 printed, in order."""
    return [float(text) for text in re.findall(r"loss ([0-9.]+)", output)]


def parameters(output: str) -> float:
    """The sum of the parameters at the end."""
    return float(re.findall(r"sum of parameters (\S+)", output)[0])


@pytest.mark.long  # the next test trains with two ranks
@pytest.mark.torch
def test_any_number_of_ranks_gives_the_result_of_one_process(tmp_path: Path) -> None:
    one = train("train_ddp.py", 1, tmp_path, "--save", "one", "--batch", "64")
    three = train("train_ddp.py", 3, tmp_path, "--save", "three", "--batch", "64")
    assert losses(three) == pytest.approx(losses(one), rel=1e-4)
    assert parameters(three) == pytest.approx(parameters(one), rel=1e-4)


@pytest.mark.torch
def test_the_loss_goes_down_and_no_thread_of_the_process_group_is_left(tmp_path: Path) -> None:
    """With a thread left the interpreter may abort at its end, and a good training has failed."""
    wrapper = tmp_path / "with_threads.py"
    wrapper.write_text(WITH_THREADS)
    output = train(str(wrapper), 2, tmp_path, str(EXAMPLES / "train_ddp.py"), "--check")
    assert output.count("thread ") >= 2
    assert not re.search("thread .*gloo|thread .*tcpstore", output)
    assert losses(output)[-1] < losses(output)[0] / 2
    # torchrun lets its ranks write into one pipe, and their lines may run into each other
    assert sorted(re.findall(r"rank (\d) of 2 on [^\s,]+, cpu", output)) == ["0", "1"]
    assert "the parameters are equal on all ranks" in output


@pytest.mark.long  # three trainings; tests/testbed/test_checkpoints.py resumes one
@pytest.mark.torch
def test_a_resumed_training_ends_like_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = train("train_ddp.py", 1, tmp_path, "--save", "whole", "--steps", "20")
    train("train_ddp.py", 1, tmp_path, "--save", "parts", "--steps", "10")
    rest = train("train_ddp.py", 1, tmp_path, "--save", "parts", "--steps", "20")
    assert "step   0" not in rest
    assert parameters(rest) == pytest.approx(parameters(whole), rel=1e-6)


@pytest.mark.long  # tests/testbed/test_checkpoints.py trains with two ranks, and looks at the same
@pytest.mark.deepspeed
@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_trains_on_cpu_without_a_compiler_and_saves(tmp_path: Path, ranks: int) -> None:
    config = str(EXAMPLES / "ds_config.json")
    output = train("train_deepspeed.py", ranks, tmp_path, "--deepspeed_config", config)
    assert losses(output)[-1] < losses(output)[0] / 2
    assert "built successfully" not in output
    assert (tmp_path / "checkpoints/step30/mp_rank_00_model_states.pt").exists()
    assert (tmp_path / "checkpoints/latest").read_text() == "step30"
