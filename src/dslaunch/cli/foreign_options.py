"""Options of other launchers: accepted under their own names, or answered with the right command.

The names are those of DeepSpeed (0.19.8, launcher/runner.py), torchrun (torch 2.13,
distributed/run.py), accelerate (1.15.0, commands/launch.py), mpirun and sbatch (24.11). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

SAME: Mapping[str, str] = {
    "hostfile": "cluster",
    "num-nodes": "nodes",
    "nnodes": "nodes",
    "num-machines": "nodes",
    "num-gpus": "slots",
    "nproc-per-node": "slots",
    "main-process-port": "master-port",
    "main-process-ip": "master-addr",
    "rank": "ranks",
}
"""Options of other launchers, or of earlier releases, and dslaunch's option with the same meaning,
without dashes."""
_RANKS = "dslaunch starts one rank per slot: --slots N per node, and --nodes N"
INSTEAD: Mapping[str, str] = {
    "--cluster": "name the cluster file: dslaunch run CLUSTER.yaml SCRIPT; "
    "dslaunch init --hostfile FILE creates it from a hostfile",
    "--num-processes": "dslaunch counts ranks per node: --slots N, and nodes: --nodes N",
    "--node-rank": "remove it: dslaunch starts all nodes from one machine and sets the node rank",
    "--machine-rank": "remove it: dslaunch starts all nodes from one machine and sets the node "
    "rank",
    "--master-addr": "remove it: dslaunch asks the nodes for the address that all can reach; "
    "set `address:` of a node in the cluster file to use another one",
    "--rdzv-endpoint": "remove it: dslaunch sets the rendezvous; --master-port PORT sets its port",
    "--rdzv-backend": "use --launcher elastic for a c10d rendezvous, else remove it",
    "--rdzv-id": "remove it: dslaunch sets the rendezvous",
    "--standalone": "remove it; for one machine: dslaunch init --local",
    "--max-restarts": "use --restarts N",
    "--config-file": "use --launcher accelerate --launcher-arg=--config_file=FILE",
    "--mixed-precision": "use --launcher accelerate --launcher-arg=--mixed_precision=TYPE",
    "--multi-gpu": "remove it: dslaunch starts one rank per slot",
    "--numa-binding": "use --launcher-arg=--numa-binding=KIND",
    "--bind-cores-to-rank": "use --launcher deepspeed --launcher-arg=--bind_cores_to_rank",
    "--bind-core-list": "use --launcher deepspeed --launcher-arg=--bind_core_list=CORES",
    "--force-multi": "remove it: dslaunch uses all nodes of the selection",
    "--ssh-port": "set `port:` of the nodes in the cluster file",
    "--no-ssh": "remove it; inside a SLURM allocation use --slurm",
    "--use-hostfile": "name the cluster file: dslaunch run CLUSTER.yaml SCRIPT",
    "--host": "use --include HOSTS",
    "--np": _RANKS,
    "-n": _RANKS,
    "--hosts": "use --include HOSTS; dslaunch init --hosts HOSTS creates a cluster file",
    "--gpus": "use --slots N: GPUs per node",
    "--gpus-per-node": "use --slots N",
    "--gres": "use --slots N: GPUs per node; `slurm: {gpus: ...}` in the cluster file defines the "
    "option for sbatch",
    "--ntasks": _RANKS,
    "--ntasks-per-node": "use --slots N",
    "--wrap": "name the script: dslaunch slurm CLUSTER.yaml SCRIPT [ARGS]...",
    "--daemon": "use --detach",
    "--background": "use --detach",
}
"""Options of other launchers that dslaunch does not have, and what to do instead."""
SBATCH_LETTERS: Mapping[str, str] = {
    "-A": "account",
    "-C": "constraint",
    "-J": "job_name",
    "-p": "partition",
    "-t": "time",
    "-w": "nodelist",
}
"""Short options of sbatch, and the key of `slurm:` in the cluster file."""
SUBMITTING = ("run", "slurm")
"""The commands that may be given options of sbatch."""


def own_name(name: str) -> str:
    """Return dslaunch's name of an option, without dashes: with `-` for `_`, and its own word."""
    if len(name) < 2:
        return name
    spelled = name.replace("_", "-")
    return SAME.get(spelled, spelled)


def instead(option: str, command: str) -> str | None:
    """Return what to do instead of an option such as `--node_rank`; None: not known.

    `command` is the last word of the command to which the option was given.
    """
    name = option.partition("=")[0]
    known = INSTEAD.get(_spelled(name))
    if known is None and command in SUBMITTING:
        return _of_sbatch(name)
    return known


def _spelled(option: str) -> str:
    """Return an option as `INSTEAD` spells it."""
    return f"--{own_name(option[2:])}" if option.startswith("--") else option


def _of_sbatch(option: str) -> str | None:
    """Return how to set an option of sbatch; None: the cluster file has no key for it."""
    from dslaunch.cluster.slurm_section import SlurmSection

    key = SBATCH_LETTERS.get(option, option.removeprefix("--").replace("-", "_"))
    if key not in SlurmSection.KEYS:
        return None
    in_file = f"set `slurm: {{{key}: VALUE}}` in the cluster file"
    return f"{in_file}, or use dslaunch slurm --set {key}=VALUE"
