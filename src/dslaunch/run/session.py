"""One node's end of a run as the launcher sees it: its events and output, and its agent's answers.

A connection that breaks during a run is made anew: the agent lives on behind it, keeps what the
ranks write, and sends what has not arrived.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Queue
from typing import IO, TYPE_CHECKING

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol import queries
from dslaunch.protocol.messages import (
    Arrived,
    Gone,
    Heartbeat,
    Hello,
    NodeEvent,
    ProtocolError,
    Reply,
)
from dslaunch.protocol.values import parse
from dslaunch.run import boot
from dslaunch.transport import program
from dslaunch.transport.wire import PIECE, Clock, LostError, Wire

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection, Transport

_CONFIRM_EVERY = 256 * 1024
INBOX_SIZE = 256
"""Pieces of output that may wait for the terminal before the nodes are made to wait."""
FIRST_RETRY, RETRY = 0.1, 1.0
"""Seconds until the first try to reach a node again, and between two."""
GOODBYE = 2.0
"""Seconds for a node to have read its program before we say goodbye; otherwise it has begun
nothing."""
CLOSED = 5.0
"""Seconds until a node ends the run after this end has closed the connection while this machine
answers: a launcher that lives is back at once."""
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


class Session(Wire):
    """Speaks to one agent. Events and output go to the inbox, replies to whoever asked."""

    def __init__(
        self, node: Node, connection: Connection, agent: boot.Agent, inbox: Inbox, way: Transport
    ) -> None:
        super().__init__(node, connection, run=agent.run)
        self.hello: Future[Hello] = Future()
        self.offset = 0.0
        """Seconds that the node's clock is ahead of ours."""
        self.idle = 0.0
        """Seconds for which its ranks did nothing, as it said last."""
        self._agent, self._inbox, self._way = agent, inbox, way
        self._confirmed = 0
        self._unconfirmed = 0
        self._began = self._heard_at = time.monotonic()
        """When the connection was there, and when the node was last heard."""
        self._gone: Gone | None = None
        self._back: Back | None = None
        """What to report once the agent has spoken over a connection that was made anew."""
        self._away_since: float | None = None
        """Since when it has not spoken to us, on the monotonic clock; None while it does."""
        self._holding = self._following = False

    def begin(self, *, join: bool = False) -> None:
        """Start the agent, or with `join` speak to the one that is there; and listen."""
        self._log.debug("starting-agent", join=join)
        self.start(boot.boot_text(self._agent, join=join))

    def expect(self, ranks: range) -> None:
        """Accept events and output of these ranks; until then, of none."""
        self._incoming.ranks = ranks

    @property
    def ranks(self) -> range:
        """The ranks that the node may report of."""
        return self._incoming.ranks

    # ------------------------------------------------------------ speaking

    def ask(self, questions: queries.Questions) -> Future[queries.Answers]:
        """Ask the node; the future holds the typed answers, or raises LostError."""

        def parsed(reply: Reply) -> queries.Answers:
            return queries.parse_answers(self.host, questions, reply.value)

        asked = {query.name: argument for query, argument in questions.items()}
        self._log.info("asked", questions=list(asked))
        return self._request("ask", parsed, questions=asked)

    def put(self, root: str, archive: IO[bytes]) -> Future[int]:
        """Unpack a tar archive below `root` on the node; the future holds the count of files."""
        id, future = self._expect(lambda reply: parse(queries.UNPACKED, reply.value))
        self.send(op="put", id=id, root=root)
        while piece := archive.read(PIECE):
            self._write(frames.pack_data(id, piece))
        self._write(frames.pack_data(id, b""))
        return future

    def measure_clock(self) -> Future[Clock]:
        """Find out by how much the node's clock is ahead, to half a round trip."""
        future = super().measure_clock()
        future.add_done_callback(self._set_offset)
        return future

    def _set_offset(self, measured: Future[Clock]) -> None:
        if measured.exception() is None:
            self.offset = measured.result().offset

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

    def close(self) -> None:
        """Say goodbye and let go. Safe to call twice."""
        self._closing.set()
        if not self.over and self._sent.wait(GOODBYE):
            self.send(op="bye")
        self.over = True
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.close_input()
            self._channel.wait(2)
            self._channel.close()
        self._connection.close()

    def _confirm(self) -> None:
        if self._incoming.number > self._confirmed:
            self._confirmed, self._unconfirmed = self._incoming.number, 0
            self.send(op="got", number=self._confirmed)

    # ------------------------------------------------------------ connecting

    def _reopen(self) -> None:
        """Find the agent that is there over a new connection. Raises NodeError, OSError."""
        if self._channel is not None:
            self._channel.close()
        self._connection.close()
        self._connection = self._connect_again()
        self._log.debug("starting-agent", join=True)
        channel = self._connection.start(program.line(self._node))
        text = boot.boot_text(self._agent, join=True, hold=self._holding)
        self._send_program(channel, text)

    def _recover(self, failure: NodeFailure) -> NodeFailure:
        """Connect anew to the agent that is there, and hear it; why that ended."""
        self._inbox.put((self, Away(failure)))
        self._log.info("reconnecting", kind=failure.kind, text=failure.message)
        pause = FIRST_RETRY
        while not self._closing.wait(pause):
            pause = RETRY
            try:
                self._reopen()
                with self._limited():
                    data = self._skip_login()
                    if data:
                        return self._resume(data)
            except NodeError as error:
                failure = error.failures[0]
            except OSError as error:
                failure = replace(failure, message=f"the connection broke: {error}")
            else:
                assert self._channel is not None
                code = self._channel.wait(2)
                if self._is_ours(boot.NO_AGENT, code):
                    return self._nobody_there()
                if self._is_ours(boot.STOPPED, code):
                    failure = replace(failure, message="its agent was stopped (SIGSTOP)")
                    resumed = replace(failure, message=f"{failure.message}; it is resumed")
                    self._inbox.put((self, Away(resumed)))
                    pause = FIRST_RETRY
            if self._time_left() <= 0:
                return self._too_long_away(failure)
        return failure

    def _time_left(self) -> float:
        """Seconds in which a node that is away may speak to us again."""
        assert self._away_since is not None
        return self._away_since + self._agent.reconnect - time.monotonic()

    def _too_long_away(self, failure: NodeFailure) -> NodeFailure:
        why = f"{failure.message}; not reached again within {self._agent.reconnect:g} s"
        return replace(failure, kind="lost", message=why)

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """End a new connection over which the agent does not speak in time: a node that sends
        little, but always something, must not be waited for."""
        assert self._channel is not None
        limit = threading.Timer(max(self._time_left(), LEAST_TRY), self._not_heard, [self._channel])
        limit.daemon = True
        limit.start()
        try:
            yield
        finally:
            limit.cancel()

    def _not_heard(self, channel: Channel) -> None:
        if self._away_since is not None:
            self.interrupt()
            channel.close()

    def _resume(self, data: bytes) -> NodeFailure:
        """Go on where the connection broke; why that ended."""
        assert self._away_since is not None
        self._send_follow(hold=True)
        self._incoming.reconnected()
        self._back = Back(time.monotonic() - self._away_since)
        failure = self._hear(data)
        return self._nobody_there() if self._gone is not None else failure

    def _nobody_there(self) -> NodeFailure:
        """Why there is no agent to connect to again."""
        waited = time.monotonic() - self._heard_at
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

    def _hear_to_the_end(self) -> NodeFailure:
        """Listen, over one connection after the other; why the last one ended."""
        failure = super()._hear_to_the_end()
        while self._holding and not self._closing.is_set() and failure.kind == "broken":
            if self._away_since is None:
                self._away_since = time.monotonic()
            elif self._time_left() <= 0:  # it was connected to again, and never spoke
                return self._too_long_away(failure)
            failure = self._recover(failure)
        return failure

    def _heard(self, size: int) -> None:
        self._unconfirmed += size
        if self._unconfirmed > _CONFIRM_EVERY:
            self._confirm()

    def _take(self, arrived: Arrived) -> None:
        self._heard_at = time.monotonic()
        if self._back is not None and not isinstance(arrived, Gone):
            self._inbox.put((self, self._back))
            self._back = self._away_since = None
        if isinstance(arrived, Reply):
            super()._take(arrived)
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

    def _greeted(self) -> bool:
        return self.hello.done()

    def _left_on_purpose(self, code: int | None) -> NodeFailure | None:
        if self._is_ours(boot.NO_AGENT, code):
            return NodeFailure(self.host, "no-agent", "nothing of this run is there")
        if self._is_ours(boot.STOPPED, code):
            why = "its agent was stopped (SIGSTOP); it is resumed"
            return NodeFailure(self.host, "stopped", why, hint="try again")
        return None

    def _is_ours(self, meant: int, code: int | None) -> bool:
        """Whether this exit code is our program's own: a start-up file may leave with any."""
        return code == meant and self.login.started

    def _lose(self, failure: NodeFailure) -> None:
        try:
            if failure.kind == "protocol" and self._sent.is_set():
                self.send(op="bye")  # a program that is only faulty ends what it started
            super()._lose(failure)
        finally:  # whatever fails, nobody may wait for this node
            if not self.hello.done():
                self.hello.set_exception(LostError(self._loss))
            self._inbox.put((self, Lost(self._loss, self._gone)))


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
