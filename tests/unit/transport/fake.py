"""Nodes that answer from a table: for tests and for documentation, also those of users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from dslaunch.errors import NodeError, NodeFailure, UsageError
from dslaunch.transport.base import End
from dslaunch.transport.channel import PushChannel

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program on a fake node writes and how it ends."""

    stdout: bytes = b""
    stderr: str = ""
    exit_code: int | None = 0
    """None: the connection breaks instead."""


class FakeChannel(PushChannel):
    """A program whose whole output is known beforehand."""

    unsent = 0

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.written = b""
        """All that was sent to its standard input."""
        self._answer = answer
        self._left = [answer.stdout] if answer.stdout else []

    def read_on(self) -> None:
        """Deliver the output, once; then the end."""
        if self.wanted and self._left:
            self.deliver(self._left.pop())
            self.loop.call(self.read_on)
        elif self.wanted:
            self.tell_end(End(self._answer.exit_code, self._answer.stderr))

    def write(self, data: bytes) -> None:
        """Keep what is sent."""
        self.written += data

    def flush(self, timeout: float) -> bool:
        """Everything is taken at once."""
        return True

    def close_input(self) -> None:
        """Nothing waits for it."""

    def close(self) -> None:
        """Nothing is held."""


class FakeConnection:
    """A connection to a fake node."""

    def __init__(self, host: str, transport: FakeTransport) -> None:
        self._host, self._transport = host, transport

    def start(self, line: str, text: Sequence[bytes] = ()) -> FakeChannel:
        """Give the first answer whose pattern is found in `line`; exit code 127 without one."""
        self._transport.started.append((self._host, line))
        for (host, pattern), answer in self._transport.script.items():
            if host in (self._host, "*") and re.search(pattern, line):
                return FakeChannel(answer)
        return FakeChannel(Answer(stderr="not in the table", exit_code=127))

    def close(self) -> None:
        """Nothing is held."""


class FakeTransport:
    """Answers by a table: `{(host or "*", pattern): Answer(...)}`, first match wins."""

    def __init__(
        self,
        script: Mapping[tuple[str, str], Answer],
        failures: Mapping[str, NodeFailure] | None = None,
    ) -> None:
        self.script = script
        self.failures = failures or {}
        """Host -> why it cannot be connected to."""
        self.started: list[tuple[str, str]] = []
        """Host and line of everything that was started, in order."""

    def connect(self, node: Node) -> FakeConnection:
        """Connect, unless the table says otherwise. Raises NodeError."""
        if node.host in self.failures:
            raise NodeError((self.failures[node.host],))
        return FakeConnection(node.host, self)

    def close(self) -> None:
        """Nothing is held."""


def make(cluster: Cluster) -> NoReturn:
    """Raise UsageError: a fake cluster needs its table, which a cluster file cannot hold."""
    raise UsageError(
        "transport `fake` is for programs: it needs a table of answers",
        hint="use `dslaunch.transport.fake.FakeTransport` in a test, or `transport: local`",
    )
