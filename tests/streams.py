"""Reading the output of a program while it runs, and the rest of it at its end."""

from __future__ import annotations

import os
import subprocess
from threading import Thread
from typing import IO


def communicate(
    process: subprocess.Popen[str], text: str | None = None, timeout: float = 300
) -> tuple[str, str]:
    """Send `text`, wait for the program's end, return its output and its standard error that was
    not yet read. TimeoutExpired.

    Popen.communicate() reads the pipe itself: after readline() it loses the lines that came with
    the one returned, which are in the stream's buffer.
    """
    output = _ReadToEnd(process.stdout)
    errors = _ReadToEnd(process.stderr)
    if process.stdin is not None:
        try:
            process.stdin.write(text or "")
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended without reading all: its exit code says why
    process.wait(timeout)
    return output.result(process, timeout), errors.result(process, timeout)


def read_terminal(ours: int) -> bytes:
    """Return all that was written to a terminal, given our side of it, once nobody has the other
    side open: a single read may end before what was written last."""
    received = b""
    try:
        while piece := os.read(ours, 4096):
            received += piece
    except OSError:  # what a terminal says when its last writer has left
        pass
    return received


class _ReadToEnd(Thread):
    """Reads a stream to its end, so that no pipe fills up while another one is read."""

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._content = ""
        self.start()

    def run(self) -> None:
        if self._stream is not None:
            self._content = self._stream.read()

    def result(self, process: subprocess.Popen[str], timeout: float) -> str:
        """What it has read. TimeoutExpired when a child of the program keeps the stream open."""
        self.join(timeout)
        if self.is_alive():
            raise subprocess.TimeoutExpired(process.args, timeout)
        return self._content
