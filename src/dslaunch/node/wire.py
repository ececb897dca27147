"""Messages between the nodes of a detached run: one JSON line each, that nobody else can make.

Every line carries a code (HMAC-SHA256) over its text, its place in the conversation and who
speaks, with a key that both ends know and a number that the listening end drew: a line can be
neither invented, nor replayed, nor sent back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator

    Message = Dict[str, Any]

LONGEST = 64 * 1024


class Broken(Exception):
    """The other end is gone, or is not who it should be."""


class Wire:
    """One connection. Never blocks; what cannot be sent breaks it, since messages are small."""

    def __init__(self, connection: socket.socket, token: str, *, listening: bool) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._token, self._listening = token, listening
        self._key = b""
        self._buffer = b""
        self._sent = self._received = 0
        if listening:
            self._agree(os.urandom(16).hex())
            self._write(self._nonce.encode() + b"\n")

    def _agree(self, nonce: str) -> None:
        self._nonce = nonce
        self._key = hmac.new(self._token.encode(), nonce.encode(), hashlib.sha256).digest()

    def ready(self) -> bool:
        """Whether the other end's number is known, so that it can be spoken to."""
        return bool(self._key)

    def send(self, message: Message) -> None:
        """Send a message. Raises Broken."""
        body = json.dumps(message).encode()
        self._sent += 1
        self._write(self._code(self._listening, self._sent, body) + b" " + body + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            if self.socket.send(data) != len(data):
                raise Broken("the other end does not read")
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> Iterator[Message]:
        """The messages that have come. Raises Broken."""
        try:
            data = self.socket.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(str(error)) from None
        if not data:
            raise Broken("the connection was closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > LONGEST:
            raise Broken("too long a line")
        for line in lines:
            if self._key:
                yield self._open(line)
            else:
                self._agree(line.decode(errors="replace"))

    def _open(self, line: bytes) -> Message:
        code, _, body = line.partition(b" ")
        self._received += 1
        if not hmac.compare_digest(code, self._code(not self._listening, self._received, body)):
            raise Broken("a message that is not genuine")
        try:
            message = json.loads(body)
        except ValueError:
            raise Broken("a message that is none") from None
        if not isinstance(message, dict):
            raise Broken("a message that is none")
        return message

    def _code(self, by_listener: bool, number: int, body: bytes) -> bytes:
        text = b"%d %d %s" % (by_listener, number, body)
        return hmac.new(self._key, text, hashlib.sha256).hexdigest().encode()
