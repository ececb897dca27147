"""One node's end of a run as the launcher sees it: requests, replies, events, and its loss.

A connection that breaks during a run is made anew: the agent lives on behind it, keeps what the
ranks write, and sends what has not arrived.

What a node sends is validated before it reaches anybody (`protocol`). A node that sends anything
else, or whose listener fails for any reason, is lost: the failure names it, and nothing waits.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Queue
from typing import IO, TYPE_CHECKING, Any, TypeVar

from dslaunch import log
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol import queries
from dslaunch.protocol.messages import (
    Arrived,
    Gone,
    Heartbeat,
    Hello,
    Incoming,
    NodeEvent,
    ProtocolError,
    Reply,
)
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run import boot
from dslaunch.transport import login, program

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection, Transport

_PIECE = 64 * 1024
"""Bytes that are sent at a time."""
WRITE_TIMEOUT = 10.0
"""Seconds for a node to take one piece. Below the silence after which other nodes miss us, since
whoever sends to this node waits."""
_CONFIRM_EVERY = 256 * 1024
INBOX_SIZE = 256
"""Pieces of output that may wait for the terminal before the nodes are made to wait."""
FIRST_RETRY, RETRY = 0.1, 1.0
"""Seconds until the first try to reach a node again, and between two."""
CLOSED = 5.0
"""Seconds until a node ends the run after this end has closed the connection while this machine
answers: a launcher that lives is back at once."""
QUICKLY = 0.2
"""Seconds for the exit code of a program whose connection broke."""
LEAST_TRY = 3.0
"""Seconds for one try to connect again, at least."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The node can no longer be spoken to."""

    failure: NodeFailure
    gone: Gone | None = None
    """How its agent ended, if that is known."""


@dataclass(frozen=True, slots=True)
class Away:
    """The connection broke; it is being made anew."""

    failure: NodeFailure


@dataclass(frozen=True, slots=True)
class Back:
    """The connection is there again, and nothing was missed."""

    after: float
    """Seconds that it took."""


Arrival = NodeEvent | frames.Output | Lost | Away | Back
Inbox = Queue[tuple["Session", Arrival]]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of ours that has no reply yet."""

    future: Future[Any]
    parsed: Callable[[object], Any]
    """From the reply's value to the answer. Raises InvalidAnswer."""
    sent: float
    """When it was sent, on the monotonic clock."""


class LostError(Exception):
    """The session ended before it answered; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Session:
    """Speaks to one agent. Events and output go to the inbox, replies to whoever asked."""

    def __init__(
        self, node: Node, connection: Connection, agent: boot.Agent, inbox: Inbox, way: Transport
    ) -> None:
        self.host = node.host
        self.hello: Future[Hello] = Future()
        self.offset = 0.0
        """Seconds that the node's clock is ahead of ours."""
        self.idle = 0.0
        """Seconds for which its ranks did nothing, as it said last."""
        self.over = False
        self._loss = NodeFailure(node.host, "lost", "the connection is gone")
        """Why there is no answer to what is asked once the session is over."""
        self._node, self._agent, self._inbox, self._way = node, agent, inbox, way
        self._log = log.Log(__name__, node=node.host, run=agent.run)
        self._connection = connection
        self._channel: Channel | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Request] = {}
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._noise = b""
        self._late = False
        """Whether the login shell was given up."""
        self._incoming = Incoming(ranks=range(0))
        self._confirmed = 0
        self._unconfirmed = 0
        self._reading_since: float | None = None
        self._began = self._heard = time.monotonic()
        """When the connection was there, and when the node was last heard."""
        self._gone: Gone | None = None
        self._holding = self._following = False
        self._unread = False
        """Whether the node stopped reading what we send."""

    def begin(self, *, join: bool = False) -> None:
        """Start the agent, or with `join` speak to the one that is there; and listen."""
        try:
            self._open(join=join)
        except OSError as error:
            self._lose(NodeFailure(self.host, "lost", f"the connection broke: {error}"))
            return
        threading.Thread(target=self._listen, name=f"session {self.host}", daemon=True).start()

    def expect(self, ranks: range) -> None:
        """Accept events and output of these ranks; until then, of none."""
        self._incoming.ranks = ranks

    @property
    def ranks(self) -> range:
        """The ranks that the node may report of."""
        return self._incoming.ranks

    # ------------------------------------------------------------ speaking

    def send(self, **message: Any) -> None:
        """Send a message; if the node is gone, its loss is reported by the listener."""
        data = frames.pack_message(message)
        self._log.debug("sent", op=message["op"], id=message.get("id"), bytes=len(data))
        self._write(data)

    def ask(self, questions: queries.Questions) -> Future[queries.Answers]:
        """Ask the node; the future holds the typed answers, or raises LostError."""

        def parsed(value: object) -> queries.Answers:
            return queries.parse_answers(self.host, questions, value)

        asked = {query.name: argument for query, argument in questions.items()}
        self._log.info("asked", questions=list(asked))
        return self._request("ask", parsed, questions=asked)

    def request(self, operation: str, answer: TypeAdapter[Value], **message: Any) -> Future[Value]:
        """Send a message that is replied to; the future holds the typed reply, or raises
        LostError."""
        return self._request(operation, lambda value: parse(answer, value), **message)

    def _request(
        self, operation: str, parsed: Callable[[object], Value], **message: Any
    ) -> Future[Value]:
        id, future = self._expect(parsed)
        self.send(op=operation, id=id, **message)
        return future

    def put(self, root: str, archive: IO[bytes]) -> Future[int]:
        """Unpack a tar archive below `root` on the node; the future holds the count of files."""
        id, future = self._expect(lambda value: parse(queries.UNPACKED, value))
        self.send(op="put", id=id, root=root)
        while piece := archive.read(_PIECE):
            self._write(frames.pack_data(id, piece))
        self._write(frames.pack_data(id, b""))
        return future

    def measure_clock(self) -> Future[None]:
        """Find out by how much the node's clock is ahead, to half a round trip."""
        asked = time.time()
        future = self.request("clock", queries.CLOCK)
        future.add_done_callback(lambda _: self._set_offset(asked))
        return future

    def follow(self, *, hold: bool) -> None:
        """Have events and output sent. With `hold` the run ends when we are gone for too long,
        and a connection that breaks is made anew."""
        self._holding, self._following = hold, True
        self._send_follow(hold=hold)

    def _send_follow(self, *, hold: bool) -> None:
        closed = CLOSED if hold and is_ours(self.hello.result().peer) else None
        self.send(op="follow", after=self._incoming.number, hold=hold, closed=closed)

    def has_caught_up(self) -> bool:
        """Whether all has arrived that the node had to tell when it greeted."""
        return self._incoming.number >= self.hello.result().last

    def ping(self) -> None:
        """Show that we are there, and what has arrived."""
        if self._writing.locked():  # what is being sent shows it, and other nodes wait for theirs
            return
        self._confirm()
        self.send(op="ping")

    def silent(self) -> float:
        """Seconds for which we have waited for the node to say something."""
        since = self._reading_since
        return 0.0 if since is None else time.monotonic() - since

    def interrupt(self) -> None:
        """Give this connection up, and have it made anew; does not wait."""
        self._reading_since = None
        connection = self._connection
        threading.Thread(target=connection.close, daemon=True).start()

    def close(self) -> None:
        """Say goodbye and let go. Safe to call twice."""
        self._closing.set()
        if not self.over:
            self.send(op="bye")
        self.over = True
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.close_input()
            self._channel.wait(2)
            self._channel.close()
        self._connection.close()

    def _write(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            if self._channel is not None:
                self._send_all(self._channel, data)

    def _send_all(self, channel: Channel, data: bytes) -> None:
        """Write to a node that may stop reading. Raises OSError."""
        for start in range(0, len(data), _PIECE):
            limit = threading.Timer(WRITE_TIMEOUT, self._give_up, [channel])
            limit.daemon = True
            limit.start()
            try:
                channel.write(data[start : start + _PIECE])
            finally:
                limit.cancel()

    def _give_up(self, channel: Channel) -> None:
        """End a connection that takes nothing, and whoever waits to write to it."""
        self._unread = True
        self.interrupt()
        channel.close()

    def _confirm(self) -> None:
        if self._incoming.number > self._confirmed:
            self._confirmed, self._unconfirmed = self._incoming.number, 0
            self.send(op="got", number=self._confirmed)

    def _expect(self, parsed: Callable[[object], Value]) -> tuple[int, Future[Value]]:
        id, future = next(self._ids), Future[Value]()
        self._waiting[id] = _Request(future, parsed, time.monotonic())
        if self.over:
            self._abandon(self._loss)
        return id, future

    # ------------------------------------------------------------ connecting

    def _open(self, *, join: bool) -> None:
        """Start the program at the other end. Raises OSError."""
        self._log.debug("starting-agent", join=join)
        channel = self._connection.start(program.line(self._node, announced=True))
        with contextlib.suppress(OSError):  # a program that died says why on its other streams
            hold = join and self._holding
            self._send_all(channel, boot.boot_text(self._agent, join=join, hold=hold))
        self._channel = channel

    def _recover(self, failure: NodeFailure) -> NodeFailure:
        """Connect anew to the agent that is there, and hear it; why that ended."""
        self._inbox.put((self, Away(failure)))
        self._log.info("reconnecting", kind=failure.kind, text=failure.message)
        began = time.monotonic()
        pause = FIRST_RETRY
        while not self._closing.wait(pause):
            pause = RETRY
            try:
                if self._channel is not None:
                    self._channel.close()
                self._connection.close()
                self._connection = self._connect_again()
                self._open(join=True)
                data = self._skip_noise()
            except NodeError as error:
                failure = error.failures[0]
            except OSError as error:
                failure = replace(failure, message=f"the connection broke: {error}")
            else:
                if data:
                    return self._resume(data, began)
                assert self._channel is not None
                code = self._channel.wait(2)
                if self._is_ours(boot.NO_AGENT, code):
                    return self._nobody_there()
                if self._is_ours(boot.STOPPED, code):
                    failure = replace(failure, message="its agent was stopped (SIGSTOP)")
                    resumed = replace(failure, message=f"{failure.message}; it is resumed")
                    self._inbox.put((self, Away(resumed)))
                    pause = FIRST_RETRY
            if time.monotonic() - began > self._agent.reconnect:
                why = f"{failure.message}; not reached again within {self._agent.reconnect:g} s"
                return replace(failure, kind="lost", message=why)
        return failure

    def _resume(self, data: bytes, began: float) -> NodeFailure:
        """Go on where the connection broke; why that ended."""
        self._send_follow(hold=True)
        failure = self._hear(data, back=Back(time.monotonic() - began))
        return self._nobody_there() if self._gone is not None else failure

    def _nobody_there(self) -> NodeFailure:
        """Why there is no agent to connect to again."""
        waited = time.monotonic() - self._heard
        if self._gone is not None:
            why = self._gone.error or "its agent was killed"
        elif waited >= self._agent.reconnect:
            why = f"it ended its part: it had not been reached for {waited:.0f} s"
        else:
            why = "its agent is gone"
        return NodeFailure(self.host, "lost", why)

    def _connect_again(self) -> Connection:
        """Connect, but do not wait for one try for as long as for a node that has never answered:
        what was sent while the network was away is not repeated at once.

        Raises NodeError.
        """
        made: Future[Connection] = Future()

        def connect() -> None:
            try:
                made.set_result(self._way.connect(self._node))
            except Exception as error:  # noqa: BLE001 - raised again by who waits
                made.set_exception(error)

        threading.Thread(target=connect, daemon=True).start()
        try:
            return made.result(max(self._agent.silence, LEAST_TRY))
        except TimeoutError:
            made.add_done_callback(_hang_up)
            why = "no answer in time"
            raise NodeError((NodeFailure(self.host, "timeout", why),)) from None

    # ------------------------------------------------------------ hearing

    def _listen(self) -> None:
        try:
            failure = self._hear_to_the_end()
        except OSError as error:
            failure = NodeFailure(self.host, "broken", f"the connection broke: {error}")
        except Exception as error:  # noqa: BLE001 - for every error: nothing may wait for this node
            failure = NodeFailure(self.host, "protocol", f"its listener failed: {error!r:.200}")
        if failure.kind == "protocol":
            self.send(op="bye")  # a program that is only faulty ends what it started
            self.interrupt()
        self._lose(failure)

    def _hear_to_the_end(self) -> NodeFailure:
        """Listen, over one connection after the other; why the last one ended."""
        failure = self._hear(self._skip_noise())
        while self._holding and not self._closing.is_set() and failure.kind == "broken":
            failure = self._recover(failure)
        return failure

    def _hear(self, data: bytes, back: Back | None = None) -> NodeFailure:
        """Take what comes, until the channel ends; why it did. Once the agent has spoken, report
        that it is `back`."""
        self._incoming.reconnected()
        try:
            while data:
                for arrived in self._incoming.feed(data):
                    self._heard = time.monotonic()
                    if back is not None and not isinstance(arrived, Gone):
                        self._inbox.put((self, back))
                        back = None
                    self._take(arrived)
                self._unconfirmed += len(data)
                if self._unconfirmed > _CONFIRM_EVERY:
                    self._confirm()
                data = self._read()
            return self._why()
        except ProtocolError as error:
            return NodeFailure(
                self.host,
                "protocol",
                f"it sent what no agent sends: {error}",
                hint="look for a program that writes into the connection, or a compromised node",
            )
        except OSError as error:
            return NodeFailure(self.host, "broken", f"the connection broke: {error}")

    def _read(self) -> bytes:
        assert self._channel is not None
        self._reading_since = time.monotonic()
        try:
            return self._channel.read()
        finally:
            self._reading_since = None

    def _skip_noise(self) -> bytes:
        """Read up to the greeting; what a login shell prints before it is kept for messages."""
        assert self._channel is not None
        self._noise, self._late = b"", False
        limit = threading.Timer(login.TIMEOUT, self._too_late, [self._channel])
        limit.daemon = True
        limit.start()
        try:
            while frames.GREETING not in self._noise:
                piece = self._read()
                if not piece or len(self._noise) > login.MOST_NOISE:
                    return b""
                self._noise += piece
                if login.STARTED in self._noise:
                    limit.cancel()
        finally:
            limit.cancel()
        self._noise, _, rest = self._noise.partition(frames.GREETING)
        return rest or self._read()

    def _too_late(self, channel: Channel) -> None:
        """End a login whose shell does not begin with what it was given."""
        self._late = True
        self.interrupt()
        channel.close()

    def _take(self, arrived: Arrived) -> None:
        if isinstance(arrived, Reply):
            self._replied(arrived)
        elif isinstance(arrived, Hello):
            if not self.hello.done():
                self._log.info("agent-started", seconds=time.monotonic() - self._began)
                self.hello.set_result(arrived)
        elif isinstance(arrived, Heartbeat):
            self.idle = arrived.idle
        elif isinstance(arrived, Gone):
            self._gone = arrived
        elif self._following:
            self._inbox.put((self, arrived))
        else:  # it would have to be kept, however much there is of it
            raise ProtocolError("events or output before it was asked for them")

    def _replied(self, reply: Reply) -> None:
        request = self._waiting.pop(reply.reply, None)
        if request is None:  # asked over a connection that broke
            return
        if reply.error is not None:
            request.future.set_exception(self._protocol_error(reply.error))
            return
        self._reply_time = reply.time
        self._log.debug("answered", id=reply.reply, seconds=time.monotonic() - request.sent)
        try:
            request.future.set_result(request.parsed(reply.value))
        except InvalidAnswer as error:
            request.future.set_exception(self._protocol_error(f"its answer is invalid: {error}"))

    def _protocol_error(self, why: str) -> LostError:
        return LostError(NodeFailure(self.host, "protocol", why))

    def _set_offset(self, asked: float) -> None:
        self.offset = getattr(self, "_reply_time", asked) - (asked + time.time()) / 2

    def _why(self) -> NodeFailure:
        """Say why the channel ended, from the exit code and what was written beside it."""
        assert self._channel is not None
        # a program of ours that is to be connected to again is not waited for
        code = self._channel.wait(2 if not self.hello.done() else QUICKLY)
        if self._unread and self.hello.done():
            why = f"it took nothing that was sent to it for {WRITE_TIMEOUT:.0f} s"
            return NodeFailure(self.host, "broken", why)
        said = self._channel.stderr()
        if self._is_ours(boot.NO_AGENT, code):
            return NodeFailure(self.host, "no-agent", "nothing of this run is there")
        if self._is_ours(boot.STOPPED, code):
            why = "its agent was stopped (SIGSTOP); it is resumed"
            return NodeFailure(self.host, "stopped", why, hint="try again")
        if self.hello.done():
            words = login.last_line(said)
            why = f"the connection to the agent ended{f': {words}' if words else ''}"
            return NodeFailure(self.host, "broken", why)
        return self._not_started(said, code)

    def _is_ours(self, meant: int, code: int | None) -> bool:
        """Whether this exit code is our program's own: a start-up file may leave with any."""
        return code == meant and login.STARTED in self._noise

    def _not_started(self, said: str, code: int | None) -> NodeFailure:
        """Say why there was no greeting; what our own line has started is told from the login."""
        printed, started, own = self._noise.partition(login.STARTED)
        if self._late or self._unread:
            return login.hung(self.host, printed)
        if len(self._noise) > login.MOST_NOISE:
            return login.endless(self.host, printed)
        not_run = program.why_not_run(self.host, code, printed, said)
        if not_run is not None:
            return not_run
        if not started and (code is not None or printed.strip()):
            return login.left(self.host, printed, said, code)
        words = login.last_line(said) or login.first_line(own) or "it said nothing"
        return NodeFailure(
            self.host,
            "protocol",
            f"the agent did not start (exit code {code}): {words}",
            hint="try the node's Python by hand, with `-I -S`",
        )

    def _lose(self, failure: NodeFailure) -> None:
        if failure.kind == "broken":
            failure = replace(failure, kind="lost")
        self._loss = failure
        event = "closed" if self._closing.is_set() else "lost"
        self._log.info(event, kind=failure.kind, text=failure.message)
        self.over = True
        if not self.hello.done():
            self.hello.set_exception(LostError(failure))
        self._abandon(failure)
        self._inbox.put((self, Lost(failure, self._gone)))

    def _abandon(self, failure: NodeFailure) -> None:
        for request in list(self._waiting.values()):
            if not request.future.done():
                request.future.set_exception(LostError(failure))
        self._waiting.clear()


def _hang_up(made: Future[Connection]) -> None:
    """Close a connection that nobody waits for any more."""
    if made.exception() is None:
        made.result().close()


def is_ours(address: str | None) -> bool:
    """Whether an address is one of this machine's that others reach it by: then there is neither
    a jump host nor a translation of addresses between it and who told it."""
    try:
        version = ipaddress.ip_address(address or "").version
        if ipaddress.ip_address(address or "").is_loopback:
            return False
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
