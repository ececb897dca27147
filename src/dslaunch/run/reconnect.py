"""Reconnect to the agent of a node whose connection was lost.

An absence begins when the connection is lost, and ends with the first message of the agent over
another one, or with the loss of the node. The agent keeps running for its reconnect timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.run.arrivals import Back
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Connection, End, Transport
    from dslaunch.transport.latch import Latch

FIRST_RETRY, RETRY = 0.1, 1.0
"""Seconds before the first try, and between further ones."""
LEAST_TRY = 3.0
"""Seconds for one try, at least."""


class Joined(Enum):
    """How a try to join an agent ended."""

    GREETED = "greeted"
    """The agent has greeted; its messages follow."""
    NO_AGENT = "no agent"
    """No agent of the run is running there."""
    STOPPED = "stopped"
    """The agent was suspended (SIGSTOP), and is resumed now."""
    ENDED = "ended"
    """The connection, or the program that joins, ended before."""


class Absence:
    """A node without a connection, until its agent has sent something over another one."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds in which the agent waits for us."""
        self._timeout = timeout
        self._since = time.monotonic()
        self._joining: Future[End | None] | None = None
        self.back: Back | None = None
        """What to report with the agent's next message; None: no program has greeted yet."""

    @property
    def time_left(self) -> float:
        """Return for how many seconds the node may still be unreachable."""
        return self._since + self._timeout - time.monotonic()

    @property
    def time_of_a_try(self) -> float:
        """Return how many seconds one try may take: a node that sends a little again and again
        must not be waited for."""
        return max(self.time_left, LEAST_TRY)

    def too_long(self, failure: NodeFailure) -> NodeFailure:
        """Return the loss of a node that could not be reached in time, at last for this reason."""
        why = f"{failure.message}; no reconnect within {self._timeout:g} s"
        return replace(failure, kind="lost", message=why)

    def begin_try(self) -> Future[End | None]:
        """Begin to join over a new connection. The future is None once the program has greeted, or
        how it ended before."""
        self._joining = Future()
        return self._joining

    def greeted(self) -> bool:
        """Take note that the program over the new connection has greeted; return whether a try has
        succeeded by that."""
        joining, self._joining = self._joining, None
        if joining is not None:
            self.back = Back(time.monotonic() - self._since)
            joining.set_result(None)
        return joining is not None

    def ended(self, end: End) -> bool:
        """Take note that the new connection has ended; return whether a try has failed by that."""
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.set_result(end)
        return joining is not None


def reconnect(
    absence: Absence,
    failure: NodeFailure,
    closing: Latch,
    *,
    join: Callable[[bool], Joined],
    without_agent: Callable[[], NodeFailure | None],
    on_resumed: Callable[[NodeFailure], object],
) -> NodeFailure | None:
    """Try to reconnect, again and again; return why the node is lost, None: it is not.

    `failure`: why it is away, until a try has failed in another way. `closing`: ends the tries.
    `join` joins the running agent over a new connection, or with False starts one; it raises
    NodeError, OSError. `without_agent` returns why a node without an agent is lost; None: it may be
    started again. `on_resumed` is called when the agent was suspended.
    """
    pause, is_running = FIRST_RETRY, True
    while not closing.wait(pause):
        pause = RETRY
        try:
            joined = join(is_running)
        except NodeError as error:
            failure = error.failures[0]
        except OSError as error:
            failure = replace(failure, message=f"connection lost: {error}")
        else:
            if joined is Joined.GREETED:
                return None
            is_running = joined is not Joined.NO_AGENT
            lost = None if is_running else without_agent()
            if lost is not None:
                return lost
            if joined is Joined.STOPPED:
                failure = replace(failure, message="its agent was suspended (SIGSTOP)")
                on_resumed(replace(failure, message=f"{failure.message} and is resumed"))
                pause = FIRST_RETRY
        if absence.time_left <= 0:
            return absence.too_long(failure)
    return failure  # we are closing


def connect_within(seconds: float, transport: Transport, node: Node) -> Connection:
    """Connect to a node, but do not wait longer: what was sent while the network was down is not
    retransmitted at once, and a further try may succeed sooner.

    Raises NodeError.
    """
    made: Future[Connection] = Future()

    def connect() -> None:
        try:
            made.set_result(transport.connect(node))
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            made.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return made.result(seconds)
    except TimeoutError:
        made.add_done_callback(_close_connection)
        why = f"no answer within {seconds:g} s"
        raise NodeError((NodeFailure(node.host, "timeout", why),)) from None


def _close_connection(made: Future[Connection]) -> None:
    """Close a connection that was made too late."""
    if made.exception() is None:
        made.result().close()
