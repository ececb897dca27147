"""Names of commands that users of other tools type, and dslaunch's command for each. Pure.

The tools are DeepSpeed and torchrun, SLURM, docker, kubectl, TorchX and SkyPilot.
"""

from __future__ import annotations

from collections.abc import Mapping

_START = "start a training job with `dslaunch run CLUSTER.yaml SCRIPT`"
_SUBMIT = "submit a job with `dslaunch slurm CLUSTER.yaml SCRIPT`"
_ALLOCATED = "inside an allocation, start a training job with `dslaunch run --slurm SCRIPT`"
_STOP = "stop a run with `dslaunch stop RUN`"
_RUNS = "list runs with `dslaunch ps`"
_STATE = "show the state of a run with `dslaunch status RUN`"
_OUTPUT = "print the output of a run with `dslaunch logs RUN`"
_FOLLOW = "follow a run with `dslaunch attach RUN`"
_NODES = "show the nodes of a cluster file with `dslaunch nodes`"
_CHECK = (
    "check nodes with `dslaunch preflight`, a cluster file with `dslaunch validate`, a DeepSpeed "
    "config with `dslaunch config lint`, an sbatch script with `dslaunch slurm lint`"
)
_LINT = (
    "check a DeepSpeed config with `dslaunch config lint`, an sbatch script with "
    "`dslaunch slurm lint`, a cluster file with `dslaunch validate`"
)
_CREATE = "create a cluster file with `dslaunch init`"
_REMOVE = "remove leftovers of runs from nodes with `dslaunch clean`"

INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("launch", "start", "train", "exec", "up", "deepspeed", "torchrun", "accelerate", "mpirun"),
        _START,
    ),
    **dict.fromkeys(("submit", "sbatch", "queue"), _SUBMIT),
    **dict.fromkeys(("srun", "salloc"), _ALLOCATED),
    **dict.fromkeys(("kill", "cancel", "scancel", "down", "terminate", "abort"), _STOP),
    **dict.fromkeys(("list", "ls", "runs", "jobs", "squeue", "history"), _RUNS),
    **dict.fromkeys(("info", "describe", "inspect", "show", "sacct", "state"), _STATE),
    **dict.fromkeys(("output", "tail"), _OUTPUT),
    **dict.fromkeys(("follow", "watch"), _FOLLOW),
    **dict.fromkeys(("sinfo", "hosts", "cluster"), _NODES),
    **dict.fromkeys(("check", "doctor", "verify", "test", "diagnose", "ds_report"), _CHECK),
    "lint": _LINT,
    **dict.fromkeys(("create", "new", "setup", "hostfile"), _CREATE),
    **dict.fromkeys(("rm", "delete", "remove", "prune"), _REMOVE),
    "py-spy": "show the stacks of all ranks with `dslaunch stacks RUN`",
    "ssh-keyscan": "record the host keys of the nodes with `dslaunch trust`",
    "version": "show the version with `dslaunch --version`",
    "completion": "install shell completion with `dslaunch --install-completion`",
}
"""A name that is no command, and what to do instead."""


def instead(name: str) -> str | None:
    """Return what to do instead of a command of another tool; None: not known."""
    return INSTEAD.get(name.lower())
