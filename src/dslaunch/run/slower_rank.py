"""A rank that the others wait for, as a value. `stragglers.py` finds them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from dslaunch.run.recorded_values import RankNumber


class Evidence(StrEnum):
    """By what a slow rank is known."""

    CPU = "cpu"
    """It runs or waits for a CPU while all others sleep."""
    GPU_IDLE = "gpu-idle"
    """Its GPU is idle in between, while those of all others are busy."""
    GPU_THROTTLED = "gpu-throttled"
    """Its GPU has a lower clock than the others, and is throttled."""
    GPU_POWER = "gpu-power"
    """Its GPU draws much more power than those of all others."""
    COLLECTIVES = "collectives"
    """It is the last one to enter collectives, in most steps."""


class Reason(StrEnum):
    """Why a rank is slow, where its node shows it."""

    CPU_LIMIT = "cpu-limit"
    """A control group limits the CPU time of its node's processes."""
    OTHER_LOAD = "other-load"
    """It waits for CPUs that other processes of its node use."""
    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"
    HARDWARE = "hardware"
    LINK_ERRORS = "link-errors"
    """Links of its node have errors, and those of no other node."""
    CLOCK = "clock"
    """Its GPU has a lower clock than the others."""
    DISK = "disk"
    """The disks of its node read or write much more than those of all other nodes."""
    NODE = "node"
    """All ranks of its node are slow, and no other rank is."""


class SlowerRank(Struct, frozen=True):
    """A rank that the others wait for."""

    rank: RankNumber
    host: str
    evidence: Evidence
    reasons: tuple[Reason, ...] = ()
    cost: float | None = None
    """Share of the step time for which the others wait for it; None: unknown."""
