"""SSH servers that send without end: the launcher neither hangs, works on, nor fills its disk."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import cMSG_USERAUTH_BANNER

from dslaunch import transport
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeError

CONNECT = 2
"""Seconds that a server is given."""
BANNER = "x" * 30_000
MOST_BANNERS = 500


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve every connection in a thread; give the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def cluster(directory: Path, port: int, way: str, known: str = "") -> Cluster:
    (directory / "known").write_text(known)
    config = directory / "config"
    config.touch(mode=0o600)
    config.write_text(f"UserKnownHostsFile {directory}/known\nIdentityAgent none\n")
    node = f"{{host: 127.0.0.1, port: {port}, slots: 1}}"
    settings = f"{{config_file: '{config}', connect_timeout: {CONNECT}}}"
    text = f"nodes: [{node}]\ntransport: {way}\nssh: {settings}\n"
    return parse_cluster(text, "c.yaml")


def test_a_server_whose_first_line_never_ends_is_hung_up_on(tmp_path: Path) -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(b"x" * 4096)
        ended.set()

    with listening(serve) as port:
        given = cluster(tmp_path, port, "fabric")
        way = transport.make("fabric", given)
        with pytest.raises(NodeError):
            way.connect(given.nodes[0])
        assert ended.wait(300), "the connection is still read"
        way.close()


class Chatty(paramiko.ServerInterface):
    """Sends banners instead of an answer, then refuses."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self.transport = transport

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_none(self, username: str) -> int:
        banner = paramiko.Message()
        banner.add_byte(cMSG_USERAUTH_BANNER)
        banner.add_string(BANNER)
        banner.add_string("")
        for _ in range(MOST_BANNERS):
            self.transport._send_message(banner)  # type: ignore[attr-defined]
        return int(paramiko.common.AUTH_FAILED)


def test_banners_are_not_kept_and_do_not_hide_why_the_login_failed(tmp_path: Path) -> None:
    key = paramiko.ECDSAKey.generate()

    def serve(connection: socket.socket) -> None:
        server = paramiko.Transport(connection)
        server.add_server_key(key)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            server.start_server(server=Chatty(server))

    with listening(serve) as port:
        known = f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"
        given = cluster(tmp_path, port, "openssh", known)
        way = transport.make("openssh", given)
        with pytest.raises(NodeError) as raised:
            way.connect(given.nodes[0])
        way.close()
    assert raised.value.failures[0].kind in ("authentication", "no-key")
    assert BANNER[:10] not in str(raised.value)


class Mute(paramiko.ServerInterface):
    """Lets everybody in, and starts no program: it refuses, or says nothing."""

    def __init__(self, refusing: bool) -> None:
        self.refusing = refusing

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.common.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.common.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if not self.refusing:
            threading.Event().wait(600)
        return False


@pytest.mark.parametrize(
    ("refusing", "words"), [(False, f"within {CONNECT} s"), (True, "did not start a program")]
)
def test_a_server_that_starts_no_program_is_an_error_in_time(
    tmp_path: Path, refusing: bool, words: str
) -> None:
    key, own = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    own.write_private_key_file(str(tmp_path / "id"))

    def serve(connection: socket.socket) -> None:
        server = paramiko.Transport(connection)
        server.daemon = True
        server.add_server_key(key)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            server.start_server(server=Mute(refusing))

    with listening(serve) as port:
        known = f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n"
        given = cluster(tmp_path, port, "fabric", known)
        with (tmp_path / "config").open("a") as config:
            config.write(f"IdentityFile {tmp_path}/id\n")
        way = transport.make("fabric", given)
        connection = way.connect(given.nodes[0])
        began = time.monotonic()
        with pytest.raises(OSError, match=words):
            connection.start("true")
        assert time.monotonic() - began < 300
        connection.close()
        way.close()
