"""The nodes' processes as this machine's /proc shows them: all of them in one cheap pass."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Seen:
    """One process of a node; equal to itself however often it is looked at."""

    host_pid: int
    """Under which this machine knows it."""
    pid: int
    """Under which its node knows it."""
    started: str
    """In clock ticks since boot: with the PID, that very process for good."""
    argv: tuple[str, ...] = field(compare=False)
    environ: Mapping[str, str] = field(compare=False)


def pids_of(init: int) -> Iterator[int]:
    """This machine's PIDs of all processes in the PID namespace of a node's init."""
    wanted = _namespace(init)
    for pid in _numbers():
        if _namespace(pid) == wanted:
            yield pid


def look(inits: Mapping[str, int]) -> dict[str, list[Seen]]:
    """What runs on nodes (node -> PID of its init), but for the init itself."""
    nodes = {_namespace(init): name for name, init in inits.items()}
    found: dict[str, list[Seen]] = {name: [] for name in inits}
    for pid in _numbers():
        space = _namespace(pid)
        name = nodes.get(space) if space else None
        seen = read(pid) if name is not None and pid not in inits.values() else None
        if name is not None and seen is not None:
            found[name].append(seen)
    return found


def read(pid: int) -> Seen | None:
    """One process; None if it has just ended."""
    above = Path(f"/proc/{pid}")
    try:
        started = above.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        status = above.joinpath("status").read_text(errors="replace")
        words, environment = (_words(above / name) for name in ("cmdline", "environ"))
    except OSError:
        return None
    inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
    environ = dict(word.partition("=")[::2] for word in environment)
    return Seen(pid, int(inner), started, tuple(words), environ)


def _numbers() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - not a path, but a name
    except OSError:  # it has just ended, or is somebody else's
        return None


def _words(path: Path) -> list[str]:
    content = path.read_bytes().decode(errors="surrogateescape")
    return content.rstrip("\0").split("\0") if content else []
