"""Recognize a file that was given instead of a cluster file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from dslaunch.cluster import named_hosts
from dslaunch.cluster.nodeset import fold_in_order

LOOKED_AT = 200
"""Number of lines at the beginning of a file that are inspected."""
_COUNTED_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[0-9]{1,4}")
_HOST_AND_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[A-Za-z0-9]*")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_INI_SECTION = re.compile(r"\[[A-Za-z0-9_:.-]+\]")
_DEEPSPEED_LINE = re.compile(r'"(?:zero_optimization|train_batch_size)"')
_TERRAFORM_LIST = re.compile(r"[A-Za-z0-9_-]+ = (?:toset\()?\[")
_WITH_SLOTS = re.compile(r"[^\s:]+\s+slots?\s*=.*")
_COUNTED_BY_SPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\s+[0-9]{1,4}")
_KUBECTL_HEAD = re.compile(r"NAME +STATUS +ROLES ")
_COUNT = re.compile(r":\s+[0-9]{1,4}$")
"""A number of slots after a name, as in `- node01: 8`."""
_DEEPSPEED = frozenset(
    [
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "bf16",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
    ]
)
_ACCELERATE = frozenset(
    [
        "compute_environment",
        "distributed_type",
        "machine_rank",
        "num_machines",
        "main_process_ip",
        "deepspeed_config",
        "fsdp_config",
    ]
)
_TRAINING = frozenset(
    [
        "model_name_or_path",
        "per_device_train_batch_size",
        "learning_rate",
        "num_train_epochs",
        "output_dir",
        "dataset_name",
        "base_model",
    ]
)
_SSH = frozenset(["hostname", "user", "port", "identityfile", "proxyjump"])


class OtherFile(Struct, frozen=True):
    """Another kind of file, and the command for it."""

    kind: str
    """With its article: `a DeepSpeed config`."""
    hint: str
    """May contain `{file}`."""
    is_hostfile: bool = False
    """Whether it lists hosts, so that `dslaunch init --hostfile` reads it."""


def _init(hosts: Sequence[str] = ()) -> str:
    """Return the hint with the command that writes a cluster file, with these hosts if there are
    any; names need no quotes but those of their brackets."""
    folded = fold_in_order(hosts) if 0 < len(hosts) <= named_hosts.MOST else ""
    if not 0 < len(folded) <= LONGEST_HOSTS:
        return INIT
    return f"`dslaunch init --hosts '{folded}' --slots 8` writes a cluster file with its hosts"


INIT = "`dslaunch init --hosts 'node[1-4]' --slots 8` writes a cluster file"
LONGEST_HOSTS = 400
"""Maximum length of folded hosts in a hint."""
_KUBERNETES = OtherFile(
    "a Kubernetes manifest", "dslaunch runs jobs over SSH or SLURM, not on Kubernetes"
)
_ACCELERATE_CONFIG = OtherFile(
    "an accelerate config",
    "write a cluster file with `dslaunch init --hosts 'node[1-4]' --slots 8`; with `launcher: "
    "accelerate` in it this config is not needed",
)
_DEEPSPEED_CONFIG = OtherFile("a DeepSpeed config", "check it with `dslaunch config lint {file}`")
_BY_KEYS: tuple[tuple[Callable[[set[str]], bool], OtherFile], ...] = (
    (lambda keys: keys >= {"apiVersion", "kind"}, _KUBERNETES),
    (lambda keys: "services" in keys, OtherFile("a Docker Compose file", INIT)),
    (
        lambda keys: keys >= {"cluster_name", "provider"},
        OtherFile("a Ray cluster config", INIT),
    ),
    (lambda keys: keys >= {"resources", "run"}, OtherFile("a SkyPilot task", INIT)),
    (lambda keys: len(keys & _ACCELERATE) >= 2, _ACCELERATE_CONFIG),
    (
        lambda keys: bool(keys & _DEEPSPEED) and keys.isdisjoint({"hosts", "host"}),
        _DEEPSPEED_CONFIG,
    ),
    (
        lambda keys: len(keys & _TRAINING) >= 2,
        OtherFile(
            "a training config",
            "pass it to the script: `dslaunch run CLUSTER.yaml train.py {file}`",
        ),
    ),
)
_TERRAFORM = {"type", "value"}
"""Keys of each output of `terraform output -json`."""
_HOSTFILE = "convert it with `dslaunch init --hostfile {file}`"


def is_hostfile_with_slots(text: str) -> bool:
    """Return whether a text is a hostfile, and not a list of names alone."""
    lines = [line.strip() for line in text.split("\n")[:LOOKED_AT]]
    found = _hosts([line for line in lines if line])
    return found is not None and found.hint == _HOSTFILE


def recognized(text: str, data: Any, name: str) -> OtherFile | None:
    """Return the kind of a file; None: unknown. `data` is its content as YAML; None: not YAML.

    A file with `nodes` counts as a cluster file, even if it is invalid.
    """
    if isinstance(data, dict):
        return None if "nodes" in data else _by_keys(data)
    every = [line.strip() for line in text.split("\n")]
    lines = [line for line in every[:LOOKED_AT] if line]
    if _any_starts(lines, "nodes:"):
        return None
    found = _script(lines, name) or _hosts(lines) or _configuration(lines, every)
    return found or _output([line for line in every if line])


def _by_keys(data: dict[str, Any]) -> OtherFile | None:
    keys = {str(key) for key in data}
    for matches, other in _BY_KEYS:
        if matches(keys):
            return other
    groups = [value for value in data.values() if isinstance(value, dict)]
    if any("hosts" in group or "children" in group for group in groups):
        return OtherFile("an Ansible inventory", _init(named_hosts.of_inventory(data)))
    if "terraform_version" in data and isinstance(data.get("outputs"), dict):
        return OtherFile("a Terraform state", _init(named_hosts.of_terraform(data["outputs"])))
    if groups and len(groups) == len(data) and all(group.keys() >= _TERRAFORM for group in groups):
        return OtherFile("output of Terraform", _init(named_hosts.of_terraform(data)))
    return None


def _any_starts(lines: list[str], *beginnings: str) -> bool:
    return any(line.startswith(beginnings) for line in lines)


def _script(lines: list[str], name: str) -> OtherFile | None:
    if _any_starts(lines, "#SBATCH"):
        return OtherFile("an sbatch script", "check it with `dslaunch slurm lint {file}`")
    if name.endswith(".py"):
        hint = "put the cluster file first: `dslaunch run CLUSTER.yaml {file}`"
        return OtherFile("a Python script", hint)
    if _any_starts(lines[:1], "#!"):
        return OtherFile("a script", "put the cluster file first")
    return None


def _hosts(lines: list[str]) -> OtherFile | None:
    entries = [line for line in lines if not line.startswith("#")]
    if any(_WITH_SLOTS.fullmatch(entry) for entry in entries):
        return OtherFile("a hostfile", _HOSTFILE, is_hostfile=True)
    if entries and all(_COUNTED_BY_SPACE.fullmatch(entry) for entry in entries):
        return OtherFile("a hostfile", _HOSTFILE, is_hostfile=True)
    counted = any(_COUNTED_HOST.fullmatch(entry) for entry in entries)
    if counted and all(_HOST_AND_WORD.fullmatch(entry) for entry in entries):
        return OtherFile("a list of hosts", _HOSTFILE, is_hostfile=True)
    if entries and all(_HOST.fullmatch(entry) for entry in entries):
        hint = "convert it with `dslaunch init --hostfile {file} --slots 8`"
        return OtherFile("a list of hosts", hint, is_hostfile=True)
    return None


def _configuration(lines: list[str], every: list[str]) -> OtherFile | None:
    keywords = {line.split()[0].lower() for line in lines}
    if "host" in keywords and keywords & _SSH:
        hint = "write a cluster file with `dslaunch init --ssh-config {file}`"
        return OtherFile("an SSH configuration", hint)
    if _any_starts(lines, "NodeName=", "PartitionName=", "ClusterName="):
        hint = "write a cluster file with `dslaunch init --slurm PARTITION`"
        return OtherFile("a SLURM configuration", hint)
    if any("ansible_" in line for line in lines) or _any_starts(lines, "- hosts:", "hosts:"):
        return OtherFile("an Ansible file", _init(named_hosts.of_inventory_lines(every)))
    if _any_starts(lines, "apiVersion:"):
        return _KUBERNETES
    if lines and _INI_SECTION.fullmatch(lines[0]):
        return OtherFile("an INI or TOML file", INIT)
    if any(map(_DEEPSPEED_LINE.search, lines)):
        return _DEEPSPEED_CONFIG
    return None


def _output(lines: list[str]) -> OtherFile | None:
    """Return what another program has printed or reads as text."""
    hosts = named_hosts.of_hosts_file(lines)
    if hosts:
        return OtherFile("a hosts file such as /etc/hosts", _init(hosts))
    if any(_TERRAFORM_LIST.fullmatch(line) for line in lines):
        return OtherFile("output of Terraform", _init(named_hosts.of_terraform_lines(lines)))
    if _any_starts(lines[:1], "PARTITION ", "NODELIST "):
        hint = "write a cluster file with `dslaunch init --slurm PARTITION`"
        return OtherFile("output of sinfo", hint)
    if _KUBECTL_HEAD.match(lines[0] if lines else ""):
        convert = _init(named_hosts.of_table(lines))
        hint = f"dslaunch runs jobs over SSH or SLURM, not on Kubernetes; {convert}"
        return OtherFile("output of kubectl", hint)
    hosts = named_hosts.of_csv(lines)
    if hosts:
        return OtherFile("a CSV file", _init(hosts))
    hosts = named_hosts.of_names([_COUNT.sub("", line.removeprefix("- ")) for line in lines])
    return OtherFile("a list of hosts", _init(hosts)) if hosts else None
