"""Where the metrics of a run go: a file for node_exporter, or an HTTP endpoint."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.report.metrics import CONTENT_TYPE, PREFIX
from dslaunch.run.run_directory import read_begin

if TYPE_CHECKING:
    Request = socket.socket | tuple[bytes, socket.socket]

LOCALHOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):)?(?P<port>[0-9]{1,5})")
FOR_ALL = 0o644
"""The mode of the file: node_exporter reads it as another user, and it has no secrets."""
MOST_CONNECTIONS = 16
"""Connections that are served at once; more are closed."""
READ_TIMEOUT = 10.0
"""Seconds in which a client must send something."""
CONNECTION_LIMIT = 30.0
"""Seconds for a connection from its begin to its end."""
BEGIN = f"# HELP {PREFIX}".encode()
"""How each file of metrics begins."""


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
    """A file that is replaced as a whole, as node_exporter's textfile collector needs it.

    Whatever else has that name is neither replaced nor removed.
    """

    def __init__(self, path: Path) -> None:
        """Check that it can be written. Raises UsageError."""
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--metrics {path}: cannot be written",
                hint="name a file in a directory that you can write, or ADDRESS:PORT",
            )
        if not _is_replaceable(path):
            raise UsageError.coded(ErrorCode.NOT_A_METRICS_FILE, path=str(path))
        self._path = path
        self._written: Identity | None = None
        """The file that was written last."""

    def write(self, text: str) -> None:
        """Replace the file; a full disk keeps the metrics before."""
        if not _is_replaceable(self._path):
            return
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            try:
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FOR_ALL)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    written = _identity(os.fstat(fd))
                new.replace(self._path)
                self._written = written
            finally:
                new.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file, if it is the one that was written last."""
        with suppress(OSError):
            if _identity(self._path.lstat()) == self._written:
                self._path.unlink()


Identity = tuple[int, ...]


def _identity(about: os.stat_result) -> Identity:
    """Return by what a file is known: another one can get the inode of one that is gone."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _is_replaceable(path: Path) -> bool:
    """Return whether there is nothing, an empty file or a file of metrics, of this user."""
    try:
        return read_begin(path, len(BEGIN)) in (b"", BEGIN)
    except FileNotFoundError:
        return True
    except OSError:
        return False


class Endpoint:
    """`GET /metrics`, in a thread."""

    def __init__(self, host: str, port: int, limit: float = CONNECTION_LIMIT) -> None:
        """Listen. Raises UsageError. `limit`: seconds for a connection."""
        self._text = b""
        handler = type("Handler", (_Handler,), {"text": lambda _: self._text})
        server = _Server6 if _is_ipv6(host) else _Server
        try:
            self._server = server((host, port), handler, limit)
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
    """Serves few connections at once, none of them for long, and prints no errors."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], limit: float
    ) -> None:
        self._limit = limit
        self._deadlines: dict[socket.socket, float] = {}
        """Of the open connections, on the monotonic clock."""
        super().__init__(address, handler)

    def process_request(self, request: Request, client_address: object) -> None:
        """Serve a connection in its thread; close it at once if there are too many."""
        assert isinstance(request, socket.socket)
        if len(self._deadlines) >= MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + self._limit
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # there is no thread for it
            del self._deadlines[request]
            self.shutdown_request(request)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        """Serve a connection to its end."""
        assert isinstance(request, socket.socket)
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._deadlines[request]

    def service_actions(self) -> None:
        """End connections whose time is over: a timeout begins again with each byte that comes."""
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if now > deadline:
                with suppress(OSError):  # it has just been closed
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: standard error shows the run, and a client can cause errors at will."""


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
