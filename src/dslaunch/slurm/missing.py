"""Find missing files of a job before it is submitted.

Only paths in the file system of the working directory are checked, which this machine sees. Local
disks of nodes, home directories that only nodes have, files in a container and paths that only a
shell can expand are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.deepspeed.storage import SUFFIXES, find_config
from dslaunch.launch.activation import used

if TYPE_CHECKING:
    from dslaunch.launch.job import Job
    from dslaunch.render.batch import Batch


class FilePurpose(StrEnum):
    """The purpose of a file."""

    SCRIPT = "script"
    INTERPRETER = "interpreter"
    ACTIVATE = "activate"
    SETUP = "setup"
    DEEPSPEED_CONFIG = "DeepSpeed config"


class Missing(Struct, frozen=True):
    """A file that a job needs and that does not exist."""

    need: FilePurpose
    name: str
    """As the user wrote it."""
    path: Path
    """Its absolute path."""


IsMissing = Callable[[Path], bool]
"""Returns whether a path is certainly missing."""


def missing(batch: Batch, is_missing: IsMissing) -> tuple[Missing, ...]:
    """Return the files that the job needs and that are certainly missing."""
    workdir = batch.launch.decided.workdir
    if not workdir.startswith("/"):
        return ()  # below the home directory of each node
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
    """Yield the DeepSpeed config, unless the argument is the encoded config itself."""
    found = find_config(job.args)
    if found is not None and found.path.endswith(SUFFIXES):
        yield FilePurpose.DEEPSPEED_CONFIG, found.path


_CONDITIONS = frozenset(
    ("if", "test", "[", "[[", "||", "for", "while", "case", "command", "type", "which", "hash")
)
"""Words of a shell line with which it may not source every file that it names."""


def _sourced(line: str) -> tuple[str, ...]:
    """Return the files that a shell line certainly sources; after `cd`, those with an absolute
    path."""
    words = set(line.split())
    if words & _CONDITIONS:
        return ()
    moved = bool(words & {"cd", "pushd"})
    return tuple(file for file in used(line).files if not moved or file.startswith("/"))


def _seen(batch: Batch, one: Missing) -> bool:
    """Return whether the job uses the file of this machine, and not one inside its container."""
    container = batch.slurm.container
    if container is None or one.need is FilePurpose.SETUP:
        return True
    mounts = (mount.split(":") for mount in container.mounts)
    same = (source for source, *target in mounts if not target or target[0] == source)
    return any(one.path.is_relative_to(source) for source in same)


# ---------------------------------------------------------------- files of this machine


def missing_here(workdir: str) -> IsMissing:
    """Return the check on this machine. A path in another file system than the working directory,
    or below another directory of the root, is not called missing: nodes may have it."""
    base = Path(workdir)
    device = _device(base)

    def is_missing(path: Path) -> bool:
        """Return whether a path is certainly missing."""
        if device is None or path.parts[:2] != base.parts[:2]:
            return False
        try:
            path.lstat()  # the target of a link may exist on nodes only
        except (FileNotFoundError, NotADirectoryError):
            return _device(_nearest(path)) == device
        except (OSError, ValueError):
            pass
        return False

    return is_missing


def _device(path: Path) -> int | None:
    """Return the file system of a directory; None if it is not found."""
    try:
        return path.stat().st_dev
    except (OSError, ValueError):
        return None


def _nearest(path: Path) -> Path:
    """Return the nearest existing directory above a path."""
    return next((above for above in path.parents if _device(above) is not None), Path("/"))
