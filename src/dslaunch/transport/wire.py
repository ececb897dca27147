"""The connection to the program on one node: requests, replies, and its loss.

The program on the node (`node/`) sends frames, which are validated before anything else sees them
(`protocol`). A node that sends anything else, or whose listener fails for any reason, is lost: the
failure names it, and nothing waits for it.

All nodes are listened to in one thread (`loop`), in which nothing here may block.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dslaunch import log
from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Arrived, Incoming, ProtocolError, Reply
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.transport import login_shell, loop, program
from dslaunch.transport.base import End, others_began
from dslaunch.transport.clock import Clock, MeasuredClock
from dslaunch.transport.future import Future
from dslaunch.transport.latch import Latch
from dslaunch.transport.writing_watch import WRITE_TIMEOUT, WritingWatch

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection
    from dslaunch.transport.loop import Timer

PIECE = 64 * 1024
"""Bytes of a file that are sent at a time."""
LEAVE_TIMEOUT = 3.0
"""Seconds for a program to clean up after the last request."""
Value = TypeVar("Value")


class LostError(Exception):
    """The node did not answer; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Request(Struct, frozen=True):
    """A request of ours that has no reply yet."""

    future: Future[Any]
    parsed: Callable[[Reply], Any]
    """From the reply to the answer. Raises InvalidAnswer."""
    sent: float
    """When it was sent, on the monotonic clock."""
    again: Callable[[], Mapping[str, Any]] | None = None
    """Makes the message again, which takes more memory than all else about it; None: it cannot be
    sent again."""


class Wire:
    """Starts the program on one node; sends it requests and hands out its replies."""

    __slots__ = (
        "_channel",
        "_clock",
        "_closing",
        "_connection",
        "_ended",
        "_finished",
        "_ids",
        "_incoming",
        "_late",
        "_log",
        "_login_limit",
        "_loss",
        "_most",
        "_node",
        "_quiet_since",
        "_size",
        "_stopped_reading",
        "_waiting",
        "_writing",
        "host",
        "login",
        "loop",
        "over",
    )

    def __init__(
        self, node: Node, connection: Connection, *, most: int | None = None, **fields: str
    ) -> None:
        """`most`: bytes that the node may send in all. `fields`: of everything that is logged,
        beside the node."""
        self.host = node.host
        self.over = False
        self.login = login_shell.LoginOutput(frames.GREETING)
        self.loop = loop.shared()
        self._node = node
        self._connection = connection
        self._channel: Channel | None = None
        self._log = log.Log(__name__, node=node.host, **fields)
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Request] = {}
        self._clock = MeasuredClock()
        self._writing: WritingWatch | None = None
        """Writes to the channel."""
        self._closing = Latch()
        self._ended = Latch()
        """Set when the program has ended, or the connection to it."""
        self._incoming = Incoming(ranks=range(0))
        self._most = most
        self._size = 0
        """Bytes that the node has sent since its greeting."""
        self._loss = NodeFailure(node.host, "lost", "connection lost")
        """Why there is no answer to what is asked once the node is lost."""
        self._late = False
        """Whether the login shell was given up."""
        self._stopped_reading = False
        """Whether the node stopped reading what we send."""
        self._quiet_since: float | None = None
        """When the node last sent something, on the monotonic clock; None: nothing is expected."""
        self._login_limit: Timer | None = None
        self._finished: Channel | None = None
        """The last channel over which nothing more comes."""

    def start(self, text: Sequence[bytes]) -> None:
        """Start the program with this text, and listen. After its loss every request fails.

        Does not wait until the node has read the program, which would delay the next node.
        """
        self.listen_to(program.start(self._connection, self._node, text))

    def listen_to(self, started: program.Started) -> None:
        """Listen to a program that was started over the connection, or is lost already."""
        try:
            self._listen_to(started)
        except OSError as error:
            failure = NodeFailure(self.host, "broken", f"connection lost: {error}")
            self._disconnected(failure, End())

    def _listen_to(self, started: program.Started) -> None:
        """Listen to a program that was started. Raises the OSError if it was not."""
        channel = started.channel.result()
        self.login = login_shell.LoginOutput(frames.GREETING)
        self._late = self._stopped_reading = False
        self._ended = Latch()
        self._channel = channel
        self._writing = WritingWatch(channel, self._reads_nothing, written=started.written)
        self._quiet_since = time.monotonic()
        self._limit_login(channel, login_shell.TIMEOUT)
        channel.listen(_Listener(self, channel))

    # ------------------------------------------------------------ speaking

    def send(self, **message: Any) -> None:
        """Send a message; if the node is gone, its loss is reported by the listener."""
        data = frames.pack_message(message)
        self._log.debug("sent", op=message["op"], id=message.get("id"), bytes=len(data))
        self._write(data)

    def request(self, operation: str, answer: TypeAdapter[Value], **message: Any) -> Future[Value]:
        """Send a message that is replied to; the future holds the typed reply, or raises
        LostError."""
        return self.request_made(operation, answer, lambda: message)

    def request_made(
        self, operation: str, answer: TypeAdapter[Value], make: Callable[[], Mapping[str, Any]]
    ) -> Future[Value]:
        """Send a message as `request` does. `make` returns it, again if it is sent again."""
        return self._request(operation, lambda reply: parse(answer, reply.value), make)

    def measure_clock(self) -> Future[Clock]:
        """Find out by how much the node's clock is ahead, in one round trip."""
        began = time.monotonic()

        def parsed(reply: Reply) -> Clock:
            found = Clock.compared(reply.time, round_trip=time.monotonic() - began)
            self._clock.take(found)
            return found

        return self._request("clock", parsed, dict)

    def known_clock(self) -> Clock | None:
        """Return by how much the node's clock is ahead, as all replies say; None: not measured."""
        return self._clock.known()

    @property
    def busy(self) -> bool:
        """Whether a request has no reply yet."""
        return bool(self._waiting)

    def end_if_silent(self, since: float) -> None:
        """Give the connection up if we have waited for the node since then, on the monotonic clock,
        and it has sent nothing.

        Only in the loop's thread, when everything is handled that has arrived: a launcher that is
        behind must not take a node for silent.
        """
        channel, quiet_since = self._channel, self._quiet_since
        if channel is None or quiet_since is None or quiet_since > since or channel.unread:
            return
        seconds = time.monotonic() - quiet_since
        failure = NodeFailure(self.host, "broken", f"nothing was heard for {seconds:.0f} s")
        self._give_up(channel, failure)

    def _give_up(self, channel: Channel, failure: NodeFailure) -> None:
        """Take nothing more from a channel, whose end is not waited for.

        Only in the loop's thread.
        """
        if channel is not self._finished:
            self._finished = channel
            self._disconnected(failure, End())

    def leave(self) -> None:
        """Let the program clean up and exit, and close the connection. A busy one does so when it
        notices that the launcher is gone; it is neither waited for nor killed."""
        self._closing.set()
        if self._channel is not None:
            was_busy = self.busy  # its end is that of all requests
            self._channel.close_input()
            if not was_busy and self._ended.wait(LEAVE_TIMEOUT):
                self._channel.close()
        self._connection.close()

    def hang_up(self) -> None:
        """Close the connection; pending requests fail."""
        self._closing.set()
        if self._channel is not None:
            self._channel.close()
        self._connection.close()

    def _request(
        self,
        operation: str,
        parsed: Callable[[Reply], Value],
        make: Callable[[], Mapping[str, Any]],
    ) -> Future[Value]:
        id, future = self._expect(parsed)
        self.send(op=operation, id=id, **make())
        self._abandon_if_over()
        return future

    def _abandon_if_over(self) -> None:
        """Fail what was requested after the loss of the node."""
        if self.over:
            self._abandon(self._loss)

    def _expect(
        self,
        parsed: Callable[[Reply], Value],
        again: Callable[[], Mapping[str, Any]] | None = None,
    ) -> tuple[int, Future[Value]]:
        """Return the number of a request and the future of its answer.

        `again`: returns what to send if the request is made again over another connection.
        """
        id = next(self._ids)
        future: Future[Value] = Future()
        self._waiting[id] = _Request(future, parsed, time.monotonic(), again)
        return id, future

    def _write(self, data: bytes) -> None:
        if self._writing is not None:
            self._writing.write(data)

    def _reads_nothing(self, channel: Channel) -> None:
        """Give the node up: it reads nothing of what is sent to it."""
        if channel is self._channel and not self.over:
            self._stopped_reading = True
            self._give_up(channel, self._why_ended(End()))

    # ------------------------------------------------------------ hearing

    def pause(self) -> None:
        """Take nothing more from the node until `resume`."""
        if self._channel is not None:
            self._quiet_since = None
            self._channel.pause()

    def resume(self) -> None:
        """Take more from the node after `pause`."""
        if self._channel is not None:
            self._quiet_since = time.monotonic()
            self._channel.resume()

    def _received(self, channel: Channel, data: bytes) -> None:
        """Take what the node has sent; a failure ends the connection."""
        if self.over or channel is not self._channel or channel is self._finished:
            return
        if self._quiet_since is not None:
            self._quiet_since = time.monotonic()
        failure = self._failure_of(data)
        if failure is not None:
            self._give_up(channel, failure)

    def _failure_of(self, data: bytes) -> NodeFailure | None:
        """Take what the node has sent; return why it cannot be listened to any more."""
        try:
            self._hear(data)
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
        except Exception as error:  # noqa: BLE001 - for every error: nothing may wait for this node
            return NodeFailure(self.host, "protocol", f"its listener failed: {error!r:.200}")
        if self.login.endless and not self.login.greeted:
            return self._not_started(End())
        return None

    def _hear(self, data: bytes) -> None:
        """Take what the login prints, and then messages. Raises ProtocolError."""
        if not self.login.greeted:
            data = self.login.add(data)
            if self.login.started:
                self._cancel_login_limit()
            if not self.login.greeted:
                return
            self._take_greeting()
        self._count(len(data))
        for arrived in self._incoming.feed(data):
            self._take(arrived)
        self._heard(len(data))

    def _count(self, size: int) -> None:
        """Count what has come, before it is kept. Raises ProtocolError when it is too much."""
        self._size += size
        if self._most is not None and self._size > self._most:
            raise ProtocolError(f"more than {self._most >> 20} MiB in all")

    def _cancel_login_limit(self) -> None:
        if self._login_limit is not None:
            self._login_limit.cancel()

    def _too_late(self, channel: Channel) -> None:
        """Close a login whose shell does not start our line, unless others over the same way have
        begun since: it may have had to wait for them."""
        if channel is not self._channel or self.over or self._closing.is_set:
            return
        left = others_began(channel) + login_shell.TIMEOUT - time.monotonic()
        if left > 0:
            self._limit_login(channel, left)
            return
        self._late = True
        self._give_up(channel, self._why_ended(End()))

    def _limit_login(self, channel: Channel, seconds: float) -> None:
        self._login_limit = self.loop.call_later(seconds, lambda: self._too_late(channel))

    def _take(self, arrived: Arrived) -> None:
        """Pass a reply to its caller. Raises ProtocolError for anything else."""
        if not isinstance(arrived, Reply):
            raise ProtocolError("not a reply")
        request = self._waiting.pop(arrived.reply, None)
        if request is None:
            raise ProtocolError("a reply to no request")
        self._compare_clocks(request, arrived)
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

    def _compare_clocks(self, request: _Request, reply: Reply) -> None:
        """Measure by how much the node's clock is ahead, by a reply with the time of its request's
        arrival: what the node has worked between both is no part of the round trip."""
        if reply.received is None:
            return
        trip = time.monotonic() - request.sent
        worked = reply.time - reply.received
        was_set = not 0 <= worked <= trip
        if not was_set:
            self._clock.take(Clock.compared(reply.time, round_trip=trip - worked))

    def _take_greeting(self) -> None:
        """Take note that the program has greeted: its messages follow."""

    def _heard(self, size: int) -> None:
        """Record the number of bytes that were received and handled."""

    def _protocol_error(self, why: str) -> LostError:
        return LostError(NodeFailure(self.host, "protocol", why))

    # ------------------------------------------------------------ why it ended

    def _greeted(self) -> bool:
        """Return whether the program has greeted."""
        return self.login.greeted

    def _channel_ended(self, channel: Channel, end: End) -> None:
        """Take note that the program, or the connection to it, has ended."""
        if channel is not self._channel:
            return
        if not self.over and channel is not self._finished:
            self._finished = channel
            failure = self._loss if self._closing.is_set else self._why_ended(end)
            self._disconnected(failure, end)
        self._ended.set()

    def _disconnected(self, failure: NodeFailure, end: End) -> None:
        """Take note that nothing more comes over this connection, and why."""
        self._stop_waiting()
        self._lose(failure)

    def _stop_waiting(self) -> None:
        self._quiet_since = None
        self._cancel_login_limit()

    def _why_ended(self, end: End) -> NodeFailure:
        """Return why the channel ended, from the exit code and the error output."""
        greeted = self._greeted()
        if self._stopped_reading and greeted:
            why = f"it read nothing for {WRITE_TIMEOUT:.0f} s"
            return NodeFailure(self.host, "broken", why)
        exited = self._left_on_purpose(end.code)
        if exited is not None:
            return exited
        if greeted:
            words = login_shell.last_line(end.stderr) or end.error
            why = f"the connection to the agent ended{f': {words}' if words else ''}"
            return NodeFailure(self.host, "broken", why)
        return self._not_started(end)

    def _left_on_purpose(self, code: int | None) -> NodeFailure | None:
        """Return what an exit code of our program means; None: it has no meaning."""
        return None

    def _not_started(self, end: End) -> NodeFailure:
        """Return why there was no greeting: the login shell, or what our own line started."""
        said, code = end.stderr, end.code
        printed, own = self.login.parts()
        if self.login.endless:
            return login_shell.endless(self.host, printed)
        if self._late or self._stopped_reading:
            explain = login_shell.endless if self.login.much else login_shell.hung
            return explain(self.host, printed)
        if code == login_shell.NO_PYTHON:
            return self._no_python("python3 not found on the node's PATH")
        if code == login_shell.OLD_PYTHON:
            return self._no_python(login_shell.last_line(said) or "its Python is too old")
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

    def _no_python(self, why: str) -> NodeFailure:
        hint = "install Python 3.8 or newer there, or set `python:` to an absolute path"
        return NodeFailure(self.host, "no-python", why, hint=hint)

    def _lose(self, failure: NodeFailure) -> None:
        if failure.kind == "broken":
            failure = replace(failure, kind="lost")
        self._loss = failure
        event = "closed" if self._closing.is_set else "lost"
        self._log.info(event, kind=failure.kind, text=failure.message)
        self.over = True
        self._abandon(failure)
        if not self._closing.is_set:
            close_soon(self._channel, self._connection)

    def _abandon(self, failure: NodeFailure) -> None:
        """Fail all pending requests; each is taken out of the table by one thread only."""
        with contextlib.suppress(KeyError):  # there are no more
            while True:
                _, request = self._waiting.popitem()
                request.future.set_exception(LostError(failure))


def close_soon(channel: Channel | None, connection: Connection) -> None:
    """Close a connection and the channel on it, which others may share; does not wait."""
    if channel is not None:
        channel.close()
    threading.Thread(target=connection.close, daemon=True).start()


class _Listener:
    """Takes what comes over one channel of a wire, which may have had others before."""

    __slots__ = ("_channel", "_wire")

    def __init__(self, wire: Wire, channel: Channel) -> None:
        self._wire, self._channel = wire, channel

    def received(self, data: bytes) -> None:
        """Take what the node has sent."""
        self._wire._received(self._channel, data)

    def ended(self, end: End) -> None:
        """Take note of the end."""
        self._wire._channel_ended(self._channel, end)
