"""What a file is that was given instead of a cluster file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOOKED_AT = 200
"""Lines at the beginning of a file that are looked at."""
_COUNTED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[0-9]{1,4}")
_NAME = re.compile(r"(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SECTION = re.compile(r"\[[A-Za-z0-9_:.-]+\]")
_DEEPSPEED = frozenset({
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16",
    "gradient_accumulation_steps", "gradient_clipping", "steps_per_print",
})  # fmt: skip
_ACCELERATE = frozenset({
    "compute_environment", "distributed_type", "machine_rank", "num_machines", "main_process_ip",
    "deepspeed_config", "fsdp_config",
})  # fmt: skip
_TRAINING = frozenset({
    "model_name_or_path", "per_device_train_batch_size", "learning_rate", "num_train_epochs",
    "output_dir", "dataset_name", "base_model",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stranger:
    """Another kind of file, and what there is for it."""

    kind: str
    """With its article: `a DeepSpeed config`."""
    hint: str
    """May hold `{file}`."""


def recognized(text: str, data: Any, name: str) -> Stranger | None:
    """Return what a file is; None: not known. `data` is what it says as YAML, None if it is none.

    A file with `nodes` is taken for a cluster file, whatever else is wrong with it.
    """
    if isinstance(data, dict):
        return None if "nodes" in data else _by_keys(data)
    lines = [line.strip() for line in text.split("\n")[:LOOKED_AT]]
    lines = [line for line in lines if line]
    if any(line.startswith("nodes:") for line in lines):
        return None
    for look in (_script, _hosts, _configuration):
        found = look(lines, name)
        if found is not None:
            return found
    return None


def _by_keys(data: dict[str, Any]) -> Stranger | None:
    keys = {str(key) for key in data}
    for needed, kind, hint in _BY_KEYS:
        if needed <= keys:
            return Stranger(kind, hint)
    if len(keys & _ACCELERATE) >= 2:
        return Stranger(
            "a config of accelerate",
            "a cluster file names nodes: `dslaunch init --hosts 'node[1-4]' --slots 8`; start with "
            "`launcher: accelerate`, which needs no such config",
        )
    if keys & _DEEPSPEED and keys.isdisjoint({"hosts", "host"}):
        return Stranger(
            "a DeepSpeed config",
            "`dslaunch config lint {file}` checks it; a cluster file names nodes",
        )
    groups = [value for value in data.values() if isinstance(value, dict)]
    if any({"hosts", "children"} & set(map(str, group)) for group in groups):
        return Stranger("an inventory of Ansible", _INIT)
    if len(keys & _TRAINING) >= 2:
        return Stranger(
            "a training config",
            "pass it to the script: `dslaunch run CLUSTER.yaml train.py {file}`",
        )
    return None


_INIT = "`dslaunch init --hosts 'node[1-4]' --slots 8` makes a cluster file from names"
_BY_KEYS: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"apiVersion", "kind"}), "a Kubernetes manifest",
     "dslaunch reaches nodes over SSH or SLURM, not through Kubernetes"),
    (frozenset({"services"}), "a file of Docker Compose", _INIT),
    (frozenset({"cluster_name", "provider"}), "a cluster config of Ray", _INIT),
    (frozenset({"resources", "run"}), "a task of SkyPilot", _INIT),
)  # fmt: skip


def _script(lines: list[str], name: str) -> Stranger | None:
    if any(line.startswith("#SBATCH") for line in lines):
        return Stranger("an sbatch script", "`dslaunch slurm lint {file}` checks it")
    if name.endswith(".py"):
        return Stranger(
            "a Python script", "name the cluster file first: `dslaunch run CLUSTER.yaml {file}`"
        )
    if lines and lines[0].startswith("#!"):
        return Stranger("a script", "name the cluster file first")
    return None


def _hosts(lines: list[str], name: str) -> Stranger | None:
    words = [line for line in lines if not line.startswith("#")]
    if any(map(_has_slots, words)):
        return Stranger("a hostfile", "`dslaunch init --hostfile {file}` converts it")
    tests: tuple[Callable[[str], Any], ...] = (_COUNTED.fullmatch, _NAME.fullmatch)
    for test, more in zip(tests, ("", " --slots 8"), strict=True):
        if words and all(test(line) for line in words):
            hint = f"`dslaunch init --hostfile {{file}}{more}` converts it"
            return Stranger("a list of hosts", hint)
    return None


def _has_slots(line: str) -> bool:
    """Whether a line is DeepSpeed's `host slots=N`."""
    words = line.split(maxsplit=2)
    return len(words) > 1 and words[1].startswith("slots=") and words[1][6:].isdecimal()


def _configuration(lines: list[str], name: str) -> Stranger | None:
    starts = {line.split()[0].lower() for line in lines}
    if "host" in starts and starts & {"hostname", "user", "port", "identityfile", "proxyjump"}:
        return Stranger(
            "an SSH configuration", "`dslaunch init --ssh-config {file}` makes a cluster file of it"
        )
    if any(line.startswith(("NodeName=", "PartitionName=", "ClusterName=")) for line in lines):
        return Stranger("a configuration of SLURM", "`dslaunch init --slurm PARTITION` asks SLURM")
    if any("ansible_" in line for line in lines) or any(
        line.startswith(("- hosts:", "hosts:")) for line in lines
    ):
        return Stranger("a file of Ansible", _INIT)
    if any(line.startswith("apiVersion:") for line in lines):
        return Stranger(_BY_KEYS[0][1], _BY_KEYS[0][2])
    if lines and _SECTION.fullmatch(lines[0]):
        return Stranger("an INI or TOML file", _INIT)
    if any(
        f'"{key}"' in line for line in lines for key in ("zero_optimization", "train_batch_size")
    ):
        return Stranger("a DeepSpeed config", "`dslaunch config lint {file}` checks it")
    return None
