"""Which addresses this machine has."""

from __future__ import annotations

import ipaddress
import socket


def is_own_address(address: str | None) -> bool:
    """Return whether an address is one of this machine's, and not loopback: then there is neither
    a jump host nor address translation between this machine and the node that reported it."""
    if address is None:
        return False
    try:
        reported = ipaddress.ip_address(address)
        if reported.is_loopback:
            return False
        family = socket.AF_INET if reported.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
