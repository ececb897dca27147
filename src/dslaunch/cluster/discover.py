"""A first cluster file from what is already written down somewhere. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dslaunch.cluster.hostfile import parse_hostfile
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import expand, numbers
from dslaunch.errors import UsageError

DEFAULT_SLOTS = 8

_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_COUNTED = re.compile(r"([0-9]{1,4})(?:\(x([0-9]{1,6})\))?")
_GPU = re.compile(r"(?m)^GPU ([0-9]+):")


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found: hosts with their slots, and where."""

    source: str
    """In words for the file's first line: `hostfile hosts.txt`."""
    nodes: tuple[tuple[str, int], ...]
    transport: str = "auto"
    guessed_slots: bool = False
    """Nobody said how many slots there are."""
    notes: tuple[str, ...] = ()
    """What was left out, for people."""
    counts_gpus: bool = True
    """Whether SLURM knows of GPUs there."""
    gpu_types: tuple[tuple[str, str], ...] = ()
    """Hosts and the type of their GPUs as SLURM calls it, where it does."""
    users: tuple[tuple[str, str], ...] = ()
    """Hosts and the users to log in as, where the source names any."""
    config_file: str | None = None
    """The SSH configuration that the names are from, if it is not the usual one."""


def from_hostfile(text: str, name: str, slots: int | None = None) -> Discovered:
    """Take the hosts of a hostfile; `slots` is for lines that name none. Raises ConfigError."""
    lines = parse_hostfile(text, name, slots)
    nodes = tuple((line.host, line.slots) for line in lines)
    users = tuple((line.host, line.user) for line in lines if line.user is not None)
    return Discovered(f"hostfile {name}", nodes, users=users)


def from_hosts(folded: str, slots: int | None) -> Discovered:
    """Take a list of names such as `node[01-04],old01`. Raises UsageError."""
    hosts = _hosts(folded, "--hosts")
    return Discovered(f"hosts {folded}", _alike(hosts, slots), guessed_slots=slots is None)


def from_ssh_config(text: str, slots: int | None, file: str | None = None) -> Discovered:
    """Take the `Host` entries of an ssh_config that look like nodes. Raises UsageError.

    Left out are patterns, jump hosts, hosts whose user is `git`, and further names of a machine:
    those of the same HostName and port. `file` is the configuration's path if it is not the user's
    own; the names mean nothing without it.
    """
    settings = list(_ssh_settings(text))
    hosts = _settings_by_host(settings)
    jumps: set[str] = set()
    for _, key, value in settings:
        if key == "proxyjump":
            jumps.update(map(_hop_name, value.split(",")))
        elif key == "proxycommand":
            jumps.update(word for word in value.split() if word in hosts)
    # an address in ProxyJump may be what an alias stands for
    passed = {name for name, own in hosts.items() if {name, own.get("hostname", "")} & jumps}
    notes = [f"left out, since nodes are reached through it: {name}" for name in passed]
    machines: dict[tuple[str, str], str] = {}
    for name, own in hosts.items():
        if name in passed or own.get("user") == "git":
            continue
        machine = own.get("hostname", name).lower().replace("%h", name), own.get("port", "22")
        first = machines.setdefault(machine, name)
        if first != name:
            notes.append(f"left out, since it is another name of {first}: {name}")
    if not machines:
        raise UsageError("the ssh config has no `Host` entry that looks like a node")
    if any(key == "include" for _, key, _ in settings):
        notes.append("what the ssh config includes was not read")
    return Discovered(
        "the ssh config",
        _alike(machines.values(), slots),
        config_file=file,
        guessed_slots=slots is None,
        notes=tuple(notes),
    )


def _settings_by_host(settings: list[tuple[list[str], str, str]]) -> dict[str, dict[str, str]]:
    """Return the settings of each host that has a `Host` line; the first of a keyword holds."""
    hosts: dict[str, dict[str, str]] = {}
    for names, keyword, value in settings:
        for name in names:
            hosts.setdefault(name, {}).setdefault(keyword, value)
    return hosts


def _hop_name(hop: str) -> str:
    """Return the host of `ssh://user@host:port`."""
    return hop.strip().removeprefix("ssh://").rpartition("@")[2].partition(":")[0]


def from_slurm(environ: Mapping[str, str], slots: int | None) -> Discovered:
    """Take the nodes of the SLURM allocation that we are in. Raises UsageError.

    The parts of a heterogeneous job are known by a suffix, as in SLURM_JOB_NODELIST_HET_GROUP_0
    (SLURM's page on heterogeneous jobs, "Environment Variables").
    """
    size = _count(environ.get("SLURM_HET_SIZE", ""))
    groups = [f"_HET_GROUP_{i}" for i in range(size)] if size else [""]
    nodes: list[tuple[str, int]] = []
    guessed = False
    for group in groups:
        name = f"SLURM_JOB_NODELIST{group}"
        folded = environ.get(name) or environ.get(f"SLURM_NODELIST{group}")
        if not folded:
            raise UsageError(f"{name} is not set", hint="call it inside salloc or a job")
        found = slots or gpus_per_node(environ, group)
        guessed |= found is None
        nodes += _alike(_hosts(folded, name), found)
    return Discovered("the SLURM allocation", tuple(nodes), guessed_slots=guessed)


def from_machine(listed: str, slots: int | None) -> Discovered:
    """Take this machine alone, with the GPUs that `nvidia-smi -L` lists; two slots for none."""
    gpus = len(set(_GPU.findall(listed)))
    count = slots or gpus or 2
    guessed = not (slots or gpus)
    nodes = (("localhost", count),)
    return Discovered("this machine", nodes, transport="local", guessed_slots=guessed)


def gpus_per_node(environ: Mapping[str, str], group: str = "") -> int | None:
    """Say how many GPUs SLURM gives on each node; None: its variables do not say.

    SLURM_GPUS_ON_NODE is a number; SLURM_GPUS_PER_NODE may be `8`, `a100:4`, `gpu:a100:4` or a
    list of such (sbatch's manual, --gpus-per-node); SLURM_JOB_GPUS lists indexes. Else it is
    SLURM_GPUS_PER_TASK times the tasks of SLURM_TASKS_PER_NODE, if those are equal on all nodes.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        counts = [_last(part) for part in environ.get(name + group, "").split(",")]
        if None not in counts and any(counts):
            return sum(filter(None, counts))
    try:
        return len(set(numbers(environ.get(f"SLURM_JOB_GPUS{group}", "")))) or None
    except ValueError:
        pass
    tasks = run_lengths(environ.get(f"SLURM_TASKS_PER_NODE{group}", ""))
    gpus = _last(environ.get(f"SLURM_GPUS_PER_TASK{group}", ""))
    return tasks[0] * gpus or None if gpus and len(set(tasks)) == 1 else None


def run_lengths(text: str) -> tuple[int, ...]:
    """Expand SLURM's run-length code, `2(x3),1` to (2, 2, 2, 1); empty for what is none."""
    parts = [_COUNTED.fullmatch(part) for part in text.split(",")]
    counted = [(int(m[1]), int(m[2] or 1)) for m in parts if m]
    if len(counted) < len(parts) or sum(times for _, times in counted) > 100_000:
        return ()
    return tuple(number for number, times in counted for _ in range(times))


def _last(text: str) -> int | None:
    """Give the count at the end of `gpu:a100:4`; None for what is no count."""
    return _count(text.rpartition(":")[2])


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def _alike(hosts: Iterable[str], slots: int | None) -> tuple[tuple[str, int], ...]:
    """Give each host the same slots. Raises UsageError for more than a cluster file may have."""
    if slots is not None and slots > MOST_SLOTS:
        raise UsageError(f"{slots} slots of a node are too many, at most {MOST_SLOTS} can be")
    return tuple((host, slots or DEFAULT_SLOTS) for host in hosts)


def _hosts(folded: str, source: str) -> tuple[str, ...]:
    """Expand a list of names. Raises UsageError for what no cluster file may have."""
    try:
        hosts = expand(folded)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    for fault in filter(None, map(host_fault, hosts)):
        raise UsageError(f"{source}: {fault}")
    if len(set(hosts)) < len(hosts):
        twice = Counter(hosts).most_common(1)[0][0]
        raise UsageError(f"{source}: {twice!r} is there twice")
    return hosts


def _ssh_settings(text: str) -> Iterator[tuple[list[str], str, str]]:
    """Give every setting of an ssh_config with the hosts that it is for.

    A line is `Keyword value` or `Keyword=value`; keywords are in any case (ssh_config(5)).
    """
    names: list[str] = []
    for line in text.splitlines():
        keyword, _, value = re.sub(r"\s*=\s*|\s+", " ", line.strip(), count=1).partition(" ")
        keyword = keyword.lower()
        if keyword.startswith("#") or not value:
            continue
        if keyword in ("host", "match"):
            words = value.replace('"', " ").split() if keyword == "host" else []
            names = [word for word in words if host_fault(word) is None]
        yield names, keyword, value.strip().strip('"')
