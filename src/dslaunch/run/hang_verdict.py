"""What a run without progress waits for: codes with typed parameters.

`hang.py` decides; `hang_text.py` has the texts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from dslaunch.recorded import as_json_data
from dslaunch.run.waits import FileLock, WaitKind


class HangCode(StrEnum):
    """Why there is no progress."""

    DEAD = "dead"
    """The process of a rank has ended, and the others wait for it."""
    EXITING = "exiting"
    """A rank has ended its program, and its process waits for threads or children of it."""
    STOPPED = "stopped"
    """A rank is stopped by a signal or a debugger."""
    FILESYSTEM = "filesystem"
    """A rank waits for a file."""
    LOCK = "lock"
    """A rank waits for a lock."""
    DATALOADER = "dataloader"
    """A rank waits for its data loader."""
    BUSY = "busy"
    """A rank computes and does not enter the collective."""
    NOT_ENTERED = "not-entered"
    """A rank has not entered the collective, and its wait is of none of these kinds."""
    MISMATCH = "mismatch"
    """Ranks have entered different collectives, or differ in its root or in the members of a
    process group."""
    NETWORK = "network"
    """All ranks have entered the same collective, and it does not complete; or ranks that form a
    process group cannot connect to each other."""
    ONE_WAY = "one-way"
    """Ranks send to each other and none of them receives, or all of them receive."""
    RENDEZVOUS = "rendezvous"
    """All ranks wait until others have joined their process group."""
    SLOW = "slow"
    """No rank waits for another one: all compute, or wait for something outside of the run."""
    GPU = "gpu"
    """A GPU has reported a hardware error, and nothing else explains the hang."""
    GPU_BUSY = "gpu-busy"
    """A rank has entered the collective, and its GPU has not begun it: an earlier kernel does not
    end. It is known where TORCH_NCCL_ENABLE_TIMING is set."""
    UNKNOWN = "unknown"


class Place(Struct, frozen=True):
    """A line of a program."""

    file: str
    line: int
    """0: unknown."""
    function: str


class Side(Struct, frozen=True):
    """Ranks that have entered the same collective, in a mismatch."""

    ranks: tuple[int, ...]
    operation: str
    group: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    root: int | None = None
    """The rank that it sends from or to, where the sides differ in it."""
    peer: int | None = None
    """Of one rank in a transfer: the rank that it sends to, or receives from."""
    members: tuple[int, ...] = ()
    """Of a process group, where the sides have made it of other ranks."""
    place: Place | None = None


class GpuError(Struct, frozen=True):
    """A hardware error of a GPU that its node has logged since the run was started."""

    host: str
    xid: int
    """Its number in NVIDIA's catalog."""
    bus: str
    """The GPU's address on the PCI bus."""
    pid: int | None = None
    """The process that used the GPU, where the driver says so."""


class HangVerdict(Struct, frozen=True, omit_defaults=True):
    """Why there is no progress; docs/reference/codes.md lists the codes."""

    code: HangCode
    ranks: tuple[tuple[str, int], ...] = ()
    """Host and number of the ranks that the others wait for; of a mismatch the smaller side,
    or both sides of a transfer."""
    place: Place | None = None
    """Where the first of them is, in the user's program if possible."""
    waiting: tuple[int, ...] = ()
    """Ranks that wait in the collective."""
    operation: str | None = None
    """Such as `all_reduce`; None: unknown, or none."""
    group: str | None = None
    """The process group's description, or its name."""
    number: int | None = None
    """Of the collective in its group."""
    waiting_place: Place | None = None
    """Where the first of the waiting ranks is."""
    sides: tuple[Side, ...] = ()
    """Of a mismatch, of `network` while a process group is formed, and of `one-way` those that wait
    for each other; the smallest first."""
    wait: WaitKind | None = None
    """What the rank's main thread waits for."""
    on: str = ""
    """The file that it waits for."""
    lock: FileLock | None = None
    """Of `lock`: the lock in a file that the first of them waits for."""
    exit_code: int | None = None
    signal: int | None = None
    workers: int | None = None
    """Of a data loader: how many of its worker processes are stopped or blocked."""
    unreachable: tuple[tuple[str, str], ...] = ()
    """Of `network`: pairs of nodes of which the first could not connect to the second."""
    gpus: tuple[GpuError, ...] = ()
    """Of `gpu`."""
    since: float | None = None
    """Seconds for which the collective has been waited for; None: unknown."""
    final: bool | None = None
    """Of a mismatch: whether the ranks are blocked forever, so that no timeout need be waited for;
    None: unknown."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the nodes of the ranks that the others wait for."""
        return tuple(dict.fromkeys(host for host, _ in self.ranks))

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        found: dict[str, Any] = as_json_data(self)
        return found
