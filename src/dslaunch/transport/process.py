"""A program that runs as a process of this machine: the node itself, or an ssh client."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from dslaunch.transport.base import End
from dslaunch.transport.channel import EXIT_TIMEOUT, PIECE, STDERR_KEPT, QueueingChannel

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster

FIRST_LOOK, LONGEST_LOOK = 0.005, 0.1
"""Seconds between two checks whether a program has exited: the first, and the longest."""
INPUT_CLOSED = 0.5
"""Seconds for a process to exit after its input was closed."""
GRACE = 1.0
"""Seconds between TERM and KILL."""


class ProcessChannel(QueueingChannel):
    """Bytes to and from a process. It has its own session or process group, so that a Ctrl-C
    in the terminal does not reach it."""

    def __init__(
        self,
        argv: list[str],
        *,
        text: Sequence[bytes] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        group: int | None = None,
    ) -> None:
        """`text`: what is written to its standard input first."""
        super().__init__()
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
        self._gone = threading.Event()
        """Set when the process has exited."""
        self._closing = False
        self._errors = b""
        for stream in self._streams():
            os.set_blocking(stream.fileno(), False)
        self.loop.call(self._watch_errors)
        for piece in text:
            self.outbox.put(piece)

    # ------------------------------------------------------------ its input

    def send(self, data: memoryview) -> int:
        """Write what its pipe takes. Raises OSError."""
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            raise BrokenPipeError("closed")
        try:
            return os.write(stdin.fileno(), data)
        except BlockingIOError:
            self.loop.call(self._watch_input)
            return 0

    def _watch_input(self) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            self.loop.watch(stdin.fileno(), writing=self._send_more)

    def _send_more(self) -> None:
        assert self._process.stdin is not None
        self.loop.forget(self._process.stdin.fileno())
        self.outbox.go_on()

    def end_input(self) -> None:
        """Close its standard input, in the loop's thread."""
        self.loop.call(self._close_stdin)

    def _close_stdin(self) -> None:
        self._close_stream(self._process.stdin)

    # ------------------------------------------------------------ its output

    def read_on(self) -> None:
        """Read its standard output, as long as it is wanted."""
        stdout = self._process.stdout
        if self.wanted and stdout is not None and not stdout.closed:
            self.loop.watch(stdout.fileno(), reading=self._read)

    def _read(self) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        if not self.wanted:
            self.loop.forget(fd)
            return
        data = _read_some(fd)
        if data:
            self.deliver(data)
        elif data is not None:
            self._close_stream(self._process.stdout)
            self._await_exit(EXIT_TIMEOUT)

    def _watch_errors(self) -> None:
        stderr = self._process.stderr
        if stderr is not None and not stderr.closed:
            self.loop.watch(stderr.fileno(), reading=self._read_errors)

    def _read_errors(self) -> None:
        stderr = self._process.stderr
        if stderr is None or stderr.closed:
            return
        data = _read_some(stderr.fileno())
        if data:
            self._errors = (self._errors + data)[-STDERR_KEPT:]
        elif data is not None:
            self._close_stream(stderr)

    # ------------------------------------------------------------ its end

    def close(self) -> None:
        """Close its input; end the process if it does not exit by itself."""
        self.loop.call(self._close)

    def wait(self, timeout: float) -> bool:
        """Wait until it has exited, at most `timeout` seconds; return whether it has."""
        return self._gone.wait(timeout)

    def said(self) -> str:
        """Return the last 64 KiB of its standard error."""
        return self._errors.decode(errors="replace")

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.outbox.discard()
        self._close_stdin()
        self.loop.call_later(INPUT_CLOSED, self._end_it)
        self._await_exit(INPUT_CLOSED + GRACE + EXIT_TIMEOUT)

    def _end_it(self) -> None:
        """End the process: TERM, and KILL if that does not help."""
        if not self._gone.is_set():
            self._process.terminate()
            self.loop.call_later(GRACE, self._kill)

    def _kill(self) -> None:
        if not self._gone.is_set():
            self._process.kill()

    def _await_exit(self, seconds: float) -> None:
        """Look for its exit again and again; report the end without one after some seconds."""
        self._look_for_exit(time.monotonic() + seconds, FIRST_LOOK)

    def _look_for_exit(self, deadline: float, pause: float) -> None:
        if self._gone.is_set():
            return
        code = self._process.poll()
        if code is not None:
            self._exited(128 - code if code < 0 else code)
        elif time.monotonic() < deadline:
            later = min(2 * pause, LONGEST_LOOK)
            self.loop.call_later(pause, lambda: self._look_for_exit(deadline, later))
        else:
            self.tell_end(End(None, self.said()))

    def _exited(self, code: int) -> None:
        self._gone.set()
        # processes that it has started may keep its errors open
        self._read_errors()
        self.outbox.discard()
        for stream in self._streams():
            self._close_stream(stream)
        self.tell_end(End(code, self.said()))

    def _streams(self) -> list[IO[bytes]]:
        process = self._process
        return [s for s in (process.stdin, process.stdout, process.stderr) if s is not None]

    def _close_stream(self, stream: IO[bytes] | None) -> None:
        if stream is not None and not stream.closed:
            self.loop.forget(stream.fileno())
            with contextlib.suppress(OSError):
                stream.close()


class ProcessConnection:
    """The programs on one node that are processes of this machine."""

    def __init__(self) -> None:
        self._channels: list[ProcessChannel] = []

    def keep(self, channel: ProcessChannel) -> ProcessChannel:
        """Return the channel of a program that is ended with the connection."""
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """End all programs, and wait for that."""
        for channel in self._channels:
            channel.close()
        for channel in self._channels:
            channel.wait(INPUT_CLOSED + GRACE + EXIT_TIMEOUT)


def _read_some(fd: int) -> bytes | None:
    """Return some bytes; empty at the end; None: there are none at the moment."""
    try:
        return os.read(fd, PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def end_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a process: TERM, and KILL after `grace` seconds. One that waits for a dead file server
    cannot be killed at once, and is not waited for any longer."""
    for end in (process.terminate, process.kill):
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            return


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
