"""Files that a job needs and that are missing: known before it waits in the queue to fail.

Only what this machine can judge is claimed: paths that it sees in the file system of the nodes'
working directory. A node's own disk, a home that only nodes have, what is inside a container and
what only a shell can tell are left alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.deepspeed.storage import SUFFIXES, find_config
from dslaunch.launch.activation import used

if TYPE_CHECKING:
    from dslaunch.launch.job import Job
    from dslaunch.render.batch import Batch


class FilePurpose(StrEnum):
    """What a file is for."""

    SCRIPT = "script"
    INTERPRETER = "interpreter"
    ACTIVATE = "activate"
    SETUP = "setup"
    DEEPSPEED_CONFIG = "DeepSpeed config"


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that a job needs and that is not there."""

    need: FilePurpose
    name: str
    """As it is written."""
    path: Path
    """Where it should be."""


Looks = Callable[[Path], bool]
"""Whether a path is certainly missing."""


def missing(batch: Batch, is_missing: Looks) -> tuple[Missing, ...]:
    """Everything that the job needs and that is certainly missing."""
    workdir = batch.launch.decided.workdir
    if not workdir.startswith("/"):
        return ()  # of the nodes' own homes
    inside = batch.slurm.container.workdir if batch.slurm.container else None
    found = (
        # `setup` runs outside of the container
        Missing(
            need, name, _place(workdir if need is FilePurpose.SETUP else inside or workdir, name)
        )
        for need, name in _needs(batch)
    )
    return tuple(dict.fromkeys(one for one in found if _seen(batch, one) and is_missing(one.path)))


def _place(workdir: str, name: str) -> Path:
    return Path(workdir, Path(name).expanduser() if name.startswith("~/") else name)


def _needs(batch: Batch) -> Iterator[tuple[FilePurpose, str]]:
    job = batch.launch.job
    if job.kind == "script" or (job.kind == "command" and "/" in job.program):
        yield FilePurpose.SCRIPT, job.program
    for placement in batch.launch.placements:
        python = placement.node.python or ""
        if "/" in python:
            yield FilePurpose.INTERPRETER, python
        for file in _sourced(placement.node.activate or ""):
            yield FilePurpose.ACTIVATE, file
    for line in batch.slurm.setup:
        for file in _sourced(line):
            yield FilePurpose.SETUP, file
    yield from _configs(job)


def _configs(job: Job) -> Iterator[tuple[FilePurpose, str]]:
    """DeepSpeed also takes a config that is encoded in the argument itself, which is no path."""
    found = find_config(job.args)
    if found is not None and found.path.endswith(SUFFIXES):
        yield FilePurpose.DEEPSPEED_CONFIG, found.path


_CONDITIONS = frozenset(
    ("if", "test", "[", "[[", "||", "for", "while", "case", "command", "type", "which", "hash")
)
"""Words of a shell line after which it need not read every file that it names."""


def _sourced(line: str) -> tuple[str, ...]:
    """The files that a shell line reads in any case; once it has changed the directory, those
    with a whole path."""
    words = set(line.split())
    if words & _CONDITIONS:
        return ()
    moved = bool(words & {"cd", "pushd"})
    return tuple(file for file in used(line).files if not moved or file.startswith("/"))


def _seen(batch: Batch, one: Missing) -> bool:
    """Whether the job looks for a file where this machine does: not in a container's own files."""
    container = batch.slurm.container
    if container is None or one.need is FilePurpose.SETUP:
        return True
    mounts = (mount.split(":") for mount in container.mounts)
    same = (source for source, *target in mounts if not target or target[0] == source)
    return any(one.path.is_relative_to(source) for source in same)


# ---------------------------------------------------------------- this machine's files


def looker(workdir: str) -> Looks:
    """Look on this machine. What is not in the file system of the working directory, or below
    another directory of the root, is not judged: nodes may have it."""
    base = Path(workdir)
    device = _device(base)

    def is_missing(path: Path) -> bool:
        if device is None or path.parts[:2] != base.parts[:2]:
            return False
        try:
            path.lstat()  # of a link the target may be a node's own
        except (FileNotFoundError, NotADirectoryError):
            return _device(_nearest(path)) == device
        except (OSError, ValueError):
            pass
        return False

    return is_missing


def _device(path: Path) -> int | None:
    """The file system of a directory; None where it is not seen."""
    try:
        return path.stat().st_dev
    except (OSError, ValueError):
        return None


def _nearest(path: Path) -> Path:
    """The nearest directory above a path that is there."""
    return next((above for above in path.parents if _device(above) is not None), Path("/"))


def near(one: Missing) -> str | None:
    """A name beside the missing one that looks like it."""
    try:
        names = [path.name for path in one.path.parent.iterdir()]
    except OSError:
        return None
    return next(iter(difflib.get_close_matches(one.path.name, names, 1)), None)
