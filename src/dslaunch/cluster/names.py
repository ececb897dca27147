"""What hosts and addresses may be called."""

from __future__ import annotations

import ipaddress
import re

from dslaunch.cluster.nodeset import shortened

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_DOTTED = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_WITH_PORT = re.compile(r"[^:]*:[0-9]+")


def host_fault(name: str) -> str | None:
    """Say what is wrong with a host's name, if anything is.

    `@`, `:` and `,` would break DeepSpeed's include and exclude texts (0.19.8,
    launcher/runner.py), and a leading `-` would be an option of ssh.
    """
    if _HOST.fullmatch(name):
        return _number_fault(name)
    if "@" in name or _WITH_PORT.fullmatch(name):
        return f"{shortened(name)} is no host name; user and port have keys of their own"
    if ":" in name:
        return f"{shortened(name)} is no host name; write an IPv6 address under `address`"
    return (
        f"{shortened(name)} is no host name; expected letters, digits, `.`, `_` and `-`, "
        "not beginning with `-` or `.`"
    )


def address_fault(address: str) -> str | None:
    """Say what is wrong with an address, if anything is: a host's name, or IPv4, or IPv6."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        if ":" in address:
            return f"{shortened(address)} is no IPv6 address"
        fault = host_fault(address)
        return fault and fault.replace("host name", "address", 1)
    return f"{address!r} is no address that others can dial" if number.is_unspecified else None


def is_loopback(address: str) -> bool:
    """Whether an address or a host's name stands for the very machine that reads it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def plain_address(address: str) -> str:
    """Give an address in the one form that two ways of writing the same one share."""
    return str(ipaddress.IPv6Address(address)) if ":" in address else address


def _number_fault(name: str) -> str | None:
    if not _DOTTED.fullmatch(name):
        return None
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return f"{shortened(name)} is no IPv4 address"
    return None
