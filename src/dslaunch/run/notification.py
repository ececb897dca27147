"""Tell a program or a web service how a run has ended.

Whether that works never changes how the run ended: a failure is a value, which the caller shows.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from enum import StrEnum
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from dslaunch.errors import UsageError
from dslaunch.json_text import json_text
from dslaunch.log import masked_values
from dslaunch.terminal import one_line
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from pathlib import Path

    from dslaunch.run.outcome import Outcome

TIMEOUT = 10.0
"""Seconds for a web service to take the message and answer, in all."""
COMMAND_TIMEOUT = 60.0
"""Seconds for a program to end; it is killed afterwards."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Where a message is not encrypted may be sent to: it does not leave the machine."""
USER_AGENT = "dslaunch"
MOST_MESSAGE = 4096
"""Characters of the message in the environment of a program."""


class Target(Struct, frozen=True):
    """Who is notified: a program, or the URL of a web service."""

    words: tuple[str, ...] = ()
    """The program and its arguments; empty for a URL."""
    url: str = ""

    @property
    def name(self) -> str:
        """Return what messages call it: the path of a URL is often a secret."""
        return self.words[0] if self.words else urlsplit(self.url).netloc.rpartition("@")[2]


class Problem(StrEnum):
    """Why a target could not be told."""

    NOT_STARTED = "not-started"
    EXIT_CODE = "exit-code"
    TIMEOUT = "timeout"
    STATUS = "status"
    NO_HTTP = "no-http"
    UNREACHABLE = "unreachable"
    UNEXPECTED = "unexpected"


_TEXTS: Mapping[Problem, str] = {
    Problem.NOT_STARTED: "cannot be started: {why}",
    Problem.EXIT_CODE: "exit code {why}",
    Problem.TIMEOUT: "no answer within {why} s",
    Problem.STATUS: "HTTP status {why}",
    Problem.NO_HTTP: "the answer is not HTTP: {why}",
    Problem.UNREACHABLE: "cannot be reached: {why}",
    Problem.UNEXPECTED: "not told: {why}",
}


class NotificationFailure(Struct, frozen=True):
    """A target that was not told."""

    target: Target
    problem: Problem
    why: str

    @property
    def text(self) -> str:
        """Return it as a message of one line."""
        return one_line(f"--notify {self.target.name}: {_TEXTS[self.problem].format(why=self.why)}")


def parse_target(text: str) -> Target:
    """Return the target of `--notify`. Raises UsageError."""
    scheme, separator, _ = text.partition("://")
    if not separator or " " in scheme:
        return _command(text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    is_plain = text.isprintable() and " " not in text
    if scheme not in ("https", "http") or not host or port == 0 or not is_plain:
        raise UsageError(
            f"--notify {scheme}://: not a URL of a web service", hint="use https://HOST/PATH"
        )
    if scheme == "http" and host not in LOCAL_HOSTS:
        raise UsageError(
            f"--notify http://{host}: the message would not be encrypted",
            hint="use https, or a command that sends it, such as "
            f"--notify 'curl -sS --data @- http://{host}/...'",
        )
    return Target(url=text)


def _command(text: str) -> Target:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--notify: {error}", hint="quote the command as for a shell") from None
    if not words:
        raise UsageError("--notify: the value is empty", hint="name a command or a URL")
    return Target(words=words)


def message_of(outcome: Outcome, directory: Path | None) -> dict[str, Any]:
    """Return what targets get, with all secrets masked; `directory`: of the run, None if it
    was not started."""
    found = {
        "run": directory.name if directory is not None else None,
        "directory": str(directory) if directory is not None else None,
        "time": time.time(),
        **outcome.as_data(),
    }
    masked: dict[str, Any] = masked_values(found)
    return masked


def notify(
    target: Target, message: Mapping[str, Any], timeout: float = TIMEOUT
) -> NotificationFailure | None:
    """Tell a target; return why that failed, None if it did not. Raises nothing.

    `timeout`: seconds for a web service.
    """
    try:
        data = json_text(message).encode()
        if target.words:
            return _run(target, data, message)
        return _post_in_time(target, data, timeout)
    except Exception as error:  # noqa: BLE001 - the other targets must still be told
        # its text may name the URL, which is often a secret
        return NotificationFailure(target, Problem.UNEXPECTED, type(error).__name__)


def _run(target: Target, data: bytes, message: Mapping[str, Any]) -> NotificationFailure | None:
    summary = {
        "DSLAUNCH_RUN": message["run"] or "",
        "DSLAUNCH_STATUS": message["status"],
        "DSLAUNCH_EXIT_CODE": str(message["exit_code"]),
        "DSLAUNCH_MESSAGE": one_line(message["message"])[:MOST_MESSAGE],
    }
    try:
        done = subprocess.run(
            target.words,
            input=data,
            stdout=2,  # standard output may be JSON for a program
            env={**os.environ, **summary},
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NotificationFailure(target, Problem.TIMEOUT, f"{COMMAND_TIMEOUT:.0f}")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return NotificationFailure(target, Problem.NOT_STARTED, why)
    if done.returncode:
        return NotificationFailure(target, Problem.EXIT_CODE, str(done.returncode))
    return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could point to another host, or from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _post_in_time(target: Target, data: bytes, timeout: float) -> NotificationFailure | None:
    """Post in a thread that is left behind: a socket's timeout begins again with each byte, so
    that a service which sends one now and then could hold the end of the run forever."""
    told: Future[NotificationFailure | None] = Future()

    def post() -> None:
        try:
            told.set_result(_post(target, data, timeout))
        except Exception as error:  # noqa: BLE001 - raised where the result is taken
            told.set_exception(error)

    threading.Thread(target=post, name="notify", daemon=True).start()
    try:
        return told.result(timeout)
    except TimeoutError:
        return _too_late(target, timeout)


def _too_late(target: Target, timeout: float) -> NotificationFailure:
    return NotificationFailure(target, Problem.TIMEOUT, f"{timeout:g}")


def _post(target: Target, data: bytes, timeout: float) -> NotificationFailure | None:
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    request = urllib.request.Request(target.url, data, headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return NotificationFailure(target, Problem.STATUS, str(error.code))
    except TimeoutError:
        return _too_late(target, timeout)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return _too_late(target, timeout)
        return NotificationFailure(target, Problem.UNREACHABLE, str(reason)[:200])
    except HTTPException as error:
        return NotificationFailure(target, Problem.NO_HTTP, type(error).__name__)
