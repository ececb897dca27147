"""Parse what sysfs and system tools report about the machine besides its GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from dslaunch.topology.model import HostInfo, Nic

_PORT = re.compile(r"/sys/class/infiniband/([^/\s]+)/ports/(\d+)/(state|rate|link_layer):(.*)")
_NET = re.compile(r"/sys/class/infiniband/([^/\s]+)/device/net/(\S+)")
_SPEED = re.compile(r"/sys/class/net/([^/\s]+)/speed:([0-9]{1,9})[ \t]*$", re.MULTILINE)
_CPUS = re.compile(r"/node([0-9]{1,4})/cpulist:[ \t]*(\S+)")
_ROUTE = re.compile(r"\bdev (\S{1,15})(?=\s)(?:[^\n]{0,99}?\bsrc (\S{1,45}))?")
_SETTING = re.compile(r"^((?:NCCL|GLOO)_\w+)=(.*)$", re.MULTILINE)

_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")

Ports = dict[str, dict[str, str]]
"""The files of each port of a device, by port and name of the file."""


def with_ports(nics: tuple[Nic, ...], answers: Mapping[str, str]) -> tuple[Nic, ...]:
    """Return the NICs with state, speed, kind and network interfaces of devices with known
    names."""
    ports: dict[str, Ports] = {}
    for device, port, name, value in _PORT.findall(answers.get("ib", "")):
        ports.setdefault(device, {}).setdefault(port, {})[name] = value.strip()
    nets: dict[str, list[str]] = {}
    for device, interface in _NET.findall(answers.get("ib_net", "")):
        nets.setdefault(device, []).append(interface)
    return tuple(
        _with_ports(nic, ports.get(nic.device or "", {}), nets.get(nic.device or "", []))
        for nic in nics
    )


def _with_ports(nic: Nic, ports: Ports, interfaces: list[str]) -> Nic:
    states = [port["state"] for port in ports.values() if "state" in port]
    # the best port counts: often the second port of a NIC has no cable
    best = [p for p in ports.values() if "ACTIVE" in p.get("state", "")] or list(ports.values())
    rates = [float(rate[0]) for port in best if (rate := _RATE.match(port.get("rate", "")))]
    layers = {port["link_layer"] for port in best if port.get("link_layer")}
    return replace(
        nic,
        interfaces=tuple(interfaces),
        active=any("ACTIVE" in state for state in states) if states else None,
        layer=layers.pop() if len(layers) == 1 else None,
        rate=max(rates, default=None),
    )


def host(answers: Mapping[str, str]) -> HostInfo:
    """Return the facts about the whole machine."""
    virtual, product = _virtual(answers.get("virtual", ""))
    route = _ROUTE.search(answers.get("route", ""))
    speeds = _SPEED.findall(answers.get("speeds", ""))
    numa = {node for node, _ in _CPUS.findall(answers.get("numa", ""))}
    return HostInfo(
        numa_nodes=len(numa) or None,
        virtual=virtual,
        product=product,
        iommu=_iommu(answers.get("iommu", "")),
        acs=_acs(answers.get("acs", "")),
        interface=route[1] if route else None,
        address=route[2] if route else None,
        speeds=tuple((name, int(speed)) for name, speed in speeds),
        settings=tuple(dict(_SETTING.findall(answers.get("settings", ""))).items()),
    )


def _virtual(text: str) -> tuple[bool | None, str | None]:
    words = [line.strip() for line in text.splitlines() if line.strip()]
    if not words or words[0] not in ("virtual", "physical"):
        return None, None
    return words[0] == "virtual", " ".join(words[1:]) or None


def _iommu(text: str) -> bool | None:
    there = re.search(r"^iommus:(.*)$", text, re.MULTILINE)
    if there is None:
        return None
    passed = re.search(r"\biommu(?:\.passthrough)?=(?:pt|1)\b", text)
    return bool(there[1].strip()) and not passed


def _acs(text: str) -> int | None:
    lines = re.findall(r"ACSCtl:.*", text)
    return sum("SrcValid+" in line for line in lines) if lines else None
