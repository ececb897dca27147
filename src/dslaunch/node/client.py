"""A client of the agent: the launcher of the run, or a command such as `status` or `stop`."""

from __future__ import annotations

import socket
import time

from dslaunch.node import frames

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Optional

    from dslaunch.node.agent import Agent


LAST_MESSAGE_TIMEOUT = 2.0
"""Seconds for a client to take the last message of an agent that has failed."""


class AgentClient:
    """A connection, with the frames that are still to be written to it."""

    def __init__(self, connection: socket.socket, agent: Agent) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.agent = agent
        self.heard = time.monotonic()
        self.sent: Optional[int] = None
        """The number of the last journal frame written to it; None: it follows nothing."""
        self.closed = False
        self.ended = False
        """Whether the client closed the connection, and not the agent."""
        self.ssh = ""
        """The SSH connection that it came by; see `peer`."""
        self.reconnecting = False
        """Whether it has announced itself as the launcher of the run, which holds it later."""
        self.closed_limit: Optional[float] = None
        """Seconds that it has to reconnect once it is known to have exited."""
        self._decoder = frames.Decoder()
        self._outbox = bytearray(frames.GREETING)
        """What is written at once: the launcher pays for each piece that arrives."""

    def say(self, message: frames.Message) -> None:
        """Send a message that is for this client alone, after what it follows."""
        self._fill()
        self._outbox += frames.pack_message(message)
        self.write()

    def reply(self, request: int, value: Any) -> None:
        """Send the answer to a request, by its number."""
        self.say({"reply": request, "value": value, "time": time.time()})

    def refuse(self, request: int, why: str) -> None:
        """Send why a request, by its number, has no answer."""
        self.say({"reply": request, "error": why, "time": time.time()})

    def beat(self, idle: float) -> None:
        """Send a heartbeat, with the seconds for which the ranks have been idle; but not behind
        what is still pending: for a client that reads nothing these would fill the memory."""
        if not self._outbox:
            self.say({"event": "beat", "time": time.time(), "idle": idle})

    def say_last(self, message: frames.Message) -> None:
        """Send what is pending and a last message, unless the client takes too long."""
        try:
            self.socket.settimeout(LAST_MESSAGE_TIMEOUT)
            self.socket.sendall(self._outbox + frames.pack_message(message))
        except OSError:  # the client is gone as well
            pass

    def follow(self, after: int) -> None:
        """Send the journal after frame `after`, for as long as the client is connected."""
        self.sent = after
        self.write()

    def write(self) -> None:
        """Write what can be written now, and watch for writability if more is pending."""
        try:
            while not self.closed and self._fill():
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if not self.closed:
            self.agent.watch_client(self, writing=bool(self._outbox))

    def ready(self) -> None:
        """Write and read: it is ready for at least one of both."""
        self.write()
        if not self.closed:
            self.read()

    def _fill(self) -> bool:
        """Fill the outbox from the journal; return whether anything is to be written."""
        if not self._outbox and self.sent is not None and self.sent < self.agent.journal.last:
            data, self.sent = self.agent.journal.read(self.sent)
            self._outbox += data
        return bool(self._outbox)

    def read(self) -> None:
        """Read and carry out its messages; at their end the client is gone."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.heard = time.monotonic()
        if not data:
            self.ended = True
            self.close()
            return
        try:
            for frame in self._decoder.feed(data):
                if self.closed:  # by an earlier message, or because a reply could not be written
                    return
                self.agent.take(self, frame)
        except frames.FrameError:
            self.close()

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self.agent.forget(self)
            self.socket.close()
