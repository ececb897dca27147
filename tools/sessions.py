"""The page of typical sessions, made from real ones: `python -m tools.sessions`.

Each session is typed on the control machine of a virtual cluster with real sshd, and SLURM where it
is asked for. What it printed goes into docs/tutorial/sessions.md as it is.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial/sessions.md"
USERS_VENV = "/root/venv"
COLUMNS = "100"
TIMEOUT = 300
"""Seconds that a command may take."""

HEAD = """\
# Ten sessions

What you type and what you see: from the installation to a migration, and in the situations that
come first. Made by `python -m tools.sessions` from real sessions on a virtual cluster, with real
sshd, SLURM, PyTorch and DeepSpeed, on nodes without GPUs.
"""

CLUSTER = "nodes: [{host: 'node[1-2]', slots: 2}]\npython: /root/venv/bin/python\n"
TRAIN = (ROOT / "examples/train_ddp.py").read_text("utf-8")
DEEPSPEED = (ROOT / "examples/train_deepspeed.py").read_text("utf-8")
DEEPSPEED_CONFIG = (ROOT / "examples/ds_config.json").read_text("utf-8")
OUT_OF_MEMORY = """\
import os, resource, time

rank = int(os.environ["RANK"])
print(f"rank {rank}: loading", flush=True)
if rank == 3:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    data = bytearray(4 << 30)
time.sleep(60)
"""
HANGS = """\
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 2:
    time.sleep(1000)  # waits for a file that never comes
dist.barrier()
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks on a node during the session."""

    node: str
    kind: str
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """One session: its files, and what is typed."""

    title: str
    about: str
    steps: Sequence[str | Fault]
    files: Mapping[str, str] = field(default_factory=dict)
    shown: Sequence[str] = ()
    """The files that the page shows before the commands."""
    nodes: int = 2
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the virtual cluster."""
    project: str = "/root/project"
    """The directory in which the commands are typed."""


SESSIONS = (
    Session(
        title="From nothing to a trained model",
        about="The nodes have PyTorch in `/root/venv`; nothing of dslaunch is installed on them.",
        files={"train.py": TRAIN},
        steps=[
            "dslaunch init --hosts 'node[1-2]' --slots 2 -o cluster.yaml",
            "echo 'python: /root/venv/bin/python' >> cluster.yaml",
            "dslaunch validate cluster.yaml",
            "dslaunch trust cluster.yaml",
            "dslaunch preflight cluster.yaml",
            "dslaunch run -l direct cluster.yaml train.py --steps 20",
        ],
    ),
    Session(
        title="SSH does not work",
        about="On one node sshd is down, another one has got a new host key.",
        nodes=4,
        files={"cluster.yaml": CLUSTER.replace("1-2", "1-4"), "train.py": TRAIN},
        steps=[
            Fault("node2", "sshd-down"),
            Fault("node4", "host-key"),
            "dslaunch run cluster.yaml train.py",
            "dslaunch trust cluster.yaml",
        ],
    ),
    Session(
        title="The cluster file is wrong",
        about="All mistakes are reported at once, each with its place.",
        files={
            "cluster.yaml": "nodes:\n  - hosts: node[1-2]\n    slots: eight\n"
            "launcer: torchrun\nstorage: {checkpoints: ckpt}\nstorage: {workdir: work}\n"
        },
        shown=["cluster.yaml"],
        steps=["dslaunch validate cluster.yaml"],
    ),
    Session(
        title="conda is missing on the nodes",
        about="The environment is entered before the start, on every node.",
        files={
            "cluster.yaml": "nodes: [{host: 'node[1-2]', slots: 2}]\n"
            "activate: source ~/miniconda3/etc/profile.d/conda.sh && conda activate train\n",
            "train.py": TRAIN,
        },
        shown=["cluster.yaml"],
        steps=["dslaunch run cluster.yaml train.py"],
    ),
    Session(
        title="sbatch refuses the job",
        about="A partition that does not exist, and a time limit that is too long.",
        nodes=2,
        options={"slurm": True},
        project="/shared/project",
        files={
            "cluster.yaml": CLUSTER + "slurm: {partition: gpu, time: '20:00:00', gpus: none}\n",
            "train.py": TRAIN,
        },
        steps=[
            "dslaunch slurm cluster.yaml train.py",
            "dslaunch slurm cluster.yaml --set partition=short train.py",
            "dslaunch slurm cluster.yaml --set partition=main train.py --steps 20",
        ],
    ),
    Session(
        title="A rank runs out of memory",
        about="The rank that failed first is named, with its last output and a hint.",
        files={"cluster.yaml": CLUSTER, "train.py": OUT_OF_MEMORY},
        steps=["dslaunch run -l direct cluster.yaml train.py", "dslaunch status latest"],
    ),
    Session(
        title="The training hangs",
        about="Rank 2 does not enter the barrier.",
        files={"cluster.yaml": CLUSTER, "train.py": HANGS},
        shown=["train.py"],
        steps=["dslaunch run -l direct --hang-timeout 10 cluster.yaml train.py"],
    ),
    Session(
        title="Preflight of 64 nodes",
        about="One clock is wrong, one disk is full, one node is down.",
        nodes=64,
        files={"cluster.yaml": "nodes: [{host: 'node[1-64]', slots: 1}]\n"},
        steps=[
            Fault("node7", "skew", ["+300"]),
            Fault("node23", "disk-full", ["/"]),
            Fault("node60", "sshd-down"),
            "dslaunch preflight cluster.yaml --tier gate --skip sw",
        ],
    ),
    Session(
        title="Resume without shared storage",
        about="DeepSpeed saves each rank's shards on its own node. After the order of the nodes has"
        " changed, `spread` brings each shard to its rank.",
        files={
            "cluster.yaml": CLUSTER,
            "other-order.yaml": CLUSTER.replace("'node[1-2]'", "'node2,node1'"),
            "train.py": DEEPSPEED,
            "ds_config.json": DEEPSPEED_CONFIG,
        },
        steps=[
            "dslaunch run -l direct -r 0 cluster.yaml train.py --deepspeed_config ds_config.json"
            " --steps 10",
            "dslaunch run -l direct -r 0 other-order.yaml train.py"
            " --deepspeed_config ds_config.json --steps 20 --resume",
            "dslaunch checkpoint spread other-order.yaml checkpoints",
            "dslaunch run -l direct -r 0 other-order.yaml train.py"
            " --deepspeed_config ds_config.json --steps 20 --resume",
        ],
    ),
    Session(
        title="Migrate from a hostfile",
        about="A hostfile of DeepSpeed becomes a cluster file.",
        files={"hostfile": "node1 slots=2\nnode2 slots=2\n", "train.py": TRAIN},
        shown=["hostfile"],
        steps=[
            "dslaunch init --hostfile hostfile -o cluster.yaml",
            "echo 'python: /root/venv/bin/python' >> cluster.yaml",
            "dslaunch render include cluster.yaml --include node2:0",
            "dslaunch run --include node2 -l direct cluster.yaml train.py --steps 10",
        ],
    ),
)


def transcript(session: Session, directory: Path) -> str:
    """Hold the session; return its section of the page."""
    lines = [f"## {session.title}", "", session.about, ""]
    for name in session.shown:
        lines += [f"`{name}`:", "", "```text", session.files[name].rstrip("\n"), "```", ""]
    lines.append("```text")
    with VirtualCluster(session.nodes, directory, **session.options) as cluster:
        for node in ("control", *cluster.names):
            link = f"ln -s {sys.prefix} {USERS_VENV}"
            cluster.run(node, ["sh", "-c", link], user="root", check=True)
        for name, text in session.files.items():
            cluster.put("control", f"{session.project}/{name}", text, mode=0o644)
        for step in session.steps:
            if isinstance(step, Fault):
                cluster.fault(step.node, step.kind, *step.arguments)
            else:
                lines += _typed(cluster, step, session.project)
        cluster.heal()
    return "\n".join([*lines, "```", ""])


def _typed(cluster: VirtualCluster, command: str, directory: str) -> list[str]:
    """Type a command; return it with what it printed, and its exit code if it failed."""
    done = cluster.run(
        "control",
        ["bash", "-c", f"{command} 2>&1"],
        cwd=directory,
        timeout=TIMEOUT,
        env={"COLUMNS": COLUMNS},
    )
    output = done.stdout.replace(sys.prefix, USERS_VENV).replace("/root/", "~/")
    output = re.sub(r"^.*\[W\d+ .*socket\.cpp.*\n", "", output, flags=re.M)
    failed = [f"(exit code {done.returncode})"] if done.returncode else []
    return [f"$ {command}", *output.rstrip("\n").splitlines(), *failed, ""]


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="sessions-") as name:
        sections = [
            transcript(session, Path(name) / str(number))
            for number, session in enumerate(SESSIONS, 1)
            if not sys.argv[1:] or str(number) in sys.argv[1:]
        ]
    text = "\n".join([HEAD, *sections])
    if sys.argv[1:]:
        print(text)
        return
    PAGE.write_text(text, "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
