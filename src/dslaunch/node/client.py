"""One who speaks to the agent: the launcher of the run, or somebody who looks or stops."""

from __future__ import annotations

import socket
import time
from collections import deque

from dslaunch.node import frames

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Deque, Optional

    from dslaunch.node.agent import Agent


LAST_WORD = 2.0
"""Seconds for a client to take what an agent says that has failed."""


class AgentClient:
    """A connection with what is still to be written to it."""

    def __init__(self, connection: socket.socket, agent: Agent) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.agent = agent
        self.heard = time.monotonic()
        self.sent: Optional[int] = None
        """The number of the last journal frame written to it; None: it follows nothing."""
        self.closed = False
        self.ended = False
        """It closed the connection; it was not given up."""
        self.ssh = ""
        """The SSH connection that it came by; see `peer`."""
        self.closed_limit: Optional[float] = None
        """Seconds that it has to come back where it is known to have left."""
        self._decoder = frames.Decoder()
        self._outbox: Deque[bytes] = deque([frames.GREETING])

    def say(self, message: frames.Message) -> None:
        """Send a message that is for this client alone."""
        self._outbox.append(frames.pack_message(message))
        self.write()

    def say_last(self, message: frames.Message) -> None:
        """Send what is still to be sent and a last message, if it is taken within a moment."""
        try:
            self.socket.settimeout(LAST_WORD)
            self.socket.sendall(b"".join(self._outbox) + frames.pack_message(message))
        except OSError:  # it has gone as well
            pass

    def follow(self, after: int) -> None:
        """Send the journal from behind frame `after` on, for as long as the client is there."""
        self.sent = after
        self.write()

    def write(self) -> None:
        """Write what can be written now, and be told when more can."""
        try:
            while not self.closed and self._fill():
                taken = self.socket.send(self._outbox[0])
                rest = self._outbox.popleft()[taken:]
                if rest:
                    self._outbox.appendleft(rest)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        if not self.closed:
            self.agent.watch_client(self, writing=bool(self._outbox))

    def _fill(self) -> bool:
        """Have something to write, if there is anything."""
        if not self._outbox and self.sent is not None and self.sent < self.agent.journal.last:
            data, self.sent = self.agent.journal.read(self.sent)
            self._outbox.append(data)
        return bool(self._outbox)

    def read(self) -> None:
        """Take what it says; the end of it means that it is gone."""
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
                if self.closed:  # by what it said before, or by an answer that did not reach it
                    return
                self.agent.take(self, frame)
        except frames.FrameError:
            self.close()

    def close(self) -> None:
        """Let go of it. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self.agent.forget(self)
            self.socket.close()
