"""The job's own files: which they are, what they contain, and an archive of some of them."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from dslaunch.errors import PlanError
from dslaunch.launch.job import Job

IGNORE_FILE = ".dslaunchignore"
IGNORED = (
    ".*", "__pycache__", "*.pyc", "*.egg-info", "venv", "node_modules", "wandb", "*.safetensors",
    "*.pt", "*.pth", "*.ckpt", "*.bin",
)  # fmt: skip
"""Never shipped: what a tool or a training makes, not what its author wrote."""
MOST_FILES = 5_000
MOST_BYTES = 200 * 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """The directory that holds the script, here and on the nodes."""

    local: Path
    remote: str
    """The same directory on a node: absolute, or relative to the user's home there."""
    script: str | None
    """The script's path in it; None: a module or a program of the nodes."""
    digests: tuple[tuple[str, str], ...]
    """Path and SHA-256 of each file; empty if there is nothing here to compare with."""


def find_source(job: Job, cwd: Path, workdir: str) -> Source | None:
    """Find the directory that the job comes from; None for a program of the nodes' own.

    `workdir` is the nodes' working directory, which stands for `cwd` here.
    Raises PlanError if the directory is too large to be somebody's code.
    """
    if job.kind == "module":
        return Source(cwd, workdir, None, tuple(digests(cwd)))
    script = cwd / job.program
    if job.kind == "command" and ("/" not in job.program or not script.is_file()):
        return None
    remote = (PurePosixPath(workdir) / job.program).parent
    source = Source(script.parent, str(remote), script.name, ())
    if not script.is_file():
        return source
    return Source(source.local, source.remote, source.script, tuple(digests(source.local)))


def digests(directory: Path) -> Iterator[tuple[str, str]]:
    """Path and SHA-256 of each file to ship, in a stable order. Raises PlanError."""
    total = 0
    for count, path in enumerate(walk(directory), 1):
        total += (directory / path).stat().st_size
        if count > MOST_FILES or total > MOST_BYTES:
            raise PlanError(
                f"{directory} is too large to ship: more than {MOST_FILES} files or "
                f"{MOST_BYTES >> 20} MiB",
                hint=f"list what is no code in {directory / IGNORE_FILE}, put the script into a "
                "directory of its own, use a shared `storage.workdir`, or give --no-sync",
            )
        yield path, hashlib.sha256((directory / path).read_bytes()).hexdigest()


def walk(directory: Path) -> Iterator[str]:
    """The paths of all files that are not ignored, sorted within each directory."""
    patterns = (*IGNORED, *_ignore_file(directory))
    for base, directories, files in os.walk(directory):
        inside = Path(base).relative_to(directory)
        directories[:] = sorted(d for d in directories if not ignored(inside / d, patterns))
        for path in (inside / name for name in sorted(files)):
            if not ignored(path, patterns) and (directory / path).is_file():
                yield path.as_posix()


def ignored(path: Path, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern means this file or directory: by its name, or by its whole path."""
    names = (path.name, path.as_posix())
    return any(fnmatch.fnmatchcase(name, p) for p in patterns for name in names)


def archive(source: Source, paths: list[str]) -> IO[bytes]:
    """A compressed tar archive of some of the files, rewound, in an unnamed temporary file."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller reads and closes it
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, dereference=True) as tar:
        for path in paths:
            tar.add(source.local / path, arcname=path, recursive=False, filter=_anonymous)
    file.seek(0)
    return file


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file belongs to whoever unpacks it; links are shipped as what they point to."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _ignore_file(directory: Path) -> list[str]:
    try:
        lines = (directory / IGNORE_FILE).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    stripped = (line.strip().rstrip("/") for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]
