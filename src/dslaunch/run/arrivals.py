"""What arrives from the node of a run."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import Gone, NodeEvent


@dataclass(frozen=True, slots=True)
class Lost:
    """The node is lost."""

    failure: NodeFailure
    gone: Gone | None = None
    """How its agent ended, if known."""


@dataclass(frozen=True, slots=True)
class Away:
    """The connection was lost; the session reconnects."""

    failure: NodeFailure


@dataclass(frozen=True, slots=True)
class Back:
    """The session has reconnected; nothing was lost."""

    after: float
    """Seconds that this took."""


Arrival = NodeEvent | frames.Output | Lost | Away | Back
