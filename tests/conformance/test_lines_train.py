"""What we print, run by the programs that it is printed for, on emulated nodes of this machine.

Each process imports torch or DeepSpeed. One test of each launcher, and those that show what no
other does, belong to `make test`; what the testbed shows with the same launcher too is long.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ports import free_port

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.command import Word, shell_line
from dslaunch.launch.facts import Facts, NodeFacts, PortFact
from dslaunch.launch.job import Job, Kind
from dslaunch.launch.plan import Decided, Plan, Rendezvous
from dslaunch.launch.planner import make_plan
from dslaunch.node.streams import ERROR, STDERR, STDOUT, make_rank_pipes
from dslaunch.render.formats import render
from dslaunch.render.launch import Launch
from dslaunch.run.cpu_training import for_accelerate

NASTY = (
    *(
        "--",
        "--nnodes=9",
        "--local_rank_=7",
        "-x",
        "a b",
        "it's",
        '"quoted"',
        "$HOME $$ ${local_rank}",
    ),
    *("`id` $(id)", "*", "a\nb", "", "é☃", "%n", "\\", "--deepspeed=ds.json", "#", "~"),
    *(":", "\r\n", "@file"),
)
SECONDS = 300
TRAIN = """
import json, os, sys
import torch, torch.distributed as dist
print("hello from", os.environ["RANK"], flush=True)
print("trouble from", os.environ["RANK"], file=sys.stderr, flush=True)
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GREETING")
said = {"sum": total.item(), "argv": sys.argv[1:], "env": {n: os.environ.get(n) for n in names}}
with open(f"rank{dist.get_rank()}.json", "w") as file:
    json.dump(said, file)
dist.barrier()
dist.destroy_process_group()
"""
ACCELERATE = """
import json, sys
import torch
from accelerate import Accelerator
accelerator = Accelerator()
total = accelerator.reduce(torch.tensor([float(accelerator.process_index + 1)]))
said = {"sum": total.item(), "argv": sys.argv[1:], "world": accelerator.num_processes}
with open(f"rank{accelerator.process_index}.json", "w") as file:
    json.dump(said, file)
print("hello from", accelerator.process_index, flush=True)
print("trouble from", accelerator.process_index, file=sys.stderr, flush=True)
accelerator.end_training()
"""
FAILING = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("the first cause")
main()
"""


def allocation(*slots: int) -> Allocation:
    nodes = [
        Node(f"n{i}", tuple(range(count)), python=sys.executable) for i, count in enumerate(slots)
    ]
    return Allocation.of([(node, node.slots) for node in nodes])


def launch(
    workdir: Path,
    slots: Sequence[int],
    *,
    args: tuple[Word, ...] = NASTY,
    launcher: str = "torchrun",
    kind: Kind = "script",
    address: str = "127.0.0.1",
    script: str = TRAIN,
) -> Launch:
    """A world on this machine, its script in `workdir`."""
    (workdir / "train it.py").write_text(script)
    (workdir / "training.py").write_text(script)
    program = {"script": "train it.py", "module": "training", "command": sys.executable}[kind]
    job = Job(
        program,
        ("train it.py", *args) if kind == "command" else args,
        kind=kind,
        launcher=launcher,
        env=(("GLOO_SOCKET_IFNAME", "lo"), ("ACCELERATE_USE_CPU", "true")),
    )
    decided = Decided(Rendezvous(address, free_port(address)), str(workdir))
    return Launch("here", allocation(*slots), job, decided)


def run_together(lines: Sequence[str], cwd: Path, env: Sequence[dict[str, str]] = ()) -> list[int]:
    """Run shell lines at the same time; none outlives the test."""
    more = env or [{}] * len(lines)
    started = [
        subprocess.Popen(
            ["sh", "-c", line],
            cwd=cwd,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | extra,
            start_new_session=True,
        )
        for line, extra in zip(lines, more, strict=True)
    ]
    try:
        return [process.wait(SECONDS) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclass
class Ended:
    """What a plan's launchers and ranks came to."""

    codes: list[int]
    written: dict[tuple[int, int], str]
    """By rank and stream."""


def run_plan(plan: Plan, cwd: Path) -> Ended:
    """Do what the agents would: start every process of every node, and read its ranks' pipes."""
    lines, env, pipes = [], [], []
    for node in plan.nodes:
        logs = cwd / "logs" / node.host
        logs.mkdir(parents=True)
        ranks = range(node.first_rank, node.first_rank + len(node.slots))
        pipes += make_rank_pipes(str(logs), ranks)
        for process in node.processes:
            lines.append(shell_line(process.command, env=(*node.env, *process.env), cwd=node.cwd))
            env.append({"DSLAUNCH_LOGS": str(logs)})
    codes = run_together(lines, cwd, env)  # what the ranks write fits into the pipes
    written = {(p.rank, p.stream): b"".join(p.drain()).decode() for p in pipes}
    for pipe in pipes:
        pipe.close()
    return Ended(codes, written)


def plan_of(wanted: Launch) -> Plan:
    return make_plan(wanted.allocation, wanted.job, wanted.decided, cluster=wanted.cluster)


def said_by_ranks(cwd: Path, count: int) -> list[dict[str, Any]]:
    return [json.loads((cwd / f"rank{rank}.json").read_text()) for rank in range(count)]


def line_of_each_node(text: str, hosts: Sequence[str]) -> list[str]:
    """Cut a rendered text at its comments: an argument may hold a newline itself."""
    lines, rest = [], text
    for host in hosts:
        before, _, rest = rest.partition(f"# {host}\n")
        lines.append(before)
    return [*lines[1:], rest]


@pytest.mark.torch
def test_the_printed_torchrun_lines_train_uneven_nodes(tmp_path: Path) -> None:
    wanted = launch(tmp_path, (1, 2))
    lines = line_of_each_node(render("torchrun", wanted).text, wanted.allocation.hosts)
    assert run_together(lines, tmp_path) == [0, 0]
    said = said_by_ranks(tmp_path, 3)
    assert [s["sum"] for s in said] == [6.0] * 3
    assert [s["argv"] for s in said] == [list(NASTY)] * 3
    assert [s["env"]["LOCAL_RANK"] for s in said] == ["0", "0", "1"]


def has_ipv6() -> bool:
    try:
        free_port("::1")
    except OSError:
        return False
    return True


@pytest.mark.torch
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_torchrun_runs_a_command_that_meets_at_an_ipv6_address_and_writes_into_our_pipes(
    tmp_path: Path,
) -> None:
    ended = run_plan(plan_of(launch(tmp_path, (2,), address="::1", kind="command")), tmp_path)
    assert ended.codes == [0]
    assert [s["argv"] for s in said_by_ranks(tmp_path, 2)] == [list(NASTY)] * 2
    for rank in range(2):
        assert ended.written[rank, STDOUT] == f"hello from {rank}\n"
        assert f"trouble from {rank}\n" in ended.written[rank, STDERR]


@pytest.mark.torch
def test_torchs_record_writes_the_error_of_a_rank_into_our_pipe(tmp_path: Path) -> None:
    ended = run_plan(plan_of(launch(tmp_path, (1,), args=(), script=FAILING)), tmp_path)
    assert ended.codes == [1]
    assert "the first cause" in ended.written[0, ERROR]
    files = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["rank.py"]


@pytest.mark.deepspeed
def test_deepspeeds_launcher_trains_uneven_nodes(tmp_path: Path) -> None:
    ended = run_plan(plan_of(launch(tmp_path, (2, 1), launcher="deepspeed")), tmp_path)
    assert ended.codes == [0, 0]
    said = said_by_ranks(tmp_path, 3)
    assert [s["sum"] for s in said] == [6.0] * 3
    local = [f"--local_rank={s['env']['LOCAL_RANK']}" for s in said]
    assert [s["argv"] for s in said] == [[first, *NASTY] for first in local]
    for rank in range(3):
        assert f"hello from {rank}\n" in ended.written[rank, STDOUT]
        assert f"trouble from {rank}\n" in ended.written[rank, STDERR]


def deepspeed_line(wanted: Launch, directory: Path) -> list[int]:
    """Run the rendered `deepspeed` command with the rendered hostfile."""
    (directory / "hostfile").write_text(render("hostfile", wanted).text)
    path = f"{directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return run_together([render("deepspeed", wanted).text], directory, [{"PATH": path}])


@pytest.mark.long
@pytest.mark.deepspeed
def test_the_printed_deepspeed_command_trains_on_this_machine(tmp_path: Path) -> None:
    wanted = launch(tmp_path, (2,), args=("--name", "a b"))
    here = Allocation.of([(Node("localhost", (0, 1)), (0, 1))])
    assert deepspeed_line(replace(wanted, allocation=here), tmp_path) == [0]
    said = said_by_ranks(tmp_path, 2)
    assert [s["argv"][1:] for s in said] == [["--name", "a b"]] * 2
    assert [s["sum"] for s in said] == [3.0] * 2


@pytest.mark.deepspeed
def test_the_printed_deepspeed_command_starts_the_chosen_slots_of_one_remote_node(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("ssh", "pdsh"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/{name}"\n')
        program.chmod(0o755)
    far = Allocation.of([(Node("far", (0, 1, 2, 3), python=sys.executable), (1, 3))])
    assert deepspeed_line(replace(launch(tmp_path, (1,)), allocation=far), tmp_path) == [0]
    asked = (tmp_path / "pdsh").read_text()
    (world,) = re.findall(r"--world_info=(\S+)", asked)
    assert json.loads(base64.urlsafe_b64decode(world)) == {"far": [1, 3]}
    assert "-w\nfar\n" in asked
    assert f"{sys.executable}\n-u\n-m\ndeepspeed.launcher.launch\n" in asked


@pytest.mark.long
@pytest.mark.torch
def test_accelerate_joins_all_ranks_into_one_world(tmp_path: Path) -> None:
    plan = plan_of(launch(tmp_path, (2, 2), launcher="accelerate", script=ACCELERATE))
    ended = run_plan(plan, tmp_path)
    assert ended.codes == [0, 0]
    assert said_by_ranks(tmp_path, 4) == [{"sum": 10.0, "argv": list(NASTY), "world": 4}] * 4
    for rank in range(4):
        assert ended.written[rank, STDOUT] == f"hello from {rank}\n"


TRAINER = """
import json, os, torch
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
found = Trainer(torch.nn.Linear(4, 1), args).accelerator
said = {"kind": found.distributed_type.value, "world": found.num_processes}
with open("rank%s.json" % os.environ["RANK"], "w") as file:
    json.dump(said, file)
"""
"""Hugging Face's Trainer, which tells how it will distribute a training.

It trains nothing: DeepSpeed would compile its operators first.
"""
TRAINED = ("--output_dir", "out", "--report_to", "none")


@pytest.mark.deepspeed
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (("--deepspeed", "ds.json", "--use_cpu", "True"), "DEEPSPEED"),
        pytest.param((), "MULTI_CPU", marks=pytest.mark.long),
    ],
    ids=["deepspeed", "plain"],
)
def test_the_trainer_on_cpu_is_distributed_as_its_arguments_say(
    tmp_path: Path, args: tuple[str, ...], kind: str
) -> None:
    """What `for_accelerate` sets on nodes without accelerators is what the Trainer needs."""
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    made = launch(tmp_path, (2,), launcher="accelerate", script=TRAINER, args=(*TRAINED, *args))
    unset = replace(made.job, env=(("GLOO_SOCKET_IFNAME", "lo"), ("CUDA_VISIBLE_DEVICES", "")))
    nodes = tuple(
        NodeFacts(host=p.node.host, machine="m", home="/") for p in made.allocation.placements
    )
    job, _ = for_accelerate(made.allocation, unset, Facts(nodes, PortFact(1)), tmp_path)
    assert run_plan(plan_of(replace(made, job=job)), tmp_path).codes == [0]
    assert said_by_ranks(tmp_path, 2) == [{"kind": kind, "world": 2}] * 2


@pytest.mark.long
@pytest.mark.torch
def test_accelerate_runs_a_world_of_one(tmp_path: Path) -> None:
    plan = plan_of(launch(tmp_path, (1,), launcher="accelerate", script=ACCELERATE))
    assert run_plan(plan, tmp_path).codes == [0]
    assert said_by_ranks(tmp_path, 1) == [{"sum": 1.0, "argv": list(NASTY), "world": 1}]


READS_CONFIG = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
print(json.dumps(load_config_from_file(sys.argv[1]).to_dict()))
"""
"""It raises an exception for a key that accelerate does not know."""


@pytest.mark.torch
def test_accelerate_reads_the_rendered_configuration(tmp_path: Path) -> None:
    wanted = launch(tmp_path, (1, 1), launcher="accelerate")
    (tmp_path / "accelerate.yaml").write_text(render("accelerate-config", wanted).text)
    command = [sys.executable, "-c", READS_CONFIG, "accelerate.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    assert (read["num_machines"], read["num_processes"]) == (2, 2)
    assert read["main_process_ip"] == "127.0.0.1"
    assert read["main_process_port"] == wanted.decided.rendezvous.port


@pytest.mark.long  # the one above reads it; accelerate starts the ranks of the Trainer above
@pytest.mark.torch
def test_accelerate_takes_the_rendered_configuration(tmp_path: Path) -> None:
    wanted = launch(tmp_path, (1, 1), launcher="accelerate", script=ACCELERATE)
    (tmp_path / "accelerate.yaml").write_text(render("accelerate-config", wanted).text)
    line = f"{sys.executable} -m accelerate.commands.launch --config_file accelerate.yaml"
    lines = [f"{line} --machine_rank {rank} 'train it.py' x" for rank in range(2)]
    assert run_together(lines, tmp_path, [{"ACCELERATE_USE_CPU": "true"}] * 2) == [0, 0]
    assert said_by_ranks(tmp_path, 2) == [{"sum": 3.0, "argv": ["x"], "world": 2}] * 2


@pytest.mark.long
@pytest.mark.torch
def test_ranks_started_directly_train_uneven_nodes(tmp_path: Path) -> None:
    plan = plan_of(launch(tmp_path, (1, 2), launcher="direct", kind="module"))
    assert run_plan(plan, tmp_path).codes == [0, 0, 0]
    said = said_by_ranks(tmp_path, 3)
    assert [(s["sum"], s["argv"]) for s in said] == [(6.0, list(NASTY))] * 3


@pytest.mark.mpi
@pytest.mark.torch
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun_takes_the_rendered_script(tmp_path: Path) -> None:
    node = Node("localhost", (0, 1), python=sys.executable, env=(("GREETING", "a 'b' $c"),))
    wanted = launch(tmp_path, (2,))
    alone = replace(wanted, allocation=Allocation.of([(node, (0, 1))]))
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    assert run_together([render("mpirun", alone).text], tmp_path, [allowed]) == [0]
    said = said_by_ranks(tmp_path, 2)
    assert [(s["sum"], s["argv"]) for s in said] == [(3.0, list(NASTY))] * 2
    same = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GREETING": "a 'b' $c"}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    assert [s["env"] for s in said] == [same | ranks for ranks in own]
