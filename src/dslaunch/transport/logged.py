"""Log the connections of a transport."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dslaunch import log
from dslaunch.errors import NodeError
from dslaunch.transport.base import detours_of

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Connection, Detour, Transport


class LoggedTransport:
    """Connects through another transport, and logs it."""

    def __init__(self, name: str, transport: Transport) -> None:
        self._transport = transport
        self._log = log.Log("dslaunch.transport", transport=name)

    def connect(self, node: Node) -> Connection:
        """Open a connection. Raises NodeError."""
        began = time.monotonic()
        self._log.debug("connecting", node=node.host)
        try:
            connection = self._transport.connect(node)
        except NodeError as error:
            failure = error.failures[0]
            seconds = time.monotonic() - began
            self._log.info("connect-failed", node=node.host, kind=failure.kind, seconds=seconds)
            raise
        self._log.info("connected", node=node.host, seconds=time.monotonic() - began)
        return connection

    def detours(self) -> tuple[Detour, ...]:
        """Return the nodes that were not reached as intended so far."""
        return detours_of(self._transport)

    def close(self) -> None:
        """Close what connections share."""
        self._transport.close()
