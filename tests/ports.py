"""Ports that tests hand to programs, which listen there later."""

from __future__ import annotations

import random
import socket

PORTS = range(10_000, 20_000)
"""Below the range that Linux takes outgoing ports from, so that no connection of a test beside this
one gets the port before it is used, and below the ports that runs take by themselves."""
TRIES = 100


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port at which nobody listens. Raises OSError if the address is none of this
    machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    refused = OSError(f"no free port at {address}")
    # not the generator that hypothesis seeds: all workers would try the same ports
    for port in random.SystemRandom().sample(PORTS, TRIES):
        with socket.socket(family) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                refused = error
            else:
                return port
    raise refused
