"""Sources of a first cluster file: hostfile, ssh_config, SLURM allocation, this machine. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from dslaunch.cluster.hostfile import parse_hostfile
from dslaunch.cluster.mistakes import Mistake
from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import InvalidNodeSet, expand
from dslaunch.cluster.slurm_variables import gpus_per_node, node_lists
from dslaunch.errors import ErrorCode, SelectionError, UsageError
from dslaunch.notes import Note, NoteCode, note

DEFAULT_SLOTS = 8


class DiscoveryNote(NoteCode):
    """A part of an ssh_config that was not used."""

    JUMP_HOST = "jump-host", "excluded, because it is a jump host of other nodes: {host}"
    OTHER_NAME = "other-name", "excluded, because it is another name of {first}: {host}"
    INCLUDES_NOT_READ = "includes-not-read", "files included by the ssh config were not read"


_GPU = re.compile(r"(?m)^GPU ([0-9]+):")


class Discovered(Struct, frozen=True):
    """Hosts with their slots, and the source that names them."""

    source: str
    """Text for the first line of the file: `hostfile hosts.txt`."""
    nodes: tuple[tuple[str, int], ...]
    transport: str = "auto"
    guessed_slots: bool = False
    """The number of slots is a guess; the source does not state it."""
    notes: tuple[Note, ...] = ()
    """Notes for the user, for example about excluded hosts."""
    counts_gpus: bool = True
    """Whether SLURM configures GPUs on the nodes."""
    gpu_types: tuple[tuple[str, str], ...] = ()
    """Hosts and their GPU type in SLURM; only hosts with a GPU type."""
    users: tuple[tuple[str, str], ...] = ()
    """Hosts and their login users; only hosts for which the source names a user."""
    config_file: str | None = None
    """Path of the ssh_config with these hosts; None: the default one."""


def from_hostfile(text: str, name: str, slots: int | None = None) -> Discovered:
    """Return the hosts of a hostfile; `slots` is for lines without slots. Raises ConfigError."""
    lines = parse_hostfile(text, name, slots)
    nodes = tuple((line.host, line.slots) for line in lines)
    users = tuple((line.host, line.user) for line in lines if line.user is not None)
    return Discovered(f"hostfile {name}", nodes, users=users)


def from_hosts(folded: str, slots: int | None) -> Discovered:
    """Return the hosts of a list such as `node[01-04],old01`. Raises UsageError."""
    hosts = _hosts(folded, "--hosts")
    return Discovered(f"hosts {folded}", _alike(hosts, slots), guessed_slots=slots is None)


def from_ssh_config(text: str, slots: int | None, file: str | None = None) -> Discovered:
    """Return the `Host` entries of an ssh_config that look like nodes. Raises SelectionError
    if there are none, and UsageError.

    Excluded are patterns, jump hosts, hosts whose user is `git`, and second names of a machine
    (same HostName and port). `file` is the path of an ssh_config other than the user's; ssh needs
    it to resolve the names.
    """
    settings = list(_ssh_settings(text))
    hosts = _settings_by_host(settings)
    jumps: set[str] = set()
    for _, key, value in settings:
        if key == "proxyjump":
            jumps.update(map(_hop_name, value.split(",")))
        elif key == "proxycommand":
            jumps.update(word for word in value.split() if word in hosts)
    # an address in ProxyJump may be the HostName of an alias
    passed = {name for name, own in hosts.items() if {name, own.get("hostname", "")} & jumps}
    notes = [note(DiscoveryNote.JUMP_HOST, host=name) for name in passed]
    machines: dict[tuple[str, str], str] = {}
    for name, own in hosts.items():
        if name in passed or own.get("user") == "git":
            continue
        machine = own.get("hostname", name).lower().replace("%h", name), own.get("port", "22")
        first = machines.setdefault(machine, name)
        if first != name:
            notes.append(note(DiscoveryNote.OTHER_NAME, host=name, first=first))
    if not machines:
        raise SelectionError.coded(ErrorCode.NO_SSH_HOSTS)
    if any(key == "include" for _, key, _ in settings):
        notes.append(note(DiscoveryNote.INCLUDES_NOT_READ))
    return Discovered(
        "the ssh config",
        _alike(machines.values(), slots),
        config_file=file,
        guessed_slots=slots is None,
        notes=tuple(notes),
    )


def _settings_by_host(settings: list[tuple[list[str], str, str]]) -> dict[str, dict[str, str]]:
    """Return the settings of each `Host` line; the first value of a keyword wins."""
    hosts: dict[str, dict[str, str]] = {}
    for names, keyword, value in settings:
        for name in names:
            hosts.setdefault(name, {}).setdefault(keyword, value)
    return hosts


def _hop_name(hop: str) -> str:
    """Return the host of `ssh://user@host:port`."""
    return hop.strip().removeprefix("ssh://").rpartition("@")[2].partition(":")[0]


def from_slurm(environ: Mapping[str, str], slots: int | None) -> Discovered:
    """Return the nodes of the current SLURM allocation. Raises UsageError."""
    nodes: list[tuple[str, int]] = []
    guessed = False
    for listed in node_lists(environ):
        found = slots or gpus_per_node(environ, listed.suffix)
        guessed |= found is None
        nodes += _alike(_hosts(listed.folded, listed.variable), found)
    return Discovered("the SLURM allocation", tuple(nodes), guessed_slots=guessed)


def from_machine(listed: str, slots: int | None) -> Discovered:
    """Return this machine with the GPUs that `nvidia-smi -L` lists; two slots without a GPU."""
    gpus = len(set(_GPU.findall(listed)))
    count = slots or gpus or 2
    guessed = not (slots or gpus)
    nodes = (("localhost", count),)
    return Discovered("this machine", nodes, transport="local", guessed_slots=guessed)


def _alike(hosts: Iterable[str], slots: int | None) -> tuple[tuple[str, int], ...]:
    """Return the hosts, each with `slots`. Raises UsageError for more than the maximum."""
    if slots is not None and slots > MOST_SLOTS:
        raise UsageError.coded(ErrorCode.TOO_MANY_SLOTS, slots=slots, limit=MOST_SLOTS)
    return tuple((host, slots or DEFAULT_SLOTS) for host in hosts)


def _hosts(folded: str, source: str) -> tuple[str, ...]:
    """Expand a list of names. Raises UsageError for names that a cluster file cannot have."""
    try:
        hosts = expand(folded)
    except InvalidNodeSet as error:
        raise _invalid_hosts(source, error.mistake) from None
    for fault in filter(None, map(host_fault, hosts)):
        raise _invalid_hosts(source, fault)
    if len(set(hosts)) < len(hosts):
        twice = Counter(hosts).most_common(1)[0][0]
        raise UsageError.coded(ErrorCode.REPEATED_HOST, source=source, name=twice)
    return hosts


def _invalid_hosts(source: str, found: Mistake) -> UsageError:
    return UsageError.coded(
        ErrorCode.INVALID_HOSTS, source=source, error=str(found), mistake=found.code.value
    )


def _ssh_settings(text: str) -> Iterator[tuple[list[str], str, str]]:
    """Return every setting of an ssh_config with the hosts that it applies to.

    A line is `Keyword value` or `Keyword=value`; keywords are case-insensitive (ssh_config(5)).
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
