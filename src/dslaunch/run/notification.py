"""Tell a program or a web service how a run has ended.

Whether that works never changes how the run ended: a failure is a value, which the caller shows.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dslaunch.errors import UsageError
from dslaunch.log import masked_values

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from pathlib import Path

    from dslaunch.run.outcome import Outcome

TIMEOUT = 10.0
"""Seconds for a web service to answer."""
COMMAND_TIMEOUT = 60.0
"""Seconds for a program to end; it is killed afterwards."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Where a message is not encrypted may be sent to: it does not leave the machine."""
USER_AGENT = "dslaunch"


@dataclass(frozen=True, slots=True)
class Target:
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
    UNREACHABLE = "unreachable"


_TEXTS: Mapping[Problem, str] = {
    Problem.NOT_STARTED: "cannot be started: {why}",
    Problem.EXIT_CODE: "exit code {why}",
    Problem.TIMEOUT: "no answer within {why} s",
    Problem.STATUS: "HTTP status {why}",
    Problem.UNREACHABLE: "cannot be reached: {why}",
}


@dataclass(frozen=True, slots=True)
class NotificationFailure:
    """A target that was not told."""

    target: Target
    problem: Problem
    why: str

    @property
    def text(self) -> str:
        """Return it as a message."""
        return f"--notify {self.target.name}: {_TEXTS[self.problem].format(why=self.why)}"


def parse_target(text: str) -> Target:
    """Return the target of `--notify`. Raises UsageError."""
    scheme, separator, _ = text.partition("://")
    if not separator or " " in scheme:
        return _command(text)
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        host = None
    if scheme not in ("https", "http") or not host:
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


def notify(target: Target, message: Mapping[str, Any]) -> NotificationFailure | None:
    """Tell a target; return why that failed, None if it did not."""
    data = json.dumps(message).encode()
    if target.words:
        return _run(target, data, message)
    return _post(target, data)


def _run(target: Target, data: bytes, message: Mapping[str, Any]) -> NotificationFailure | None:
    summary = {
        "DSLAUNCH_RUN": message["run"] or "",
        "DSLAUNCH_STATUS": message["status"],
        "DSLAUNCH_EXIT_CODE": str(message["exit_code"]),
        "DSLAUNCH_MESSAGE": message["message"],
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


def _post(target: Target, data: bytes) -> NotificationFailure | None:
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    request = urllib.request.Request(target.url, data, headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return NotificationFailure(target, Problem.STATUS, str(error.code))
    except TimeoutError:
        return NotificationFailure(target, Problem.TIMEOUT, f"{TIMEOUT:.0f}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return NotificationFailure(target, Problem.TIMEOUT, f"{TIMEOUT:.0f}")
        return NotificationFailure(target, Problem.UNREACHABLE, str(reason)[:200])
