"""Steps of the current SLURM allocation: no SSH between its nodes is needed.

Each program on a node is its own step. SLURM ends everything that a step has started when the
step's task ends, so that nothing outlives the connection.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.cluster.nodeset import expand
from dslaunch.errors import NodeError, NodeFailure, UsageError
from dslaunch.transport.base import TransportType
from dslaunch.transport.process import (
    ProcessChannel,
    ProcessConnection,
    inherited,
    login_line,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node

NAME = "srun"
"""The name of the transport, and of the program that starts steps."""
CONFIGURING = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
"""Variables that configure SLURM's commands; all others of it are about the job we are in."""
OF_A_STEP = ("SLURM", "SLURMD", "SBATCH", "SRUN", "SALLOC", "PMI", "PMIX")
"""What their names begin with. Left to srun, those of the job or of an outer step would be options
of ours: SLURM_CPU_BIND, SLURM_NTASKS, SLURM_MEM_PER_CPU, ... (srun(1), "INPUT ENVIRONMENT
VARIABLES")."""
GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""What SLURM sets for a step. The caller's are wrong on another node, and a step's own are left out
as well: a run names the GPUs of its ranks itself, which must not be a choice within a choice."""
ABOUT_TASKS = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NNODES",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GTIDS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_DISTRIBUTION",
)
"""Variables of a step for its task. The ranks are not tasks: a library that uses these would take
each for rank 0 of 1."""
STEP = (
    "--overlap",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--export=ALL",
    "--unbuffered",
    "--input=all",
    "--kill-on-bad-exit=0",
    "--chdir=/",
    "--job-name=dslaunch",
)
"""Beside all other steps and with all that the job has (srun(1), `--overlap`; `--mem=0`), its
bytes not held back for whole lines."""

_ABOUT_EVERY_STEP = re.compile(
    r"(?m)^srun: (?:error: \S+: task \d+: .*|cluster configuration lacks support.*)\n?"
)
"""srun's messages about every step: a program's own error output says more, and without a plugin
that binds tasks to CPUs there is nothing to bind."""


class StepPlace(Struct, frozen=True):
    """Where in the allocation a node is."""

    job: str
    group: str | None
    """The component of a heterogeneous job."""


def command(place: StepPlace, hosts: str, count: int, gpus: int | None = None) -> list[str]:
    """Return the srun command for one task on each of `count` nodes; the program follows.

    `gpus`: how many the job has on each of them. Left to itself a step gets what the job requested,
    which is less than the job has with `--exclusive` and `--gres`, one with `--gpus-per-task`, and
    an error with `--gpus` on nodes of unequal shares. A step of one node must say `--gpus`: with
    `--gres` srun compares the number with the job's average (all seen with SLURM 22.05).
    """
    group = [f"--het-group={place.group}"] if place.group is not None else []
    where = [f"--jobid={place.job}", *group, f"--nodelist={hosts}"]
    size = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    if gpus:
        size.append(f"--gpus={gpus}" if count == 1 else f"--gres=gpu:{gpus}")
    return [NAME, *STEP, *where, *size]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun, which the step inherits."""
    return {
        name: value
        for name, value in environ.items()
        if name in CONFIGURING or (name.split("_")[0] not in OF_A_STEP and name not in GPUS)
    }


def places(environ: Mapping[str, str]) -> dict[str, StepPlace]:
    """Return the nodes of the current allocation, in SLURM's order. Raises UsageError."""
    job = environ.get("SLURM_JOB_ID", "")
    size = environ.get("SLURM_HET_SIZE", "")
    groups: list[str | None] = [str(i) for i in range(int(size))] if size.isdecimal() else [None]
    found: dict[str, StepPlace] = {}
    for group in groups:
        ending = "" if group is None else f"_HET_GROUP_{group}"
        folded = environ.get(f"SLURM_JOB_NODELIST{ending}", "")
        if not job or not folded:
            raise UsageError(
                f"transport `srun`: SLURM_JOB_ID or SLURM_JOB_NODELIST{ending} is not set: "
                "not inside a SLURM allocation",
                hint="run this command inside salloc or a job",
            )
        found |= dict.fromkeys(expand(folded), StepPlace(job, group))
    return found


class StepChannel(ProcessChannel):
    """Bytes to and from a step, by the srun that holds it."""

    def said(self) -> str:
        """Return the last 64 KiB of the program's standard error, without srun's own messages."""
        return _ABOUT_EVERY_STEP.sub("", super().said())


class SrunConnection(ProcessConnection):
    """A node of the allocation; every program on it is a step."""

    def __init__(self, argv: list[str], env: Mapping[str, str]) -> None:
        super().__init__()
        self._argv, self._env = argv, env

    def start(self, line: str, text: Sequence[bytes] = ()) -> ProcessChannel:
        """Run a shell line on the node, in the home directory as after a login."""
        whole = f"cd; unset {' '.join((*ABOUT_TASKS, *GPUS))}; {login_line(line)}"
        argv = [*self._argv, "/bin/sh", "-c", whole]
        return self.keep(StepChannel(argv, text=text, env=self._env))


class SrunTransport:
    """Starts a step for each program. Outside an allocation it can be created, to inspect a run in
    an earlier one, but reaches no node."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._here = shutil.which(NAME, path=environ.get("PATH")) is not None
        self._places = places(environ) if environ.get("SLURM_JOB_ID") else {}
        self._env = environment(environ)

    def connect(self, node: Node) -> SrunConnection:
        """Find the node in the allocation. Raises NodeError."""
        place = self._places.get(node.host)
        if place is None:
            why = "not a node of the current SLURM allocation"
            hint = (
                "run this command inside the allocation; when the allocation ends, SLURM ends all "
                "processes of the run"
            )
            raise NodeError((NodeFailure(node.host, "name", why, hint),))
        if not self._here:
            why, hint = "srun not found", "use SSH: --transport fabric"
            raise NodeError((NodeFailure(node.host, "name", why, hint),))
        return SrunConnection(command(place, node.host, 1, node.step_gpus), self._env)

    def close(self) -> None:
        """Nothing is held."""


def make(cluster: Cluster) -> SrunTransport:
    """Return the transport of the current allocation. Raises UsageError if it lists no nodes."""
    return SrunTransport(inherited(os.environ, cluster))


TRANSPORT = TransportType(
    make,
    summary="steps of the current SLURM allocation",
    by_steps=True,
)
