"""A program that runs as a process of this machine: the node itself, or an ssh client."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster

STDERR_KEPT = 64 * 1024
PIECE = 256 * 1024
EXIT_TIMEOUT = 0.5
"""Seconds for a process to exit after its input was closed."""


class ProcessChannel:
    """Bytes to and from a process. It has its own session or process group, so that a Ctrl-C
    in the terminal does not reach it."""

    def __init__(
        self,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        group: int | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            cwd=cwd,
            start_new_session=group is None,
            process_group=group,
        )
        self._errors = b""
        self._drain = threading.Thread(target=self._keep_errors, daemon=True)
        self._drain.start()

    def read(self) -> bytes:
        """Wait for standard output and return it; empty at its end."""
        out = self._process.stdout
        try:
            return out.read(PIECE) or b"" if out else b""
        except ValueError:  # closed by another thread
            return b""

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError if the process has closed its input."""
        view = memoryview(data)
        while view and self._process.stdin:
            try:
                view = view[self._process.stdin.write(view) or 0 :]
            except ValueError:
                raise BrokenPipeError("closed") from None

    def close_input(self) -> None:
        """Close its standard input."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """Close its input; end the process if it does not exit by itself."""
        self.close_input()
        if self.wait(EXIT_TIMEOUT) is None:
            end_process(self._process, grace=1)
        if self._process.stdout:
            self._process.stdout.close()
        self._drain.join(0.5)  # processes that the program started may keep its errors open

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it has not exited within `timeout` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def stderr(self) -> str:
        """Return the last 64 KiB of its standard error."""
        if self._process.poll() is not None:
            self._drain.join(1)
        return self._errors.decode(errors="replace")

    def _keep_errors(self) -> None:
        with self._process.stderr or contextlib.nullcontext() as source:
            while source and (data := os.read(source.fileno(), PIECE)):
                self._errors = (self._errors + data)[-STDERR_KEPT:]


def end_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a process: TERM, and KILL after `grace` seconds."""
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def inherited(environ: Mapping[str, str], cluster: Cluster) -> dict[str, str]:
    """Return our environment for a program on a node, without the secrets of the cluster file:
    only the ranks get these, over the connection."""
    secrets = {source.name for source in cluster.secrets}
    return {name: value for name, value in environ.items() if name not in secrets}


def login_line(line: str) -> str:
    """Return the line for any login shell that lets a POSIX shell run `line`. Raises ValueError for
    a line that not every shell can pass on."""
    if "\n" in line or "\0" in line:
        raise ValueError("a remote line holds no newline and no NUL")
    return f"exec /bin/sh -c {shlex.quote(line)}"
