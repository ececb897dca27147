"""Which client of an agent is the launcher of the run, and for how long that has been gone."""

from __future__ import annotations

import time

from dslaunch.node import peer, threads

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict, Optional

    from dslaunch.node.client import AgentClient


class Holder:
    """The launcher of the run, which may be gone and reconnect."""

    def __init__(self, timeouts: Dict[str, float]) -> None:
        """`timeouts`: see `Agent`."""
        self.client: Optional[AgentClient] = None
        """None: the launcher is gone."""
        self._heartbeat, self._reconnect = timeouts["heartbeat"], timeouts["reconnect"]
        self._gone_since = time.monotonic()
        """When the run was last held."""
        self._left_at: Optional[float] = None
        """`_gone_since`, once it is known that the launcher has left and its machine answers."""
        self._left_limit = 0.0
        """Seconds that such a launcher has to reconnect."""

    def take(self, client: AgentClient) -> None:
        """Let a client hold the run, unless it is closed already: its end was handled then."""
        if not client.closed:
            self.client = client

    def note_contact(self) -> None:
        """Restart the reconnect timeout: the launcher is reconnecting."""
        self._gone_since = time.monotonic()

    def forget(self, client: AgentClient) -> None:
        """Note that a client is gone; if it was the launcher, it may reconnect."""
        if client is not self.client:
            return
        self.client = None
        # at the latest: a stopped agent notices the end of a connection later
        since = min(time.monotonic(), client.heard + self._heartbeat)
        self._gone_since = since
        if client.ended and client.closed_limit is not None:
            self._left_limit = client.closed_limit
            threads.start(lambda: self._look_for(client.ssh, since))

    def _look_for(self, connection: str, since: float) -> None:
        """Find out, in a thread, whether the launcher that was lost at `since` has exited."""
        if peer.has_left(connection):
            self._left_at = since

    def is_abandoned(self, *, may_reconnect: bool) -> bool:
        """Return whether the launcher is gone, and its time to reconnect is over if it has any."""
        if self.client is not None:
            return False
        limit = self._reconnect if may_reconnect else 0.0
        if self._left_at == self._gone_since:
            limit = min(limit, self._left_limit)
        return time.monotonic() - self._gone_since >= limit

    def check_heartbeat(self) -> None:
        """Close the launcher's connection after its heartbeat timeout."""
        if self._is_silent():
            assert self.client is not None
            self.client.read()  # this process may have been stopped, and messages may be waiting
        if self._is_silent():
            assert self.client is not None
            self.client.close()

    def _is_silent(self) -> bool:
        return self.client is not None and time.monotonic() - self.client.heard > self._heartbeat
