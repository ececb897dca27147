"""What arrives from the node of a run."""

from __future__ import annotations

from msgspec import Struct

from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Gone, NodeEvent


class Lost(Struct, frozen=True):
    """The node is lost."""

    failure: NodeFailure
    gone: Gone | None = None
    """How its agent ended, if known."""


class Away(Struct, frozen=True):
    """The connection was lost; the session reconnects."""

    failure: NodeFailure


class Back(Struct, frozen=True):
    """The session has reconnected; nothing was lost."""

    after: float
    """Seconds that this took."""


Arrival = NodeEvent | frames.Output | Lost | Away | Back
