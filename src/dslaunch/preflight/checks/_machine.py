"""Questions that several checks ask of a machine, and how their answers are read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from msgspec import Struct

from dslaunch.launch.command import below_home, quote_in_line
from dslaunch.preflight.check import NodeAnswers, Question, QuestionPerNode, Scope
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.protocol.survey import HeldAddress

NVIDIA = Question("read", ["/proc/driver/nvidia/version"])
"""The version of the NVIDIA kernel driver: the cheapest sign of a GPU."""
MEMORY = Question("read", ["/proc/meminfo"])
INTERFACES = Question("interfaces")
INFINIBAND = Question("read", ["/sys/class/infiniband/*/ports/*/state"])
"""The state of every port of a card for RDMA; nothing where there is none."""
CONTAINER = Question("read", ["/.dockerenv", "/run/.containerenv"])
_MEMORY = re.compile(r"^(\w{1,64}):\s+(\d{1,15}) kB", re.MULTILINE)
VIRTUAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "podman", "lxc")
"""Prefixes of virtual interfaces, which reach no other node."""
GIB = 1 << 30
NETWORK_TYPES = frozenset(
    [
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "wekafs",
        "panfs",
        "cifs",
        "smb3",
        "glusterfs",
        "orangefs",
        "pvfs2",
        "virtiofs",
        "9p",
        "afs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.goofys",
        "fuse.sshfs",
    ]
)
"""File systems whose server may fail while the node lives; proc(5) names."""
ALL_PAIRS = 32
"""Up to so many nodes every node measures and looks up every other one."""


def has_active_port(states: Mapping[str, str]) -> bool:
    """Return whether a port for RDMA is active, by an answer to INFINIBAND: `4: ACTIVE`. NCCL uses
    no other ports."""
    return any(state.endswith(": ACTIVE") for state in states.values())


def linux_release(a: NodeAnswers) -> tuple[int, int]:
    """Return the major and minor release of the node's Linux; (0, 0): not known."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", a.kind.kernel)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def neighbors(hosts: Sequence[str], at: int) -> list[str]:
    """Return whom the node at a place measures or looks up: up to ALL_PAIRS nodes all others, else
    those 1, 2, 4, 8, ... places on, so that the pairs grow as the nodes times their logarithm."""
    count = len(hosts)
    steps = _all_steps(count) if count <= ALL_PAIRS else _doubled_steps(count)
    return [hosts[(at + step) % count] for step in steps]


def _all_steps(count: int) -> Sequence[int]:
    return range(1, count)


def _doubled_steps(count: int) -> Sequence[int]:
    return [1 << power for power in range((count - 1).bit_length())]


def resolve(scope: Scope) -> QuestionPerNode:
    """Return the question for a node's own address and those of its neighbors, by their names."""
    return scope.once(_resolve)


def _resolve(scope: Scope) -> QuestionPerNode:
    hosts = [node.host for node in scope.nodes]
    if len(hosts) <= ALL_PAIRS:
        return QuestionPerNode(dict.fromkeys(hosts, Question("resolve", hosts)))
    return QuestionPerNode(
        {host: Question("resolve", [host, *neighbors(hosts, at)]) for at, host in enumerate(hosts)}
    )


def path_question(path: str) -> Question:
    """What a path is; a dead file server costs five seconds, side by side with all others."""
    return Question("path", path, 5)


def path_word(path: str) -> str:
    """Return a path as a word of a command to copy. A leading `~` is not quoted: the shell expands
    it on the node."""
    below = below_home(path)
    if below is None:
        return quote_in_line(path)
    return f"~/{quote_in_line(below[1:])}" if below[1:] else "~"


def is_missing(a: NodeAnswers, path: str) -> bool:
    """Return whether the node reported that a path does not exist."""
    return a.reason(path_question(path)) is UnansweredReason.MISSING


def paths(scope: Scope) -> dict[str, str]:
    """Where a job writes: path -> what it is."""
    named = dict.fromkeys(scope.directories, "working directory or checkpoints")
    local = scope.cluster.storage.node_local
    if local:
        named.setdefault(local, "node-local storage")
    named.setdefault("~", "home directory")
    named.setdefault("/tmp", "temporary files")
    return named


def memory(a: NodeAnswers) -> dict[str, int]:
    """The kernel's table of memory, in bytes. Raises UnansweredError."""
    text = a.value(MEMORY).get("/proc/meminfo", "")
    return {name: int(kib) * 1024 for name, kib in _MEMORY.findall(text)}


def address(a: NodeAnswers) -> str | None:
    """Return what the other nodes dial: the address in the cluster file, the one that its name
    resolves to, or one of its interfaces.

    A node can name any address: others then connect to it, but send nothing before the token of
    this preflight was read from there. None of its own addresses stands for those who dial.
    """
    return a.once(_address)


def _address(a: NodeAnswers) -> str | None:
    if a.node.address is not None:
        return a.node.address
    interfaces: list[HeldAddress] = a.found(INTERFACES) or []
    own = [i for i in interfaces if i["up"] and not i["loopback"]]
    physical = [i["address"] for i in own if not i["name"].startswith(VIRTUAL)]
    named = (a.found(resolve(a.scope).of[a.host]) or {}).get(a.host, [])
    good = [text for text in named if text in physical]
    v4 = [text for text in physical if ":" not in text]
    return next(filter(_of_one_machine, [*good, *v4, *physical]), None)


@cache
def _of_one_machine(text: str) -> bool:
    """Return whether other nodes can reach one node by an address."""
    named = ipaddress.ip_address(text)
    found = getattr(named, "ipv4_mapped", None) or named
    return not (found.is_loopback or found.is_unspecified or found.is_multicast)


def has_address(a: NodeAnswers) -> bool:
    """Return whether there is an address that the other nodes can dial."""
    return a.part(_has_address)


def _has_address(a: NodeAnswers) -> bool:
    return address(a) is not None


class OwnInterface(Struct, frozen=True):
    """The interface with the address that the other nodes dial. Without the address, which is
    another one on each node, it is equal on most."""

    name: str
    up: bool
    speed: int | None
    """Mbit/s; None: not reported by the driver."""
    mtu: int | None
    """Bytes."""
    link_local: bool
    """Whether the address is."""


def own_interface(a: NodeAnswers) -> OwnInterface | None:
    """Return the interface with the address that the other nodes dial. Raises UnansweredError."""
    return a.part(_own_interface)


def _own_interface(a: NodeAnswers) -> OwnInterface | None:
    interfaces: list[HeldAddress] = a.value(INTERFACES)
    mine = address(a)
    for held in interfaces:
        if held["address"] == mine:
            return OwnInterface(
                name=held["name"],
                up=held["up"],
                speed=held["speed"],
                mtu=held["mtu"],
                link_local=_is_link_local(mine),
            )
    return None


def _is_link_local(text: str) -> bool:
    if ":" not in text:
        return text.startswith("169.254.")  # RFC 3927
    return ipaddress.ip_address(text).is_link_local


def interface_of(a: NodeAnswers) -> str | None:
    """The name of the interface that a run gives to NCCL and Gloo; None: it is not known."""
    given = a.scope.cluster.network.interface
    if given is not None or not a.answered(INTERFACES):
        return given
    own = own_interface(a)
    return own.name if own else None


def mounts(text: str) -> Iterator[tuple[str, str]]:
    """Mount point and type of each line of /proc/self/mountinfo; proc(5)."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, more = left.split(), right.split()
        if len(fields) >= 6 and len(more) >= 2:
            yield _unescaped(fields[4]), more[0]


def _unescaped(name: str) -> str:
    """A name in which proc(5) writes some characters as octal numbers; few names have any."""
    if "\\" not in name:
        return name
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), name)


def space(count: float) -> str:
    """A number of bytes with two digits or so."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
