"""What is being measured on the nodes, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Measurement(Struct, frozen=True):
    """A round of a check that measures while no other check asks anything."""

    check: str
    round: int
    """Counted from 1."""
    rounds: int
    """How many the check has, as far as is known."""
    seconds: float
    """How long this round and the further ones of the check take at most."""
    more_checks: int
    """How many checks measure after this one."""


OnMeasurement = Callable[[Measurement], object]
"""Called when a round begins."""
