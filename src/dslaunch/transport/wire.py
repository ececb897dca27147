"""The connection to the program on one node: requests, replies, and its loss.

The program on the node (`node/`) sends frames, which are validated before anything else sees them
(`protocol`). A node that sends anything else, or whose listener fails for any reason, is lost: the
failure names it, and nothing waits for it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dslaunch import log
from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Arrived, Incoming, ProtocolError, Reply
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.transport import login_shell, program
from dslaunch.transport.base import SharingChannel

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection

PIECE = 64 * 1024
"""Bytes that are sent at a time."""
WRITE_TIMEOUT = 10.0
"""Seconds for a node to read one piece. Below the heartbeat timeout of other nodes, since the
sender waits."""
START_TIMEOUT = 2.0
"""Seconds for the exit code of a program that ended before its greeting."""
END_TIMEOUT = 0.2
"""Seconds for the exit code of a program whose connection broke."""
LEAVE_TIMEOUT = 3.0
"""Seconds for a program to clean up after the last request."""
Value = TypeVar("Value")


class LostError(Exception):
    """The node did not answer; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a node's clock is ahead of ours, in seconds."""

    offset: float
    error: float
    """By how much that may be wrong: half of the round trip in which it was measured."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of ours that has no reply yet."""

    future: Future[Any]
    parsed: Callable[[Reply], Any]
    """From the reply to the answer. Raises InvalidAnswer."""
    sent: float
    """When it was sent, on the monotonic clock."""


class Wire:
    """Starts the program on one node; sends it requests and hands out its replies."""

    def __init__(
        self, node: Node, connection: Connection, *, most: int | None = None, **fields: str
    ) -> None:
        """`most`: bytes that the node may send in all. `fields`: of everything that is logged,
        beside the node."""
        self.host = node.host
        self.over = False
        self.login = login_shell.LoginOutput(frames.GREETING)
        self._node = node
        self._connection = connection
        self._channel: Channel | None = None
        self._log = log.Log(__name__, node=node.host, **fields)
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Request] = {}
        self._writing = threading.Lock()
        self._sent = threading.Event()
        """Not set while the program is being sent."""
        self._sent.set()
        self._closing = threading.Event()
        self._incoming = Incoming(ranks=range(0))
        self._most = most
        self._size = 0
        """Bytes that the node has sent since its greeting."""
        self._loss = NodeFailure(node.host, "lost", "connection lost")
        """Why there is no answer to what is asked once the node is lost."""
        self._late = False
        """Whether the login shell was given up."""
        self._unread = False
        """Whether the node stopped reading what we send."""
        self._reading_since: float | None = None

    def start(self, text: bytes) -> None:
        """Start the program with this text, and listen. After its loss every request fails.

        Does not wait until the node has read the program, which would delay the next node.
        """
        try:
            channel = self._connection.start(program.line(self._node))
        except OSError as error:
            self._lose(NodeFailure(self.host, "lost", f"connection lost: {error}"))
            return
        self._send_program(channel, text)
        # at the same time: a login that prints more than a pipe holds reads nothing before
        threading.Thread(target=self._listen, name=f"wire {self.host}", daemon=True).start()

    # ------------------------------------------------------------ speaking

    def send(self, **message: Any) -> None:
        """Send a message; if the node is gone, its loss is reported by the listener."""
        data = frames.pack_message(message)
        self._log.debug("sent", op=message["op"], id=message.get("id"), bytes=len(data))
        self._write(data)

    def request(self, operation: str, answer: TypeAdapter[Value], **message: Any) -> Future[Value]:
        """Send a message that is replied to; the future holds the typed reply, or raises
        LostError."""
        return self._request(operation, lambda reply: parse(answer, reply.value), **message)

    def measure_clock(self) -> Future[Clock]:
        """Find out by how much the node's clock is ahead, in one round trip."""
        asked = time.time()
        began = time.monotonic()

        def parsed(reply: Reply) -> Clock:
            half = (time.monotonic() - began) / 2
            return Clock(reply.time - asked - half, half)

        return self._request("clock", parsed)

    @property
    def busy(self) -> bool:
        """Whether a request has no reply yet."""
        return bool(self._waiting)

    def unheard_for(self) -> float:
        """Return for how many seconds we have waited for the node to send something."""
        since = self._reading_since
        return 0.0 if since is None else time.monotonic() - since

    def interrupt(self) -> None:
        """Give this connection up; does not wait."""
        self._reading_since = None
        connection = self._connection
        threading.Thread(target=connection.close, daemon=True).start()

    def leave(self) -> None:
        """Let the program clean up and exit, and close the connection. A busy one does so when it
        notices that the launcher is gone; it is neither waited for nor killed."""
        self._closing.set()
        if self._channel is not None:
            self._channel.close_input()
            if not self.busy and self._channel.wait(LEAVE_TIMEOUT) is not None:
                self._channel.close()
        self._connection.close()

    def hang_up(self) -> None:
        """Close the connection; pending requests fail."""
        self._closing.set()
        if self._channel is not None:
            self._channel.close()
        self._connection.close()

    def _request(
        self, operation: str, parsed: Callable[[Reply], Value], **message: Any
    ) -> Future[Value]:
        id, future = self._expect(parsed)
        self.send(op=operation, id=id, **message)
        return future

    def _expect(self, parsed: Callable[[Reply], Value]) -> tuple[int, Future[Value]]:
        id, future = next(self._ids), Future[Value]()
        self._waiting[id] = _Request(future, parsed, time.monotonic())
        if self.over:
            self._abandon(self._loss)
        return id, future

    def _write(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            if self._channel is not None:
                self._send_all(self._channel, data, self._channel.write)

    def _send_program(self, channel: Channel, text: bytes) -> None:
        """Begin to send what the shell line reads; all other messages come after it."""
        first = threading.Event()

        def send() -> None:
            # why a program died is on its other streams
            with self._writing, contextlib.suppress(OSError):
                self._channel = channel
                self._sent.clear()
                first.set()
                try:
                    # all nodes get this text
                    shared = channel.write_shared if isinstance(channel, SharingChannel) else None
                    self._send_all(channel, text, shared or channel.write)
                finally:
                    self._sent.set()

        threading.Thread(target=send, name=f"program {self.host}", daemon=True).start()
        first.wait()

    def _send_all(self, channel: Channel, data: bytes, write: Callable[[bytes], object]) -> None:
        """Write to a node that may stop reading. Raises OSError."""
        for start in range(0, len(data), PIECE):
            limit = threading.Timer(WRITE_TIMEOUT, self._give_up, [channel])
            limit.daemon = True
            limit.start()
            try:
                write(data[start : start + PIECE])
            finally:
                limit.cancel()

    def _give_up(self, channel: Channel) -> None:
        """Close a connection whose node reads nothing, which ends blocked writes."""
        self._unread = True
        self.interrupt()
        channel.close()

    # ------------------------------------------------------------ hearing

    def _listen(self) -> None:
        try:
            failure = self._hear_to_the_end()
        except OSError as error:
            failure = self._broke(error)
        except Exception as error:  # noqa: BLE001 - for every error: nothing may wait for this node
            failure = NodeFailure(self.host, "protocol", f"its listener failed: {error!r:.200}")
        self._lose(failure)

    def _hear_to_the_end(self) -> NodeFailure:
        """Listen until the connection ends; why it did."""
        return self._hear(self._skip_login())

    def _hear(self, data: bytes) -> NodeFailure:
        """Take what comes, until the channel ends; why it did."""
        try:
            while data:
                self._count(len(data))
                for arrived in self._incoming.feed(data):
                    self._take(arrived)
                self._heard(len(data))
                data = self._read()
            return self._loss if self._closing.is_set() else self._why_ended()
        except ProtocolError as error:
            if login_shell.is_text(error.found):
                return login_shell.mixed_in(self.host, error.found)
            return NodeFailure(
                self.host,
                "protocol",
                f"invalid message: {error}",
                hint="look for a program that a start-up file of its login shell leaves in the "
                "background and that prints, or for a compromised node",
            )
        except OSError as error:
            return self._broke(error)

    def _count(self, size: int) -> None:
        """Count what has come, before it is kept. Raises ProtocolError when it is too much."""
        self._size += size
        if self._most is not None and self._size > self._most:
            raise ProtocolError(f"more than {self._most >> 20} MiB in all")

    def _read(self) -> bytes:
        assert self._channel is not None
        self._reading_since = time.monotonic()
        try:
            return self._channel.read()
        finally:
            self._reading_since = None

    def _skip_login(self) -> bytes:
        """Read up to the greeting; what a login shell prints before it is kept for messages."""
        assert self._channel is not None
        self.login, self._late = login_shell.LoginOutput(frames.GREETING), False
        limit = threading.Timer(login_shell.TIMEOUT, self._too_late, [self._channel])
        limit.daemon = True
        limit.start()
        try:
            while not self.login.greeted:
                piece = self._read()
                if not piece or self.login.endless:
                    return b""
                rest = self.login.add(piece)
                if self.login.started:
                    limit.cancel()
        finally:
            limit.cancel()
        return rest or self._read()

    def _too_late(self, channel: Channel) -> None:
        """Close a login whose shell does not start our line."""
        self._late = True
        self.interrupt()
        channel.close()

    def _take(self, arrived: Arrived) -> None:
        """Pass a reply to its caller. Raises ProtocolError for anything else."""
        if not isinstance(arrived, Reply):
            raise ProtocolError("not a reply")
        request = self._waiting.pop(arrived.reply, None)
        if request is None:
            raise ProtocolError("a reply to no request")
        if arrived.error is not None:
            request.future.set_exception(self._protocol_error(arrived.error))
            return
        self._log.debug("answered", id=arrived.reply, seconds=time.monotonic() - request.sent)
        try:
            answer = request.parsed(arrived)
        except InvalidAnswer as error:
            request.future.set_exception(self._protocol_error(f"invalid answer: {error}"))
        except Exception as error:
            why = f"cannot read its answer: {error!r:.200}"
            request.future.set_exception(self._protocol_error(why))
            raise
        else:
            request.future.set_result(answer)

    def _heard(self, size: int) -> None:
        """Record the number of bytes that were received and handled."""

    def _protocol_error(self, why: str) -> LostError:
        return LostError(NodeFailure(self.host, "protocol", why))

    # ------------------------------------------------------------ why it ended

    def _greeted(self) -> bool:
        """Return whether the program has greeted."""
        return self.login.greeted

    def _why_ended(self) -> NodeFailure:
        """Return why the channel ended, from the exit code and the error output."""
        assert self._channel is not None
        greeted = self._greeted()
        # a program of ours that is to be connected to again is not waited for
        code = self._channel.wait(END_TIMEOUT if greeted else START_TIMEOUT)
        if self._unread and greeted:
            why = f"it read nothing for {WRITE_TIMEOUT:.0f} s"
            return NodeFailure(self.host, "broken", why)
        said = self._channel.stderr()
        exited = self._left_on_purpose(code)
        if exited is not None:
            return exited
        if greeted:
            words = login_shell.last_line(said)
            why = f"the connection to the agent ended{f': {words}' if words else ''}"
            return NodeFailure(self.host, "broken", why)
        return self._not_started(said, code)

    def _left_on_purpose(self, code: int | None) -> NodeFailure | None:
        """Return what an exit code of our program means; None: it has no meaning."""
        return None

    def _not_started(self, said: str, code: int | None) -> NodeFailure:
        """Return why there was no greeting: the login shell, or what our own line started."""
        printed, own = self.login.parts()
        if self.login.endless:
            return login_shell.endless(self.host, printed)
        if self._late or self._unread:
            explain = login_shell.endless if self.login.much else login_shell.hung
            return explain(self.host, printed)
        if code == login_shell.NO_PYTHON:
            return NodeFailure(
                self.host,
                "no-python",
                "python3 not found on the node's PATH",
                hint="install Python 3.8 or newer there, or set `python:` to an absolute path",
            )
        if code == login_shell.NO_TEXT:
            return login_shell.ate_input(self.host, printed)
        if not self.login.started and (code is not None or printed.strip()):
            return login_shell.left(self.host, printed, said, code)
        words = login_shell.last_line(said) or login_shell.first_line(own) or "no output"
        return NodeFailure(
            self.host,
            "protocol",
            f"the agent did not start (exit code {code}): {words}",
            hint="run the node's Python by hand with `-I -S`",
        )

    def _broke(self, error: OSError) -> NodeFailure:
        return NodeFailure(self.host, "broken", f"connection lost: {error}")

    def _lose(self, failure: NodeFailure) -> None:
        if failure.kind == "broken":
            failure = replace(failure, kind="lost")
        self._loss = failure
        event = "closed" if self._closing.is_set() else "lost"
        self._log.info(event, kind=failure.kind, text=failure.message)
        self.over = True
        self._abandon(failure)
        if not self._closing.is_set():
            self.interrupt()  # also for a thread that is still writing

    def _abandon(self, failure: NodeFailure) -> None:
        """Fail all pending requests; each is taken out of the table by one thread only."""
        with contextlib.suppress(KeyError):  # there are no more
            while True:
                _, request = self._waiting.popitem()
                request.future.set_exception(LostError(failure))
