"""What the checks of InfiniBand and RoCE have in common: the kernel's own tables of RDMA ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct, field

from dslaunch.plural import listed
from dslaunch.preflight.check import Asked, NodeAnswers, Scope, UnansweredError
from dslaunch.preflight.checks._wiring import PORTS

_PORT = re.compile(r"^/sys/class/infiniband/([^/]+)/ports/(\d{1,9})/(?:counters/)?(\w+)$")
_DEVICE = re.compile(r"^/sys/class/infiniband/([^/]+)/(?:device/)?(\w+)$")


class Port(Struct, frozen=True):
    """One port of an RDMA device."""

    device: str
    number: int
    fields: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name for users: the device, with the number of the port if it is not the first."""
        return self.device if self.number == 1 else f"{self.device} port {self.number}"

    @property
    def state(self) -> str | None:
        """`ACTIVE`, `INIT`, `ARMED`, `DOWN`; None: not known."""
        return _word(self.fields.get("state", ""))

    @property
    def physical(self) -> str | None:
        """`LinkUp`, `Polling`, `Disabled`, ...; None: not known."""
        return _word(self.fields.get("phys_state", ""))

    @property
    def ethernet(self) -> bool:
        """Whether it is RoCE."""
        return self.fields.get("link_layer", "").strip() == "Ethernet"

    @property
    def rate(self) -> float | None:
        """Gb/s; None: not known."""
        found = re.match(r"(\d{1,9}(?:\.\d{1,9})?) Gb/sec", self.fields.get("rate", ""))
        return float(found[1]) if found else None

    @property
    def mode(self) -> str:
        """Lanes and generation: `4X NDR`."""
        found = re.search(r"\(([^()]*)\)", self.fields.get("rate", ""))
        return found[1] if found else ""


class Device(Struct, frozen=True):
    """One RDMA device."""

    name: str
    ports: tuple[Port, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether a port of it is."""
        return any(port.state == "ACTIVE" for port in self.ports)


def _word(text: str) -> str | None:
    found = re.match(r"\d+: (\w+)", text.strip())
    return found[1] if found else None


def ask(scope: Scope) -> Asked:
    """What costs a node nothing."""
    del scope
    return {"ports": PORTS}


def devices(a: NodeAnswers) -> dict[str, Device]:
    """The node's RDMA devices by name. Raises UnansweredError."""
    return a.once(_devices)


def files(a: NodeAnswers) -> dict[str, str]:
    """The kernel's files of the node's RDMA devices, without counters: these differ from node to
    node, and say nothing of the devices. Raises UnansweredError."""
    return dict(a.part(_files))


def _files(a: NodeAnswers) -> tuple[tuple[str, str], ...]:
    return tuple(each for each in a.value(PORTS).items() if "/counters/" not in each[0])


def _devices(a: NodeAnswers) -> dict[str, Device]:
    ports: dict[str, dict[int, dict[str, str]]] = {}
    fields: dict[str, dict[str, str]] = {}
    for path, text in files(a).items():
        at = _place(path)
        if at is None:
            continue
        if at.port is None:
            fields.setdefault(at.device, {})[at.field] = text.strip()
        else:
            ports.setdefault(at.device, {}).setdefault(at.port, {})[at.field] = text
    return {
        name: Device(
            name,
            tuple(Port(name, n, of) for n, of in sorted(ports.get(name, {}).items())),
            fields.get(name, {}),
        )
        for name in sorted({*ports, *fields}, key=natural)
    }


class _Place(NamedTuple):
    """What a file of the kernel is about."""

    device: str
    port: int | None
    """None: it is about the device."""
    field: str


@lru_cache(maxsize=4096)
def _place(path: str) -> _Place | None:
    """Return what a file is about; None: it is of another kind. All nodes have the same paths."""
    if of_port := _PORT.match(path):
        return _Place(of_port[1], int(of_port[2]), of_port[3])
    if of_device := _DEVICE.match(path):
        return _Place(of_device[1], None, of_device[2])
    return None


def in_use(a: NodeAnswers) -> bool:
    """Whether an RDMA device has a port that is up. Raises UnansweredError."""
    return any(device.active for device in devices(a).values())


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts mlx5_2 before mlx5_10."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
    ]


def ports(a: NodeAnswers) -> tuple[Port, ...]:
    """All ports of the node. Raises UnansweredError."""
    return tuple(port for device in devices(a).values() for port in device.ports)


def reported_ports(a: NodeAnswers) -> tuple[Port, ...] | None:
    """All ports of the node; None: it did not report them."""
    try:
        return ports(a)
    except UnansweredError:
        return None


def named(names: Iterable[str]) -> str:
    """Some names in words."""
    return listed(sorted(set(names), key=natural), 4)
