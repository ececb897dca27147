"""Messages between the nodes of a detached run: lines of JSON that only the two ends can make.

Each member has its own secret key, which the launcher gave to it and to the first node only.

    first node -> member   NONCE_1
    member -> first node   NONCE_2 HOST
    both ways              CODE BODY

- A nonce is 32 random bytes in hexadecimal, drawn for this connection. Since both ends draw one,
  a conversation that was recorded can be replayed to neither.
- HOST is the member's name. It selects the key and proves nothing by itself.
- BODY is a JSON object. CODE is the HMAC-SHA256 over who sends it, its number in that direction and
  BODY, with a key derived from the member's key, both nonces and HOST: a line can be neither
  invented, nor changed, left out, repeated, moved to another connection or sent back.
- The member's first line is a genuine message without content, and so is the answer to it. Until
  the other end has sent one, nothing that it sends is used, and nothing else is sent to it.

Before that, at most LONGEST_HELLO bytes are kept for an end that is not known yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator, Mapping, Optional

    Message = Dict[str, Any]

LONGEST = 4096
"""Bytes of one line."""
LONGEST_HELLO = 512
"""Bytes of a line before the other end is authenticated: two nonces and a host name."""
NONCE_BYTES = 32
LISTENER, MEMBER = b"listener", b"member"


class Broken(Exception):
    """The other end is gone, or failed to authenticate."""


class Closed(Broken):
    """The other end has sent all its messages and closed the connection."""


class MemberLink:
    """One connection. Never blocks; what cannot be sent breaks it, since messages are small."""

    def __init__(
        self, connection: socket.socket, keys: Mapping[str, str], *, host: Optional[str] = None
    ) -> None:
        """`keys`: host -> key, of all members at the listening end. `host`: the member's name, at
        the member's end. Raises Broken."""
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it is no TCP connection, or is over already
            # an order to stop is not to wait until a heartbeat is acknowledged
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.host = host
        """The member; at the listening end, the one that it claims to be."""
        self.proved = False
        """Whether the other end has shown that it knows the key."""
        self._keys = keys
        self._own, self._other = (LISTENER, MEMBER) if host is None else (MEMBER, LISTENER)
        self._nonce = os.urandom(NONCE_BYTES).hex()
        self._key = b""
        self._buffer = b""
        self._sent = self._received = 0
        if host is None:
            self._write(self._nonce.encode() + b"\n")

    def send(self, message: Message) -> None:
        """Send a message. Raises Broken."""
        body = json.dumps(message).encode()
        self._sent += 1
        self._write(self._code(self._own, self._sent, body) + b" " + body + b"\n")

    def finish(self) -> None:
        """Send nothing more; what was sent arrives before that is seen. Raises Broken."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> Iterator[Message]:
        """Yield the authenticated messages that have arrived. Raises Broken."""
        self._read()
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                break
            self._buffer = rest
            if self._key:
                yield self._open(line)
            else:
                self._greet(line)
        if len(self._buffer) >= self._longest():
            raise Broken("the line is too long")

    # ------------------------------------------------------------ bytes

    def _longest(self) -> int:
        return LONGEST if self.proved else LONGEST_HELLO

    def _read(self) -> None:
        try:
            data = self.socket.recv(self._longest() - len(self._buffer))
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken(str(error)) from None
        if not data:
            raise Closed("the connection was closed")
        self._buffer += data

    def _write(self, data: bytes) -> None:
        try:
            complete = self.socket.send(data) == len(data)
        except OSError as error:
            raise Broken(str(error)) from None
        if not complete:
            raise Broken("the other end does not read")

    # ------------------------------------------------------------ proof

    def _greet(self, line: bytes) -> None:
        """Read the other end's nonce; a member answers with its own and authenticates."""
        nonce, _, host = line.decode("utf-8", errors="replace").partition(" ")
        if len(nonce) != 2 * NONCE_BYTES or not nonce.isalnum():
            raise Broken("the other end does not speak this protocol")
        if self.host is not None:
            self._agree(nonce, self._nonce, self.host)
            self._write(f"{self._nonce} {self.host}\n".encode())
            self.send({})
            return
        if host not in self._keys:
            raise Broken("the other end is no node of this run")
        self.host = host
        self._agree(self._nonce, nonce, host)

    def _agree(self, first: str, second: str, host: str) -> None:
        text = f"dslaunch control 1\n{first}\n{second}\n{host}".encode()
        self._key = hmac.new(self._keys[host].encode(), text, hashlib.sha256).digest()

    def _open(self, line: bytes) -> Message:
        code, _, body = line.partition(b" ")
        self._received += 1
        if not hmac.compare_digest(code, self._code(self._other, self._received, body)):
            raise Broken("a message is not genuine")
        self.proved = True
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Broken("a message is not a JSON object")
        return message

    def _code(self, sender: bytes, number: int, body: bytes) -> bytes:
        text = b"%s %d %s" % (sender, number, body)
        return hmac.new(self._key, text, hashlib.sha256).hexdigest().encode()
