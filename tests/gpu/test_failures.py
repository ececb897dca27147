"""How trainings on GPUs fail: the reason is found, and the GPUs are free afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu.machine import JOBS, memory_used

if TYPE_CHECKING:
    from tests.gpu.machine import Device, Machine

pytestmark = pytest.mark.gpu
FAIL = JOBS / "fail.py"
FREED = 64
"""MiB per GPU that may be in use more than before: of other processes of this machine."""


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("memory", "gpu-memory"),
        ("ordinal", "device-ordinal"),
        ("assertion", "device-assert"),
    ],
)
@pytest.mark.parametrize("launcher", ["torchrun", "direct", "deepspeed"])
def test_the_reason_of_a_cuda_error_is_reported(
    machine: Machine, launcher: str, how: str, ending: str
) -> None:
    run = machine.run(FAIL, how, options=("-l", launcher))
    assert run.outcome["ending"] == ending, run.text
    assert run.outcome["exit_code"] != 0


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("token", "device-assert"),
        ("address", "gpu-error"),
        ("fork", "cuda-fork"),
        ("devices", "mixed-devices"),
        ("backend", "backend-device"),
        ("architecture", "no-kernel"),
    ],
)
def test_a_mistake_with_gpus_is_named(machine: Machine, how: str, ending: str) -> None:
    run = machine.run(FAIL, how)
    assert run.outcome["ending"] == ending, run.text


@pytest.mark.parametrize(("how", "exit_code"), [("error", 1), ("killed", 137)])
def test_a_rank_that_fails_is_the_cause_although_nccl_fails_on_the_others(
    machine: Machine, how: str, exit_code: int
) -> None:
    machine.describe_shared(2)
    run = machine.run(FAIL, how)
    assert (run.outcome["cause"]["host"], run.outcome["cause"]["rank"]) == ("node2", 1), run.text
    assert run.outcome["exit_code"] == exit_code


def test_a_timeout_of_nccl_is_reported_with_its_message(machine: Machine) -> None:
    machine.describe_shared(2)
    # PyTorch waits four times this long before it ends the rank
    run = machine.run(FAIL, "timeout", options=("--env", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=500"))
    assert run.outcome["ending"] == "nccl-timeout", run.text
    assert run.outcome["cause"]["rank"] == 0
    assert any("timeout" in line for line in run.outcome["last_lines"]), run.outcome["last_lines"]


def test_a_rank_without_any_gpu_is_reported(machine: Machine) -> None:
    hidden = ("--env", "CUDA_VISIBLE_DEVICES=")
    run = machine.run(FAIL, "hidden", options=hidden)
    assert run.outcome["ending"] == "no-gpu", run.text


def test_a_slot_without_a_gpu_prevents_the_start(
    machine: Machine, devices: tuple[Device, ...]
) -> None:
    machine.describe(len(devices) + 1)
    (machine.directory / "place.py").write_text((JOBS / "place.py").read_text())
    assert machine.call("run", "cluster.yaml", "place.py", codes=(4,)) == ""


def test_ranks_that_use_the_same_gpu_are_reported(machine: Machine) -> None:
    # each node's only rank uses GPU 0 of this machine
    machine.describe(1, "node[1-2]")
    run = machine.run(FAIL, "same-gpu", options=("--no-preflight",))
    assert run.outcome["ending"] == "duplicate-gpu", run.text


def started(machine: Machine, how: str, ranks: int) -> tuple[subprocess.Popen[str], dict[int, int]]:
    """Start a job that blocks; return it and its ranks' process numbers when all are ready."""
    (machine.directory / FAIL.name).write_text(FAIL.read_text())
    process = machine.start("run", "--json", "--grace", "2", "cluster.yaml", FAIL.name, how)
    assert process.stdout is not None
    pids: dict[int, int] = {}
    while len(pids) < ranks:
        line = process.stdout.readline()
        assert line, "it ended before it was ready"
        text = json.loads(line).get("text", "")
        if text.startswith("{"):
            told = json.loads(text)
            pids[told["rank"]] = told["pid"]
    return process, pids


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a run; return its outcome."""
    output, errors = process.communicate(timeout=120)
    events = [json.loads(line) for line in output.splitlines()]
    assert events and events[-1]["kind"] == "outcome", errors + output
    found: dict[str, Any] = events[-1]
    return found


def assert_freed(before: list[int]) -> None:
    """Assert that the GPUs' memory is as free as before, within 20 seconds."""
    deadline = time.monotonic() + 20
    while True:
        now = memory_used()
        if all(n <= b + FREED for n, b in zip(now, before, strict=True)):
            return
        assert time.monotonic() < deadline, f"MiB in use: {before} before, {now} after"
        time.sleep(0.5)


def test_a_killed_rank_ends_the_run_and_frees_the_gpus(
    machine: Machine, devices: tuple[Device, ...]
) -> None:
    before = memory_used()
    process, pids = started(machine, "spin", len(devices))
    last = len(devices) - 1
    assert all(n > b + 256 for n, b in zip(memory_used(), before, strict=True))
    os.kill(pids[last], signal.SIGKILL)
    ended = outcome(process)
    assert (ended["exit_code"], ended["cause"]["rank"]) == (137, last), ended
    assert machine.left() == []
    assert_freed(before)


def frames(told: dict[str, Any], rank: int) -> list[str]:
    """Return the functions of a rank's main thread, the innermost first."""
    (process,) = told["node1"][str(rank)]
    main = next(thread for thread in process["threads"] if thread["main"])
    return [frame["function"] for frame in main["frames"]]


def test_stacks_of_a_rank_that_waits_for_a_kernel_are_shown(
    machine: Machine, devices: tuple[Device, ...]
) -> None:
    before = memory_used()
    process, _ = started(machine, "kernel", len(devices))
    told = json.loads(machine.call("stacks", "latest", "--json"))
    for rank in range(len(devices)):
        assert frames(told, rank)[:2] == ["synchronize", "kernel"]
    machine.call("stop", "latest", "--grace", "1")
    outcome(process)
    assert machine.left() == []
    assert_freed(before)


def test_stacks_tell_which_rank_does_not_take_part_in_a_collective(
    machine: Machine, devices: tuple[Device, ...]
) -> None:
    if len(devices) < 2:
        pytest.skip("needs two GPUs: NCCL refuses two ranks on one")
    process, _ = started(machine, "collective", len(devices))
    deadline = time.monotonic() + 30
    last = len(devices) - 1
    while True:
        told = json.loads(machine.call("stacks", "latest", "--json"))
        waiting = [rank for rank in range(len(devices)) if "barrier" in frames(told, rank)]
        if waiting == list(range(last)):
            break
        assert time.monotonic() < deadline, told
    machine.call("stop", "latest", "--grace", "1")
    outcome(process)
