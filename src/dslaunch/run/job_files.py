"""Find the files of a job, hash them, and pack some of them into an archive."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from msgspec import Struct, field

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.job import Job
from dslaunch.pysource.imports import Imports, imports_of
from dslaunch.pysource.module import module_paths
from dslaunch.run.run_directory import own_directories
from dslaunch.texts import closest

IGNORE_FILE = ".dslaunchignore"
IGNORED = (
    ".*",
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    "venv",
    "node_modules",
    "wandb",
    "*.safetensors",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.bin",
)
"""Never shipped: files that tools and trainings create."""
_ONLY_GITIGNORE = re.compile(r"^!|^/|\*\*/|\\")
"""Syntax of gitignore files that shell patterns lack; it would be silently ignored."""
FileId = tuple[int, int]
"""Device and inode; of a link those of its target."""
MOST_TEXT = 2**21
"""Maximum size of a module, config or file of arguments to read, in bytes."""
MOST_FILES = 5_000
MOST_BYTES = 200 * 2**20


class JobFiles(Struct, frozen=True):
    """The directory of the script, on this machine and on the nodes."""

    local: Path
    remote: str
    """The same directory on a node: absolute, or relative to the home directory there."""
    script: str | None
    """Path of the script in it; None: a module or a program of the nodes."""
    digests: tuple[tuple[str, str], ...]
    """Path and SHA-256 of each file; empty if this machine does not have the files."""
    same: bool = True
    """Whether a script that is not on this machine must be equal on all nodes; programs may be
    built or linked per node."""
    program: str = ""
    """The path of the script as the user wrote it."""
    similar: str = ""
    """Of a script that is not on this machine: the path of a file beside it with a similar name;
    empty: there is none."""


class Shipment(Struct, frozen=True):
    """Files for one node; the nodes that share its directory see them too."""

    host: str
    paths: tuple[str, ...]
    changed: Mapping[str, str] = field(default_factory=dict)
    """The files among them that are shipped with a changed text."""


def find_source(job: Job, cwd: Path, workdir: str) -> JobFiles | None:
    """Return the directory of the job; None for a program of the nodes.

    `workdir` is the working directory on the nodes; it corresponds to `cwd`.
    Raises PlanError if the directory is too large to be code.
    """
    secrets = secret_files(job)
    if job.kind == "module":
        return JobFiles(cwd, workdir, None, tuple(digests(cwd, secrets)))
    script = cwd / job.program
    command = job.kind == "command"
    if command and not _of_the_job(job.program, cwd):
        return None
    remote = (PurePosixPath(workdir) / job.program).parent
    is_here = script.is_file()
    name = "" if is_here else similar_name(script)
    return JobFiles(
        local=script.parent,
        remote=str(remote),
        script=script.name,
        digests=tuple(digests(script.parent, secrets)) if is_here else (),
        same=not command,
        program=job.program,
        similar=str(PurePosixPath(job.program).with_name(name)) if name else "",
    )


def similar_name(path: Path) -> str:
    """Return the name in the directory of a missing file that is most like its name; empty if there
    is none."""
    try:
        names = [beside.name for beside in path.parent.iterdir()]
    except OSError:
        return ""
    return closest(path.name, names)


def _of_the_job(program: str, cwd: Path) -> bool:
    """Return whether a program belongs to the files of the job. `bash` and `/bin/bash` belong to
    the nodes, and so do programs of an environment (`.venv/bin/accelerate`), which is never
    shipped."""
    path = Path(os.path.normpath(cwd / program))
    if "/" not in program or not path.is_relative_to(cwd):
        return False
    inside = path.relative_to(cwd)
    return not any(ignored(part, IGNORED) for part in (*inside.parents, inside) if part.name)


def script_imports(job: Job, cwd: Path) -> Imports:
    """Return the imports of the job's script if it is on this machine, without modules in its
    directory, which are shipped with it."""
    if job.kind == "command" or not job.program:
        return Imports()
    text = program_text(job, cwd)
    beside = cwd if job.kind == "module" else (cwd / job.program).parent
    try:
        names = frozenset(entry.name.partition(".")[0] for entry in beside.iterdir())
    except OSError:
        return Imports()
    if text is not None:
        return imports_of(text, names)
    # a module that is not shipped with the job must be installed on the nodes
    needed = {job.program.partition(".")[0]} - names if job.kind == "module" else set()
    return Imports(certain=tuple(needed))


def program_text(job: Job, cwd: Path) -> str | None:
    """Return the source of the job's script or module; None: not on this machine, or not text."""
    if job.kind == "command" or not job.program:
        return None
    names = main_files(job.program) if job.kind == "module" else (job.program,)
    texts = (read_small(cwd / name) for name in names)
    return next((text for text in texts if text is not None), None)


def main_files(module: str) -> tuple[str, ...]:
    """Return the files that `python -m MODULE` may run, relative to the working directory."""
    return (*module_paths(f"{module}.__main__", ""), *module_paths(module, ""))


def read_small(path: Path) -> str | None:
    """Return the text of a file; None if it is missing, too large or not text."""
    try:
        return path.read_text("utf-8") if path.stat().st_size <= MOST_TEXT else None
    except (OSError, ValueError):
        return None


def secret_files(job: Job) -> frozenset[FileId]:
    """Return the files with the job's secrets, which are never shipped."""
    found = set()
    for secret in job.secrets:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if secret.file is not None:
                found.add(_file_id(Path(secret.file).expanduser().stat()))
    return frozenset(found)


def _file_id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def digests(
    directory: Path, secrets: frozenset[FileId] = frozenset(), most_bytes: int = MOST_BYTES
) -> Iterator[tuple[str, str]]:
    """Return path and SHA-256 of each file to ship, in a stable order. Raises PlanError."""
    total = 0
    for count, path in enumerate(walk(directory, own_directories(os.environ)), 1):
        status = (directory / path).stat()
        if _file_id(status) in secrets:
            continue
        total += status.st_size
        if count > MOST_FILES or total > most_bytes:
            raise PlanError(
                f"{directory} is too large to ship: more than {MOST_FILES} files or "
                f"{most_bytes >> 20} MiB",
                hint=f"list data files in {directory / IGNORE_FILE}, move the script to a "
                "separate directory, use a shared `storage.workdir`, or add --no-sync",
                code=ErrorCode.CODE_TOO_LARGE,
            )
        yield path, hashlib.sha256((directory / path).read_bytes()).hexdigest()


def walk(directory: Path, excluded: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Yield the paths of all files that are not ignored, sorted within each directory.

    `excluded`: paths of directories without links, such as `own_directories`.
    """
    patterns = (*IGNORED, *_ignore_file(directory))
    root = Path(os.path.realpath(directory))
    for base, directories, files in os.walk(directory):
        inside = Path(base).relative_to(directory)
        directories[:] = sorted(
            name
            for name in directories
            if not ignored(inside / name, patterns) and root / inside / name not in excluded
        )
        for path in (inside / name for name in sorted(files)):
            if not ignored(path, patterns) and (directory / path).is_file():
                yield path.as_posix()


def ignored(path: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether a pattern matches a file or directory, by its name or its whole path."""
    names = (path.name, path.as_posix())
    return any(fnmatch.fnmatchcase(name, p) for p in patterns for name in names)


def archive(
    source: JobFiles, paths: Sequence[str], changed: Mapping[str, str] | None = None
) -> IO[bytes]:
    """Return a compressed tar archive of some of the files, rewound, in an unnamed temporary file.

    `changed`: files to ship with another text.
    """
    # never ship other files, also if a node requests them
    offered = dict(source.digests)
    strange = [path for path in paths if path not in offered]
    if strange:
        raise PlanError(f"{strange[0]!r} is not a file of the job in {source.local}")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller reads and closes it
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, dereference=True) as tar:
        for path in paths:
            member = _anonymous(tar.gettarinfo(source.local / path, arcname=path))
            text = (changed or {}).get(path)
            if text is None:
                with (source.local / path).open("rb") as content:
                    tar.addfile(member, content)
            else:
                data = text.encode()
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    return file


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without an owner, so that the user who unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _ignore_file(directory: Path) -> list[str]:
    """Return the patterns of the file, which are shell patterns. Raises PlanError for others."""
    path = directory / IGNORE_FILE
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    patterns = []
    for number, line in enumerate(lines, start=1):
        pattern = line.strip().rstrip("/")
        if not pattern or pattern.startswith("#"):
            continue
        if _ONLY_GITIGNORE.search(pattern):
            raise PlanError(
                f"{path}:{number}: {pattern!r} is gitignore syntax, which is not supported",
                hint="a pattern matches a name (`*.bin`) or a path below the script's directory "
                "(`data/*.bin`); `!`, a leading `/`, `**/` and backslashes have no meaning",
            )
        patterns.append(pattern)
    return patterns
