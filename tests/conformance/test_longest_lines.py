"""The longest command that DeepSpeed's runner passes to a node can be started there, and no longer
one is printed. The shell is started as sshd does, with the command as one argument."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect
from importlib.util import find_spec

import pytest

from dslaunch.cluster.model import Allocation, Node
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous
from dslaunch.render.formats import render
from dslaunch.render.launch import Launch

RUNNER = """
import json, sys
from argparse import Namespace
from deepspeed.launcher.multinode_runner import PDSHRunner
from deepspeed.launcher.runner import encode_world_info
told = json.load(sys.stdin)
args = Namespace(
    user_script="train.py", user_args=told["args"], launcher_args="", ssh_port=None,
    master_addr="n00001", master_port=29500, venv_script=None, no_python=False, module=False,
    no_local_rank=False, save_pid=False, enable_each_rank_log=None,
)
nodes = {host: told["slots"] for host in told["hosts"]}
runner = PDSHRunner(args, encode_world_info(nodes))
words, _, _ = runner.get_cmd({}, nodes)
print(json.dumps(words[words.index("-w") + 2:]))
"""
"""Prints the words that the runner gives to pdsh after the names of the nodes."""
SLOTS = tuple(range(8))
REFUSED = (ErrorCode.PDSH_COMMAND_TOO_LONG, ErrorCode.WORLD_INFO_TOO_LONG)
ARGS = ("--config", "x" * 20_000)


def of(count: int) -> Launch:
    nodes = [Node(f"n{number:05}", slots=SLOTS) for number in range(1, count + 1)]
    allocation = Allocation.of([(node, node.slots) for node in nodes])
    decided = Decided(Rendezvous("n00001", 29500), "/work")
    return Launch("hall", allocation, Job("train.py", ARGS, launcher="deepspeed"), decided)


def is_refused(count: int) -> bool:
    try:
        render("deepspeed", of(count))
    except PlanError as error:
        return error.error_code in REFUSED
    return False


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_the_longest_command_of_deepspeeds_runner_can_be_started_on_a_node() -> None:
    most = bisect(range(10_000), 0, key=is_refused, lo=1) - 1
    with pytest.raises(PlanError) as caught:
        render("deepspeed", of(most + 1))
    assert caught.value.error_code is ErrorCode.PDSH_COMMAND_TOO_LONG
    told = {"args": ARGS, "slots": SLOTS, "hosts": list(of(most).allocation.hosts)}
    made = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(told),
        text=True,
        capture_output=True,
        check=True,
    )
    command = " ".join(json.loads(made.stdout.splitlines()[-1]))
    subprocess.run(["/bin/sh", "-c", f"exit;{command}"], check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/sh", "-c", f"exit;{command}{'x' * 1024}"], check=True)
