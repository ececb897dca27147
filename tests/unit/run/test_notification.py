"""Who is told how a run ended: commands and web services, and what happens when that fails."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dslaunch import log
from dslaunch.cli import notifications
from dslaunch.errors import UsageError
from dslaunch.run.notification import (
    MOST_MESSAGE,
    Problem,
    Target,
    message_of,
    notify,
    parse_target,
)
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason

FAILED = Outcome(
    "failed",
    17,
    EndReason(EndCode.RANK_FAILED, host="node3", rank=5, exit_code=17),
    last_lines=("token=hunter2-hunter2",),
)
WRITES = """\
import json, os, sys
found = {"read": json.load(sys.stdin), "arguments": sys.argv[2:]}
found["environment"] = {n: v for n, v in os.environ.items() if n.startswith("DSLAUNCH_")}
json.dump(found, open(sys.argv[1], "w"))
"""


@pytest.fixture
def service() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a web service, and what it was sent; its path is the status of its answer."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append({"type": self.headers["Content-Type"], **json.loads(body)})
            self.send_response(int(self.path.strip("/")))
            self.send_header("Location", "/200")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", received
        server.shutdown()
        thread.join()


def message() -> dict[str, Any]:
    return message_of(FAILED, Path("/state/runs/1123-train"))


def test_a_command_gets_json_on_standard_input_and_a_summary(tmp_path: Path) -> None:
    script, result = tmp_path / "hook.py", tmp_path / "result.json"
    script.write_text(WRITES)
    target = parse_target(f"{sys.executable} {script} {result} 'two words' $HOME")
    assert notify(target, message()) is None
    found = json.loads(result.read_text())
    assert found["arguments"] == ["two words", "$HOME"]
    read = found["read"]
    assert (read["run"], read["status"], read["exit_code"]) == ("1123-train", "failed", 17)
    assert (read["reason"]["code"], read["reason"]["rank"]) == ("rank-failed", 5)
    told = found["environment"]
    assert (told["DSLAUNCH_RUN"], told["DSLAUNCH_STATUS"]) == ("1123-train", "failed")
    assert (told["DSLAUNCH_EXIT_CODE"], told["DSLAUNCH_MESSAGE"]) == ("17", read["message"])


def test_a_web_service_gets_the_same_json(service: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = service
    assert notify(parse_target(f"{url}/200"), message()) is None
    (found,) = received
    assert found.pop("type") == "application/json"
    assert {**found, "time": 0} == json.loads(json.dumps({**message(), "time": 0}))


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_other_answers_are_failures_and_no_redirect_is_followed(
    service: tuple[str, list[dict[str, Any]]], status: int
) -> None:
    url, received = service
    failure = notify(parse_target(f"{url}/{status}"), message())
    assert failure is not None
    assert (failure.problem, failure.why) == (Problem.STATUS, str(status))
    assert len(received) == 1


@pytest.mark.parametrize(
    ("target", "problem", "why"),
    [
        ("/missing/program", Problem.NOT_STARTED, "No such file or directory"),
        (f"{sys.executable} -c 'import sys; sys.exit(3)'", Problem.EXIT_CODE, "3"),
        ("http://127.0.0.1:1/secret-path", Problem.UNREACHABLE, None),
    ],
)
def test_a_failure_is_a_value_that_names_no_secret(
    target: str, problem: Problem, why: str | None
) -> None:
    failure = notify(parse_target(target), message())
    assert failure is not None
    assert failure.problem is problem
    assert why is None or failure.why == why
    assert "secret-path" not in failure.text


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The URL of a server that reads nothing, and does this with each connection."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/secret-path"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def says(text: bytes) -> Callable[[socket.socket], object]:
    """Answer with this text after the request has come."""

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(text)

    return answer


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\x00\xff garbage \x1b[2J\r\n\r\n", Problem.NO_HTTP),
        (b"220 mail.example.org ESMTP\r\n", Problem.NO_HTTP),
        (b"HTTP/1.1 " + b"9" * 5000 + b"\r\n\r\n", Problem.NO_HTTP),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n", Problem.NO_HTTP),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000 + b"\r\n\r\n", Problem.NO_HTTP),
        (b"HTTP/1.1 999 \x1b[2J\r\n\r\n", Problem.STATUS),
    ],
)
def test_a_service_that_answers_nonsense_is_a_failure(text: bytes, problem: Problem) -> None:
    with answering(says(text)) as url:
        failure = notify(parse_target(url), message())
    assert failure is not None
    assert failure.problem is problem
    assert failure.text.isprintable()
    assert "secret-path" not in failure.text


def test_a_service_that_sends_a_byte_now_and_then_has_no_more_time() -> None:
    left = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not left.wait(0.02):
            connection.sendall(b"a")

    with answering(drip) as url:
        failure = notify(parse_target(url), message(), timeout=0.3)
        left.set()
    assert failure is not None
    assert (failure.problem, failure.why) == (Problem.TIMEOUT, "0.3")


def test_one_target_that_fails_is_a_warning_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, result = tmp_path / "hook.py", tmp_path / "result.json"
    script.write_text(WRITES)
    with answering(says(b"garbage\r\n\r\n")) as url:
        targets = notifications.targets_of([url, f"{sys.executable} {script} {result}"])
        notifications.tell(targets, FAILED, None)
    assert json.loads(result.read_text())["read"]["exit_code"] == 17
    (warning,) = capsys.readouterr().err.splitlines()
    assert "--notify 127.0.0.1" in warning


def test_a_failure_that_nobody_expected_is_a_value_too() -> None:
    failure = notify(Target(words=("true",)), {"message": "no outcome"})
    assert failure is not None
    assert failure.problem is Problem.UNEXPECTED


def test_the_message_of_the_summary_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    script, result = tmp_path / "hook.py", tmp_path / "result.json"
    script.write_text(WRITES)
    hostile = {**message(), "message": "\x1b[2J\nDSLAUNCH_STATUS=ok\r\x00" + "x" * 10**6}
    assert notify(parse_target(f"{sys.executable} {script} {result}"), hostile) is None
    told = json.loads(result.read_text())["environment"]["DSLAUNCH_MESSAGE"]
    assert told.isprintable()
    assert len(told) == MOST_MESSAGE


def test_secrets_of_the_run_are_masked() -> None:
    log.conceal(["hunter2-hunter2"])
    assert "hunter2" not in json.dumps(message())


def test_a_run_that_was_not_started_has_no_name() -> None:
    found = message_of(FAILED, None)
    assert (found["run"], found["directory"]) == (None, None)


@pytest.mark.parametrize(
    "target",
    [
        "http://example.org/hook",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "https://",
        "https://[::1/x",
        "https://example.org:port/x",
        "https://example.org:0/x",
        "https://example.org/two words",
        "https://example.org/x\r\nHost: other",
        "",
        "echo 'open",
    ],
)
def test_targets_that_are_refused(target: str) -> None:
    with pytest.raises(UsageError):
        parse_target(target)


@pytest.mark.parametrize(
    "target", ["https://example.org/x", "http://localhost:9/x", "http://[::1]/"]
)
def test_urls_that_are_accepted(target: str) -> None:
    assert parse_target(target) == Target(url=target)
