"""A node whose program sends what a test says, to the real survey of a preflight."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dslaunch.cluster.model import Node
from dslaunch.node import frames
from dslaunch.transport.base import End
from dslaunch.transport.channel import PushChannel


class ScriptedNode(PushChannel):
    """A connection and its channel: answers from a table, in the protocol of `node/survey.py`.

    `sent` is what an honest node sends, `{"hello": ..., "answers": {key: ...}, "clock": None}`, or
    a hostile variant of that: then its parts are sent as they are.
    """

    def __init__(self, sent: Any, honest: Mapping[str, Any]) -> None:
        super().__init__()
        self.sent = sent
        self._extra = [key for key in _part(sent, "answers") if key not in honest["answers"]]
        self._program: bytes | None = b""
        """What has come of the program; None once that is whole."""
        self._requests = frames.Decoder()
        self._said: list[bytes] = []

    def start(self, line: str, text: Sequence[bytes] = ()) -> ScriptedNode:
        """The same node for every program."""
        for piece in text:
            self.write(piece)
        return self

    unsent = 0

    def flush(self, timeout: float) -> bool:
        """Everything is taken at once."""
        return True

    def write(self, data: bytes) -> None:
        """Take the program, or requests."""
        if self._program is not None:
            self._program += data
            size = program_size(self._program)
            if len(self._program) < size:
                return
            data, self._program = self._program[size:], None
            self._say(frames.GREETING)
        for request in self._requests.feed(data):
            assert isinstance(request, dict)
            self._reply(request)

    def _reply(self, request: dict[str, Any]) -> None:
        if not isinstance(self.sent, dict):
            self._send(self.sent)
        elif request["op"] == "clock":
            told = self.sent.get("clock")
            now = time.time() if told is None else told
            self._send({"reply": request["id"], "time": now, "value": None})
        else:
            value = {name: self.sent[name] for name in ("hello", "answers") if name in self.sent}
            if isinstance(value.get("answers"), dict):
                keys = [*request["questions"], *self._extra]
                missing = {"error": "not recorded"}
                value["answers"] = {key: value["answers"].get(key, missing) for key in keys}
            self._send({"reply": request["id"], "time": time.time(), "value": value})

    def _send(self, message: Any) -> None:
        self._say(frames.frame(frames.MESSAGE, json.dumps(message).encode()))

    def _say(self, data: bytes) -> None:
        self._said.append(data)
        self.loop.call(self.read_on)

    def read_on(self) -> None:
        """Deliver the messages that there are."""
        while self.wanted and self._said:
            self.deliver(self._said.pop(0))

    def close_input(self) -> None:
        """Nothing waits for it."""

    def close(self) -> None:
        """It has nothing more to say."""
        self.loop.call(lambda: self.tell_end(End(0)))


class ScriptedTransport:
    """Leads to scripted nodes."""

    def __init__(self, nodes: Mapping[str, ScriptedNode]) -> None:
        self._nodes = nodes

    def connect(self, node: Node) -> ScriptedNode:
        """The node of that name."""
        return self._nodes[node.host]

    def close(self) -> None:
        """Nothing is held."""


def program_size(text: bytes) -> int:
    """Return the length of the program that the launcher sends first; see `transport.program`."""
    length, _, loader = text.partition(b"\n")
    sizes = re.search(rb"for size in \(([0-9, ]+)\)", loader)
    if sizes is None:
        return len(text) + 1
    return len(length) + 1 + int(length) + sum(map(int, sizes[1].split(b",")))


def _part(sent: Any, name: str) -> dict[str, Any]:
    found = sent.get(name) if isinstance(sent, dict) else None
    return found if isinstance(found, dict) else {}
