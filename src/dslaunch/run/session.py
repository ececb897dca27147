"""The connection to one agent of a run: its events and output, and its answers.

If the connection is lost during a run, the session reconnects: the agent keeps running, keeps the
output of the ranks, and sends what has not arrived.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol import queries
from dslaunch.protocol.messages import (
    Arrived,
    Gone,
    Heartbeat,
    Hello,
    ProtocolError,
    Reply,
)
from dslaunch.protocol.values import parse
from dslaunch.run import agent_program
from dslaunch.run.arrivals import Away, Back, Lost
from dslaunch.run.own_address import is_own_address
from dslaunch.run.reconnect import LEAST_TRY, Absence, Joined, connect_within, reconnect
from dslaunch.transport import program
from dslaunch.transport.base import End
from dslaunch.transport.clock import Clock
from dslaunch.transport.future import Future
from dslaunch.transport.wire import PIECE, LostError, Value, Wire, close_soon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dslaunch.cluster.model import Node
    from dslaunch.run.inbox import Inbox
    from dslaunch.transport.base import Channel, Connection, Transport

_PING = frames.pack_message({"op": "ping"})
_CONFIRM_EVERY = 256 * 1024
_MOST_UNSENT = 8 * PIECE
"""Bytes of a file that are queued for a node."""
CLOSED = 5.0
"""Seconds until a node ends the run after we have closed the connection while this machine is
reachable: a running launcher reconnects at once."""
EXIT_TIMEOUT = 2.0
"""Seconds for an agent to exit when it is dismissed."""
REPEATABLE = ("ask", "clock", "survey")
"""Requests that a node may be sent twice: if the connection is lost before it has started ranks,
they are sent again over the next one."""


class Session(Wire):
    """Speaks to one agent. Events and output go to the inbox, replies to their requests."""

    __slots__ = (
        "_absence",
        "_agent",
        "_began",
        "_confirmed",
        "_exit_by",
        "_following",
        "_gone",
        "_heard_at",
        "_holding",
        "_inbox",
        "_resumed",
        "_sending",
        "_start",
        "_transport",
        "_unconfirmed",
        "hello",
        "idle",
    )

    def __init__(
        self,
        node: Node,
        connection: Connection,
        agent: agent_program.AgentStart,
        inbox: Inbox,
        transport: Transport,
    ) -> None:
        super().__init__(node, connection, run=agent.run)
        self.hello: Future[Hello] = Future()
        self.idle = 0.0
        """Seconds without output or computation of its ranks, as last reported."""
        self._agent = agent
        self._inbox = inbox
        self._transport = transport
        self._confirmed = 0
        """The number of the last frame whose arrival was confirmed."""
        self._unconfirmed = 0
        """Bytes that have arrived since."""
        self._began = time.monotonic()
        """When the agent was started, on the monotonic clock."""
        self._heard_at = self._began
        """When the node last sent something."""
        self._gone: Gone | None = None
        self._absence: Absence | None = None
        """None: it is reachable."""
        self._exit_by = 0.0
        """Until when a dismissed agent may exit, on the monotonic clock."""
        self._holding = agent.waits
        """Whether a lost connection is made again."""
        self._following = False
        """Whether events and output were requested."""
        self._sending = threading.RLock()
        """So that a request is sent once over a connection: when it is made, or again."""
        self._start: Callable[[], Mapping[str, Any]] | None = None
        """Makes the message that starts the ranks, until the node has sent an event."""
        self._resumed = False
        """Whether we have reconnected at least once."""

    def begin(self, started: program.Started | None = None) -> None:
        """Listen to an agent that was started over the connection; None: start one."""
        if started is None:
            started = agent_program.start(self._connection, self._node, self._agent)
        self._began = started.began
        self.listen_to(started)

    def expect(self, ranks: range) -> None:
        """Accept events and output of these ranks; before, of none."""
        self._incoming.ranks = ranks

    @property
    def node(self) -> Node:
        """Return the node."""
        return self._node

    @property
    def ranks(self) -> range:
        """Return the ranks that the node may report."""
        return self._incoming.ranks

    # ------------------------------------------------------------ speaking

    def ask(
        self, questions: queries.Questions, known: queries.KnownValues | None = None
    ) -> Future[queries.Answers]:
        """Ask the node; the future has the typed answers, or raises LostError.

        `known`: the values of other nodes that are asked the same.
        """

        def parsed(reply: Reply) -> queries.Answers:
            return queries.parse_answers(self.host, questions, reply.value, known)

        def make() -> dict[str, Any]:
            return {"questions": {query.name: about for query, about in questions.items()}}

        self._log.info("asked", questions=[query.name for query in questions])
        return self._request("ask", parsed, make)

    def put(self, root: str, digests: Sequence[str], *, from_node: bool) -> tuple[int, Future[int]]:
        """Announce a tar archive that is to be unpacked below `root` on the node.

        `digests`: SHA-256 of its pieces. With `from_node` another node sends them, and not we.
        Returns the number of the archive there, and a future with the number of files.
        """
        with self._sending:
            id, future = self._expect(lambda reply: parse(queries.UNPACKED, reply.value))
            self.send(op="put", id=id, root=root, pieces=list(digests), from_node=from_node)
        self._abandon_if_over()
        return id, future

    def start_ranks(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """Start the ranks; their events come to who follows. `make` returns the message, again if
        it is sent again."""
        with self._sending:
            self._start = make
            if self._absence is None:
                self.send(**make())

    def send_piece(self, archive: int, piece: bytes) -> None:
        """Send a piece of an announced archive, and wait while much is unsent."""
        self._write(frames.pack_data(archive, piece))
        self._wait_for_reader()

    def received(self, archive: int) -> Future[int]:
        """Ask how many pieces of an archive have arrived; the future raises LostError."""
        return self.request("received", queries.RECEIVED, archive=archive)

    def hand_on(self, archive: int, about: Mapping[str, Any]) -> Future[queries.HandedOn]:
        """Have the node send an archive to another one; the future raises LostError.

        `about`: see `node/handover.py`.
        """
        return self.request("hand_on", queries.HANDED_ON, archive=archive, **about)

    def _wait_for_reader(self) -> None:
        """Wait while much of what was written is unsent. A node that reads nothing is lost."""
        channel = self._channel
        while channel is not None and channel.unsent > _MOST_UNSENT:
            if self.over or channel is self._finished:
                return
            channel.flush(EXIT_TIMEOUT)

    @property
    def offset(self) -> float:
        """Return by how many seconds the node's clock is ahead of ours."""
        return self._clock.offset

    @property
    def clock_error(self) -> float:
        """Return by how many seconds `offset` may be off; infinite: it was not measured."""
        return self._clock.error

    def _request(
        self,
        operation: str,
        parsed: Callable[[Reply], Value],
        make: Callable[[], Mapping[str, Any]],
    ) -> Future[Value]:
        again = None
        if self._holding and operation in REPEATABLE:
            again = partial(_with_operation, operation, make)
        with self._sending:
            id, future = self._expect(parsed, again)
            if self._absence is None:
                self.send(op=operation, id=id, **make())
        self._abandon_if_over()
        return future

    def _write(self, data: bytes) -> None:
        """Send data, unless we are reconnecting: a part could be read with the program, and be
        lost."""
        if self._absence is None or self.login.greeted:
            super()._write(data)

    def follow(self, *, hold: bool) -> None:
        """Request events and output. With `hold` the run ends if we are unreachable for too long,
        and a lost connection is made again."""
        self._holding, self._following = hold, True
        self._send_follow(hold=hold)

    def _send_follow(self, *, hold: bool) -> None:
        closed = CLOSED if hold and is_own_address(self.hello.result().peer) else None
        self.send(op="follow", after=self._incoming.number, hold=hold, closed=closed)

    def skip(self, number: int) -> None:
        """Do not request the frames up to this number when following: they were read before."""
        self._incoming.number = max(self._incoming.number, number)

    def has_caught_up(self) -> bool:
        """Return whether everything has arrived that the node had when it greeted."""
        return self._incoming.number >= self.hello.result().last

    def ping(self) -> None:
        """Send a heartbeat, and confirm what has arrived."""
        if self._channel is not None and self._channel.unsent:  # what is being sent counts
            return
        # earlier, a part of this message could be read with the program, and be lost
        if not self.hello.done():
            return
        self._confirm()
        self._write(_PING)

    def dismiss(self) -> None:
        """Let the agent exit; its exit is not waited for. Safe to call twice."""
        if self._closing.is_set:
            return
        self._closing.set()
        self._exit_by = time.monotonic() + EXIT_TIMEOUT
        if not self.over:
            self.send(op="bye")
        self.over = True
        if self._channel is not None:
            self._channel.close_input()

    def close(self) -> None:
        """Dismiss the agent and close the connection. Safe to call twice."""
        self.dismiss()
        if self._channel is not None:
            self._ended.wait(max(0.0, self._exit_by - time.monotonic()))
            self._channel.close()
        self._connection.close()

    def _confirm(self) -> None:
        if self._incoming.number > self._confirmed:
            self._confirmed, self._unconfirmed = self._incoming.number, 0
            self.send(op="got", number=self._confirmed)

    # ------------------------------------------------------------ connecting

    def _recover(self, absence: Absence, failure: NodeFailure) -> None:
        """Reconnect to the agent, or lose the node. `failure`: of the connection.

        Runs in a separate thread, because it waits.
        """
        self._inbox.note(self, Away(failure))
        self._log.info("reconnecting", kind=failure.kind, text=failure.message)
        try:
            final = reconnect(
                absence,
                failure,
                self._closing,
                join=lambda is_running: self._rejoin(absence, join=is_running),
                without_agent=self._loss_without_agent,
                on_resumed=lambda resumed: self._inbox.note(self, Away(resumed)),
            )
        except Exception as error:  # noqa: BLE001 - of a plugin's transport: nothing may wait for this node
            final = NodeFailure(self.host, "lost", f"reconnecting failed: {error!r:.200}")
        if final is not None:
            self._lose(final)

    def _rejoin(self, absence: Absence, *, join: bool) -> Joined:
        """Join the running agent over a new connection, or start one. Raises NodeError, OSError."""
        limit = min(max(self._agent.heartbeat, LEAST_TRY), absence.time_of_a_try)
        previous_channel, previous_connection = self._channel, self._connection
        self._connection = connect_within(limit, self._transport, self._node)
        try:
            ended = self._join(absence, join=join)
        finally:
            # not before: an agent that sees its launcher close the connection soon ends the run
            close_soon(previous_channel, previous_connection)
        if ended is None:
            return Joined.GREETED
        if self._is_ours(agent_program.NO_AGENT, ended.code):
            return Joined.NO_AGENT
        return Joined.STOPPED if self._is_ours(agent_program.STOPPED, ended.code) else Joined.ENDED

    def _join(self, absence: Absence, *, join: bool) -> End | None:
        """Join the running agent over the connection, or start one; return how that ended, None
        once it has greeted. Raises OSError."""
        joining = absence.begin_try()
        limit = absence.time_of_a_try
        started = agent_program.start(
            self._connection, self._node, self._agent, join=join, hold=self._holding
        )
        self._listen_to(started)
        channel = self._channel
        self.loop.call_later(limit, lambda: self._not_heard(channel))
        return joining.result(limit + LEAST_TRY)

    def _not_heard(self, channel: Channel | None) -> None:
        """Close a new connection over which the agent has sent no message in time."""
        if channel is not None and channel is self._channel and self._absence is not None:
            self._give_up(channel, self._why_ended(End()))

    def _take_greeting(self) -> None:
        """Expect the agent's first message, after which we continue where the connection was
        lost, if it was."""
        if self._absence is not None and self._absence.greeted():
            self._resumed = True
            self._incoming.reconnected()

    def _continue(self, back: Back, first: Arrived) -> None:
        """Continue where the connection was lost. Raises ProtocolError."""
        if not self.hello.done():
            raise ProtocolError("a message before its greeting")
        self._inbox.note(self, back)
        self._send_follow(hold=True)
        with self._sending:
            self._absence = None
            is_waiting = isinstance(first, Hello) and not first.started
            unrepeatable = self._send_again() if is_waiting else []
        for future in unrepeatable:
            why = "the connection was lost meanwhile"
            future.set_exception(LostError(NodeFailure(self.host, "lost", why)))

    def _send_again(self) -> list[Future[Any]]:
        """Send all that a node without ranks has not answered. Return requests that cannot be sent
        again."""
        unrepeatable = []
        for id, request in list(self._waiting.items()):
            if request.again is None:
                unrepeatable.append(self._waiting.pop(id).future)
            else:
                self.send(id=id, **request.again())
        if self._start is not None:
            self.send(**self._start())
        return unrepeatable

    def _loss_without_agent(self) -> NodeFailure | None:
        """Return why a node is lost on which no agent is running; None: an agent that has got no
        message yet did not wait for us, and another one can be started."""
        return self._no_agent() if self._following or self._gone is not None else None

    def _no_agent(self) -> NodeFailure:
        """Return why there is no agent to reconnect to."""
        waited = time.monotonic() - self._heard_at
        if self._gone is not None:
            why = self._gone.error or "its agent was killed"
        elif waited >= self._agent.reconnect:
            why = f"it stopped its ranks after {waited:.0f} s without contact"
        else:
            why = "its agent has exited"
        return NodeFailure(self.host, "lost", why)

    # ------------------------------------------------------------ hearing

    def _disconnected(self, failure: NodeFailure, end: End) -> None:
        absence = self._absence
        if absence is not None and absence.ended(end):  # `_recover` tries again
            return
        if self._resumed and self._gone is not None:
            failure = self._no_agent()
        if not self._holding or self._closing.is_set or failure.kind != "broken":
            super()._disconnected(failure, end)
            return
        self._stop_waiting()
        if absence is None:
            absence = self._absence = Absence(self._agent.reconnect)
        elif absence.time_left <= 0:  # reconnected, but the agent never greeted
            super()._disconnected(absence.too_long(failure), end)
            return
        name = f"reconnect {self.host}"
        threading.Thread(
            target=self._recover, args=[absence, failure], name=name, daemon=True
        ).start()

    def _heard(self, size: int) -> None:
        self._unconfirmed += size
        if self._unconfirmed > _CONFIRM_EVERY:
            self._confirm()

    def _take(self, arrived: Arrived) -> None:
        self._heard_at = time.monotonic()
        if isinstance(arrived, Hello) and not self.hello.done():
            seconds = time.monotonic() - self._began
            self._log.info("agent-started", seconds=seconds)
            self._clock.take(Clock.compared(arrived.time, round_trip=seconds))
            self.hello.set_result(arrived)
        back = self._absence.back if self._absence is not None else None
        if back is not None and not isinstance(arrived, Gone):
            self._continue(back, arrived)
        if isinstance(arrived, Reply):
            super()._take(arrived)
        elif isinstance(arrived, Hello):
            pass  # it was taken above
        elif isinstance(arrived, Heartbeat):
            self.idle = arrived.idle
        elif isinstance(arrived, Gone):
            self._gone = arrived
        elif self._following:
            self._start = None  # it has arrived
            self._inbox.add(self, arrived)
        else:  # it would fill the memory
            raise ProtocolError("events or output that were not requested")

    def _greeted(self) -> bool:
        return self.hello.done()

    def _not_started(self, end: End) -> NodeFailure:
        unexplained = not self._late and not self._stopped_reading and not self.login.endless
        if self._agent.waits and end.code is None and unexplained:
            return NodeFailure(self.host, "broken", "the connection ended before the agent started")
        return super()._not_started(end)

    def _left_on_purpose(self, code: int | None) -> NodeFailure | None:
        if self._is_ours(agent_program.NO_AGENT, code):
            return NodeFailure(self.host, "no-agent", "no agent of this run is running there")
        if self._is_ours(agent_program.STOPPED, code):
            why = "its agent was suspended (SIGSTOP) and is resumed"
            return NodeFailure(self.host, "stopped", why, hint="try again")
        return None

    def _is_ours(self, meant: int, code: int | None) -> bool:
        """Return whether this exit code is our program's own: a start-up file may exit with any."""
        return code == meant and self.login.started

    def _lose(self, failure: NodeFailure) -> None:
        try:
            if failure.kind in ("protocol", "noisy-shell"):
                self.send(op="bye")  # a program that is only faulty ends what it started
            super()._lose(failure)
        finally:  # whatever fails, nothing may wait for this node
            if not self.hello.done():
                self.hello.set_exception(LostError(self._loss))
            self._inbox.add(self, Lost(self._loss, self._gone))


def _with_operation(operation: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a message with what it requests."""
    return {"op": operation, **make()}
