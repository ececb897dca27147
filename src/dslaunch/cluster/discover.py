"""A first cluster file from what is already written down somewhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from dslaunch.cluster.hostfile import parse_hostfile
from dslaunch.cluster.nodeset import expand, fold
from dslaunch.errors import UsageError

DEFAULT_SLOTS = 8


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found: hosts with their slots, and where."""

    source: str
    """In words for the file's first line: `hostfile hosts.txt`."""
    nodes: tuple[tuple[str, int], ...]
    transport: str = "fabric"
    guessed_slots: bool = False
    """Nobody said how many slots there are."""


def from_hostfile(text: str, name: str) -> Discovered:
    """The hosts of a DeepSpeed hostfile. Raises ConfigError."""
    return Discovered(f"hostfile {name}", parse_hostfile(text, name))


def from_hosts(folded: str, slots: int | None) -> Discovered:
    """A list of names such as `node[01-04],old01`. Raises UsageError."""
    try:
        hosts = expand(folded)
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from None
    nodes = tuple((host, slots or DEFAULT_SLOTS) for host in hosts)
    return Discovered(f"hosts {folded}", nodes, guessed_slots=slots is None)


def from_ssh_config(text: str, slots: int | None) -> Discovered:
    """The `Host` entries of an ssh_config, those with wildcards left out. Raises UsageError."""
    words = re.findall(r"(?im)^\s*host\s*[= ]\s*(.+)$", text)
    names = [n for line in words for n in line.split() if not set(n) & set("*?!\"'")]
    hosts = dict.fromkeys(names)
    if not hosts:
        raise UsageError("the ssh config has no `Host` entry without wildcards")
    nodes = tuple((host, slots or DEFAULT_SLOTS) for host in hosts)
    return Discovered("~/.ssh/config", nodes, guessed_slots=slots is None)


def from_slurm(environ: Mapping[str, str], slots: int | None) -> Discovered:
    """The nodes of the SLURM allocation that we are in. Raises UsageError.

    GPU counts may be `8`, `a100:4` or `gpu:a100:4` (sbatch's manual, --gpus-per-node).
    """
    folded = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not folded:
        raise UsageError("SLURM_JOB_NODELIST is not set", hint="call it inside salloc or a job")
    counted = environ.get("SLURM_GPUS_ON_NODE") or environ.get("SLURM_GPUS_PER_NODE") or ""
    count = counted.rpartition(":")[2]
    found = slots or (int(count) if count.isdigit() else None)
    nodes = tuple((host, found or DEFAULT_SLOTS) for host in expand(folded))
    return Discovered("the SLURM allocation", nodes, guessed_slots=found is None)


def from_machine(listed: str, slots: int | None) -> Discovered:
    """This machine alone, from what `nvidia-smi -L` lists; two slots if it lists nothing."""
    gpus = sum(line.startswith("GPU ") for line in listed.splitlines())
    count = slots or gpus or 2
    return Discovered("this machine", (("localhost", count),), "local", not (slots or gpus))


def cluster_yaml(found: Discovered) -> str:
    """A commented cluster file; equal nodes in one entry."""
    from dslaunch.render.templates import render

    groups = groupby(found.nodes, key=lambda node: node[1])
    entries = [(fold([host for host, _ in same]), slots) for slots, same in groups]
    return render("cluster.yaml.j2", found=found, entries=entries)
