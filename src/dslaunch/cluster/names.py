"""Validate names of hosts and addresses."""

from __future__ import annotations

import ipaddress
import re

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_DOTTED = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
_WITH_PORT = re.compile(r"[^:]*:[0-9]+")


def host_fault(name: str) -> Mistake | None:
    """Return the mistake in a host name; None: valid.

    `@`, `:` and `,` would break DeepSpeed's include and exclude filters (0.19.8,
    launcher/runner.py), and a leading `-` would be an option of ssh.
    """
    if _HOST.fullmatch(name):
        return _number_fault(name)
    if _VARIABLE.search(name):
        return mistake(MistakeCode.VARIABLE)
    if "@" in name or _WITH_PORT.fullmatch(name):
        return mistake(MistakeCode.USER_OR_PORT, name=name)
    if ":" in name:
        return mistake(MistakeCode.IPV6_HOST, name=name)
    return mistake(MistakeCode.INVALID_HOST, name=name)


def address_fault(address: str) -> Mistake | None:
    """Return the mistake in an address (host name, IPv4 or IPv6); None: valid."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        if ":" in address:
            return mistake(MistakeCode.INVALID_IPV6, name=address)
        fault = host_fault(address)
        if fault is not None and fault.code is MistakeCode.INVALID_HOST:
            return mistake(MistakeCode.INVALID_ADDRESS, name=address)
        return fault
    if number.is_unspecified:
        return mistake(MistakeCode.UNSPECIFIED_ADDRESS, name=address)
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address or a host name is that of the loopback interface."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def plain_address(address: str) -> str:
    """Return an address in its normal form, which is equal for equal addresses."""
    return str(ipaddress.IPv6Address(address)) if ":" in address else address


def _number_fault(name: str) -> Mistake | None:
    if not _DOTTED.fullmatch(name):
        return None
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return mistake(MistakeCode.INVALID_IPV4, name=name)
    return None
