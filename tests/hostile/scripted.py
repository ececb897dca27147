"""A node whose program sends what a test says, to the real survey of a preflight."""

from __future__ import annotations

import ast
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from dslaunch.cluster.model import Node

BOUND = 30.0
"""Seconds for the first questions to come: they are sent by another thread than reads."""


class ScriptedNode:
    """A connection and its channel: answers from a table, in the protocol of `node/survey.py`.

    `sent` is what an honest node sends, `{"hello": ..., "answers": {key: ...}, "clock": None}`, or
    a hostile variant of that: then its parts are sent as they are.
    """

    def __init__(self, sent: Any, honest: Mapping[str, Any]) -> None:
        self.sent = sent
        self._extra = [key for key in _part(sent, "answers") if key not in honest["answers"]]
        self._mark = b""
        self._lines: list[bytes] = []
        self._asked = threading.Event()

    def start(self, line: str) -> ScriptedNode:
        """The same node for every program."""
        return self

    def write(self, data: bytes) -> None:
        """Take the program, or a request."""
        if not self._mark:
            found = re.search(rb"^main\((.*)\)$", data, re.MULTILINE)
            assert found is not None
            self._mark = str(ast.literal_eval(found[1].decode())["mark"]).encode()
            self._send("hello", self._own("hello"))
            return
        request = json.loads(data)
        if "clock" in request:
            told = self._own("clock")
            self._send("clock", time.time() if told is None else told)
            return
        answers = self._own("answers")
        if isinstance(answers, dict):
            keys = [*request["questions"], *self._extra]
            answers = {key: answers.get(key, {"error": "not recorded"}) for key in keys}
        self._send("answers", answers)
        self._asked.set()

    def read(self) -> bytes:
        """The next line, once questions have come; none is the end."""
        self._asked.wait(BOUND)
        return self._lines.pop(0) if self._lines else b""

    def _own(self, name: str) -> Any:
        return self.sent.get(name) if isinstance(self.sent, dict) else None

    def _send(self, name: str, value: Any) -> None:
        whole = isinstance(self.sent, dict) and name in self.sent
        message = {name: value} if whole else self.sent
        self._lines.append(self._mark + json.dumps(message).encode() + b"\n")

    def close_input(self) -> None:
        """Nothing waits for it."""

    def wait(self, timeout: float) -> int | None:
        """It has ended."""
        return 0

    def stderr(self) -> str:
        """It wrote no errors."""
        return ""

    def close(self) -> None:
        """Nothing is held."""


class ScriptedTransport:
    """Leads to scripted nodes."""

    def __init__(self, nodes: Mapping[str, ScriptedNode]) -> None:
        self._nodes = nodes

    def connect(self, node: Node) -> ScriptedNode:
        """The node of that name."""
        return self._nodes[node.host]

    def close(self) -> None:
        """Nothing is held."""


def _part(sent: Any, name: str) -> dict[str, Any]:
    found = sent.get(name) if isinstance(sent, dict) else None
    return found if isinstance(found, dict) else {}
