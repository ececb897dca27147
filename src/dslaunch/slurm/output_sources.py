"""Sources of the growing output of a job: a file here, or one on the job's first node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Protocol

from msgspec import Struct

from dslaunch.transport.process import end_process

PIECE = 1 << 20
"""Bytes that are read at a time."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for the step that reads a file."""


class OutputSource(Protocol):
    """A source of growing output."""

    def read(self) -> bytes:
        """Return new output; empty if there is none."""

    def close(self) -> None:
        """Close it."""


class Tail(Struct):
    """A growing file, which may not exist yet, and may be truncated."""

    path: Path
    file: IO[bytes] | None = None

    def read(self) -> bytes:
        """Return new output; empty if there is none."""
        try:
            if self.file is None:
                self.file = _opened(self.path)
            elif self.file.tell() > self.path.stat().st_size:
                self.file.seek(0)
            return self.file.read(PIECE) or b""
        except OSError:
            return b""

    def begin_at(self, find: Callable[[int], int]) -> None:
        """Begin to read at the position that `find` returns for the open file, in bytes; at the
        start of a file that cannot be read yet."""
        try:
            file = _opened(self.path)
            file.seek(find(file.fileno()))
        except OSError:
            return
        self.file = file

    @property
    def seen(self) -> bool:
        """Whether the file could be opened here."""
        return self.file is not None

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def _opened(path: Path) -> IO[bytes]:
    """Open a file, without blocking if another user has replaced it by a pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.fdopen(fd, "rb", buffering=0)


class FarTail:
    """A file on the job's first node that this machine does not see, read by a step of the job.

    `--overlap` shares the resources of the job (srun(1), SLURM 20.11); the step ends with it.
    """

    def __init__(self, number: str, host: str, path: str, environ: Mapping[str, str]) -> None:
        step = ["srun", f"--jobid={number}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1"]
        tail = ["tail", "--bytes=+1", "--follow=name", path]
        self.process = subprocess.Popen(
            [*step, f"--nodelist={host}", *tail],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)

    def read(self) -> bytes:
        """Return new output; empty if there is none."""
        try:
            return os.read(self.output.fileno(), PIECE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """End the step, if the job is still running."""
        if self.process.poll() is None:
            end_process(self.process, GRACE)
        self.output.close()
