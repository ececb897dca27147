"""A transport of a plugin, held to what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.registry import TRANSPORTS
from dslaunch.transport.base import Connection, Detour, Transport, detours_of

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node


class CheckedTransport:
    """Connects as the plugin's transport does. Raises PluginError for what is none of a transport's
    results, which would fail far from the plugin's code."""

    def __init__(self, name: str, transport: Transport) -> None:
        TRANSPORTS.check_returned(name, transport, Transport)
        self._name, self._transport = name, transport
        self._valid: set[type[Connection]] = set()
        """Types of connections that were checked: to check one of a thousand nodes takes 0.1 ms."""

    def connect(self, node: Node) -> Connection:
        """Open a connection. Raises NodeError, PluginError."""
        try:
            connection = self._transport.connect(node)
        except NodeError as error:
            for failure in error.failures:
                TRANSPORTS.check_returned(self._name, failure, NodeFailure)
            raise
        if type(connection) not in self._valid:
            TRANSPORTS.check_returned(self._name, connection, Connection)
            self._valid.add(type(connection))
        return connection

    def detours(self) -> tuple[Detour, ...]:
        """Return the nodes that were not reached as intended so far. Raises PluginError."""
        found = detours_of(self._transport)
        TRANSPORTS.check_returned(self._name, found, tuple)
        for detour in found:
            TRANSPORTS.check_returned(self._name, detour, Detour)
        return found

    def close(self) -> None:
        """Let go of what is shared by connections."""
        self._transport.close()
