"""Where the metrics of a run go: a file for node_exporter, or an HTTP endpoint."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

from dslaunch.errors import UsageError
from dslaunch.report.metrics import CONTENT_TYPE

LOCALHOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})")
FOR_ALL = 0o644
"""The mode of the file: node_exporter reads it as another user, and it has no secrets."""
READ_TIMEOUT = 10.0
"""Seconds for a client to send its request."""


class MetricsOutput(Protocol):
    """Takes the metrics after each measurement."""

    def write(self, text: str) -> None:
        """Replace the metrics before."""

    def close(self) -> None:
        """End the output; metrics of a run that has ended are not served any more."""


def open_output(target: str) -> MetricsOutput:
    """Return the output for `PORT`, `ADDRESS:PORT` or a file. Raises UsageError."""
    found = _ADDRESS.fullmatch(target)
    if found is None:
        return TextFile(Path(target))
    port = int(found["port"])
    if not 0 < port < 65536:
        raise UsageError(f"--metrics {target}: port {port} is not from 1 to 65535")
    return Endpoint((found["host"] or LOCALHOST).strip("[]"), port)


class TextFile:
    """A file that is replaced as a whole, as node_exporter's textfile collector needs it."""

    def __init__(self, path: Path) -> None:
        """Check that it can be written. Raises UsageError."""
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--metrics {path}: cannot be written",
                hint="name a file in a directory that you can write, or ADDRESS:PORT",
            )
        self._path = path

    def write(self, text: str) -> None:
        """Replace the file; a full disk keeps the metrics before."""
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            try:
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FOR_ALL)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                new.replace(self._path)
            finally:
                new.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._path.unlink()


class Endpoint:
    """`GET /metrics`, in a thread."""

    def __init__(self, host: str, port: int) -> None:
        """Listen. Raises UsageError."""
        self._text = b""
        handler = type("Handler", (_Handler,), {"text": lambda _: self._text})
        server = _Server6 if _is_ipv6(host) else _Server
        try:
            self._server = server((host, port), handler)
        except OSError as error:
            raise UsageError(
                f"--metrics {host}:{port}: {error.strerror or error}",
                hint="name another port, or a file",
            ) from None
        thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        thread.start()

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self._server.server_address[1])

    def write(self, text: str) -> None:
        """Serve this text from now on."""
        self._text = text.encode()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:  # a name
        return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_TIMEOUT

    def text(self) -> bytes:
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer `/metrics`."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = self.text()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: standard error shows the run."""
