"""Logs in to other nodes by this node's own ssh, and carries the bytes of many logins in frames.

The launcher starts it on an inner node of a tree. It knows no more of a child than an address, a
user and a port, and runs one fixed command there, which reads its shell line from standard input:
neither arguments nor secrets are on a command line, and nothing is written to the disk. When its
own standard input ends, or nothing comes from the launcher for too long, it ends all logins.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque

from dslaunch.node import paths, relay_frames, ssh_login
from dslaunch.node.event_loop import READ, WRITE, EventLoop

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    import subprocess
    from typing import Any, Deque, Dict, Optional

TICK = 0.05
"""Seconds between two looks at logins that end or take too long."""
LAUNCHER_TIMEOUT = 60.0
"""Seconds without a frame after which the launcher counts as gone: it sends a ping every second.
Where the network is cut, the end of a connection may not be noticed for hours."""
LOOK = 5.0
"""Seconds between two looks whether the launcher is there."""
GRACE = 2.0
"""Seconds for programs on the children to exit after the end of their input."""
KILL_AFTER = 1.0
"""Seconds between TERM and KILL of an ssh."""
REPORTED_AT_ONCE = relay_frames.INPUT_WINDOW // 2
"""Bytes that are passed on before that is reported: a text fits into the rest of the window."""


def main(arguments: Dict[str, Any]) -> None:
    """Serve the launcher until its connection ends. Never returns."""
    os.write(1, relay_frames.GREETING)
    relay = Relay(arguments["options"], arguments["login_timeout"])
    try:
        relay.serve()
    except (OSError, relay_frames.RelayFrameError) as error:
        # the launcher is gone, or sends what it should not
        with contextlib.suppress(OSError):
            os.write(2, ("relay: %s\n" % error).encode(errors="replace"))
    finally:
        relay.end()
    os._exit(0)


class Login:
    """An ssh to one child, with the bytes that wait to be written to it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.number, self.process = number, process
        self.stdin, self.stdout, self.stderr = (
            process.stdin.fileno(),
            process.stdout.fileno(),
            process.stderr.fileno(),
        )
        self.deadline = deadline
        """Until when it must have logged in, on the monotonic clock."""
        self.logged_in = False
        self.too_late = False
        self.window = relay_frames.OUTPUT_WINDOW
        """Bytes of output that the launcher still takes."""
        self.waiting: Deque[memoryview] = deque()
        """Input that is not written yet."""
        self.queued = 0
        """Bytes of it."""
        self.unreported = 0
        """Bytes that were written since the last PASSED."""
        self.input_ended = False
        """Whether the launcher has sent all input."""
        self.input_open = self.output_open = self.errors_open = True
        self.errors = b""
        self.kill_at: Optional[float] = None
        """When it is killed; None: not asked to end."""

    def take(self, data: bytes) -> None:
        """Queue input. Raises RelayFrameError for more than the window allows."""
        self.queued += len(data)
        if self.queued > relay_frames.INPUT_WINDOW:
            raise relay_frames.RelayFrameError("more input than the window allows")
        self.waiting.append(memoryview(data))

    def drop_input(self) -> None:
        """Forget what the child will not read, as if it had been passed on."""
        self.unreported += self.queued
        self.queued = 0
        self.waiting.clear()

    def terminate(self) -> None:
        """Ask ssh to end; it is killed if it does not."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + KILL_AFTER
            self.process.terminate()


class Relay:
    """All logins of this node, in one thread."""

    def __init__(self, options: Dict[str, str], login_timeout: float) -> None:
        """`options`: of ssh. `login_timeout`: seconds until a child must have let us in."""
        self.options, self.login_timeout = options, login_timeout
        self.ssh = paths.program("ssh")
        self.loop = EventLoop()
        self.logins: Dict[int, Login] = {}
        self.texts: Dict[int, bytes] = {}
        """The kept texts, by place."""
        self.out = bytearray()
        """Frames for the launcher, which are written once in a turn."""
        self.decoder = relay_frames.Decoder()
        self.launcher_gone = False
        self.heard_at = time.monotonic()
        """When the launcher last sent something."""

    def serve(self) -> None:
        """Carry frames until the launcher closes its end. Raises OSError, RelayFrameError."""
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.loop.watch(0, self._hear, READ)
        while not self.launcher_gone:
            self._turn()

    def end(self) -> None:
        """End all logins: their programs get the end of their input, then ssh is ended."""
        self.out.clear()
        self.launcher_gone = True
        for fd in (0, 1):
            self.loop.ignore(fd)
        for login in self.logins.values():
            self._close_input(login)
            login.window = relay_frames.OUTPUT_WINDOW  # what it still writes is dropped
            self._watch_output(login)
        self._until_ended(GRACE)
        for login in self.logins.values():
            login.terminate()
        self._until_ended(2 * KILL_AFTER)

    # ------------------------------------------------------------ the loop

    def _turn(self) -> None:
        self.loop.turn(self._wait())
        self._look(time.monotonic())
        self._write_out()

    def _until_ended(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.logins and time.monotonic() < deadline:
            self._turn()

    def _wait(self) -> float:
        """Return for how many seconds descriptors alone report all that happens."""
        settled = all(
            login.logged_in and login.output_open and login.kill_at is None
            for login in self.logins.values()
        )
        return LOOK if settled and not self.launcher_gone else TICK

    def _look(self, now: float) -> None:
        """Look at what no descriptor reports: the time, and processes that have ended."""
        if now - self.heard_at > LAUNCHER_TIMEOUT:
            self.launcher_gone = True
        for login in list(self.logins.values()):
            if not login.logged_in and now > login.deadline:
                login.too_late = True
                login.terminate()
            if login.kill_at is not None and now > login.kill_at:
                login.process.kill()
            over = not login.output_open or self.launcher_gone or login.kill_at is not None
            if over and login.process.poll() is not None:
                self._finish(login)

    # ------------------------------------------------------------ the launcher

    def _hear(self) -> None:
        data = os.read(0, 1 << 20)
        self.heard_at = time.monotonic()
        if not data:
            self.launcher_gone = True
        for kind, number, body in self.decoder.feed(data):
            self._take(kind, number, body)

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if kind == relay_frames.PING:
            self._say(relay_frames.frame(relay_frames.PING, 0))
        elif kind == relay_frames.DEFINE:
            self._keep(number, body)
        elif kind == relay_frames.OPEN:
            self._open(number, body)
        else:
            login = self.logins.get(number)
            if login is not None:  # else it has just ended
                self._take_for(login, kind, body)

    def _take_for(self, login: Login, kind: int, body: bytes) -> None:
        if kind == relay_frames.DATA:
            login.take(body)
            self._write(login)
        elif kind == relay_frames.TEXT:
            login.take(self._kept(relay_frames.amount_of(body)))
            self._write(login)
        elif kind == relay_frames.PASSED:
            login.window += relay_frames.amount_of(body)
            self._watch_output(login)
        elif kind == relay_frames.INPUT_ENDED:
            login.input_ended = True
            self._write(login)
        elif kind == relay_frames.CLOSE:
            login.terminate()
        else:
            raise relay_frames.RelayFrameError("kind %d from the launcher" % kind)

    def _keep(self, place: int, text: bytes) -> None:
        if place >= relay_frames.PLACES:
            raise relay_frames.RelayFrameError("too many texts")
        self.texts[place] = text

    def _kept(self, place: int) -> bytes:
        if place not in self.texts:
            raise relay_frames.RelayFrameError("an unknown text")
        return self.texts[place]

    def _say(self, data: bytes) -> None:
        if not self.launcher_gone:
            self.out += data

    def _write_out(self) -> None:
        """Write what the launcher takes now; the rest when it can take more."""
        try:
            while self.out:
                del self.out[: os.write(1, self.out)]
        except BlockingIOError:
            self.loop.watch(1, self._write_out, WRITE)
        else:
            self.loop.ignore(1)

    # ------------------------------------------------------------ the children

    def _open(self, number: int, body: bytes) -> None:
        if number in self.logins:
            raise relay_frames.RelayFrameError("a channel twice")
        if self.ssh is None:
            self._say(relay_frames.finished(number, 255, relay_frames.NO_SSH, b""))
            return
        try:
            process = ssh_login.start(self.ssh, self.options, _child_in(body))
        except ssh_login.InvalidChildError as error:
            self._say(relay_frames.finished(number, 255, relay_frames.INVALID, str(error).encode()))
            return
        except OSError as error:
            self._say(relay_frames.finished(number, 255, relay_frames.NO_SSH, str(error).encode()))
            return
        login = Login(number, process, time.monotonic() + self.login_timeout)
        self.logins[number] = login
        for fd in (login.stdin, login.stdout, login.stderr):
            os.set_blocking(fd, False)
        self._watch_output(login)
        self.loop.watch(login.stderr, lambda: self._read_errors(login), READ)

    def _watch_output(self, login: Login) -> None:
        """Read output while the launcher takes it."""
        if login.output_open and login.window > 0:
            self.loop.watch(login.stdout, lambda: self._read(login), READ)
        else:
            self.loop.ignore(login.stdout)

    def _read(self, login: Login) -> None:
        data = _read_now(login.stdout, min(relay_frames.PIECE, login.window))
        if data is None:
            return
        if not data:
            login.output_open = False
            self.loop.ignore(login.stdout)
            self._say(relay_frames.frame(relay_frames.OUTPUT_ENDED, login.number))
            return
        if not login.logged_in:
            login.logged_in = True
            data = data[len(ssh_login.LOGGED_IN) :]
            self._say(relay_frames.frame(relay_frames.OPENED, login.number))
        if data and not self.launcher_gone:
            login.window -= len(data)
            self._say(relay_frames.frame(relay_frames.DATA, login.number, data))
            self._watch_output(login)

    def _read_errors(self, login: Login) -> None:
        data = _read_now(login.stderr, relay_frames.PIECE)
        if data:
            login.errors = (login.errors + data)[-relay_frames.STDERR_KEPT :]
        elif data is not None:
            login.errors_open = False
            self.loop.ignore(login.stderr)

    def _write(self, login: Login) -> None:
        """Write what the child takes now, and report how much that was."""
        try:
            while login.input_open and login.waiting:
                self._write_first(login)
        except BlockingIOError:
            self.loop.watch(login.stdin, lambda: self._write(login), WRITE)
        except OSError:  # it reads no more
            self._close_input(login)
        if not login.input_open:
            login.drop_input()
        elif not login.waiting and login.input_ended:
            self._close_input(login)
        elif not login.waiting:
            self.loop.ignore(login.stdin)
        if login.unreported >= REPORTED_AT_ONCE:
            self._say(relay_frames.passed(login.number, login.unreported))
            login.unreported = 0

    def _write_first(self, login: Login) -> None:
        """Write a piece of the first input that waits. Raises OSError."""
        data = login.waiting[0]
        written = os.write(login.stdin, data)
        login.queued -= written
        login.unreported += written
        if written < len(data):
            login.waiting[0] = data[written:]
        else:
            login.waiting.popleft()

    def _close_input(self, login: Login) -> None:
        if login.input_open:
            login.input_open = False
            self.loop.ignore(login.stdin)  # before another file gets its number
            assert login.process.stdin
            login.process.stdin.close()

    def _finish(self, login: Login) -> None:
        """Report the end of a login whose ssh has exited."""
        if login.errors_open:
            self._read_errors(login)
        del self.logins[login.number]
        self._close_input(login)
        for stream in (login.process.stdout, login.process.stderr):
            assert stream
            self.loop.ignore(stream.fileno())
            stream.close()
        how = relay_frames.NO_LOGIN if login.too_late else relay_frames.EXITED
        self._say(relay_frames.finished(login.number, login.process.returncode, how, login.errors))


def _child_in(body: bytes) -> Any:
    """Return the child in an OPEN frame, which is checked where it is used; None: no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _read_now(fd: int, most: int) -> Optional[bytes]:
    """Return what can be read without waiting; None: nothing yet; empty: it has ended."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return None
    except OSError:
        return b""
