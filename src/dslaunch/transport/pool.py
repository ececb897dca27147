"""Connect to many nodes at once: bounded, in order, nobody lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.transport.base import Connection, Transport


def connect_all(
    transport: Transport, nodes: Sequence[Node], fanout: int
) -> dict[str, Connection | NodeFailure]:
    """Connect to every node, `fanout` at a time; a failure is a value, in the node's place."""

    def connect(node: Node) -> Connection | NodeFailure:
        try:
            return transport.connect(node)
        except NodeError as error:
            return error.failures[0]

    with ThreadPoolExecutor(max_workers=max(1, min(fanout, len(nodes)))) as pool:
        made = pool.map(connect, nodes)
        return {node.host: connection for node, connection in zip(nodes, made, strict=True)}
