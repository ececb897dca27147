"""Check the syntax of a script by `bash -n`, which runs nothing."""

from __future__ import annotations

import re
import shutil
import subprocess

from msgspec import Struct

SECONDS = 10.0
"""Timeout of bash."""
OLDEST = 4
"""The first bash with the syntax that scripts of clusters use (`|&`, `&>>`, `;;&`, `coproc`): macOS
has bash 3.2, which refuses it."""
MESSAGE = re.compile(r"line (\d+): (.*)")
LONGEST = 200
"""Characters of bash's message that are shown."""
CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
"""No BASH_ENV, no exported functions, messages in English."""


class SyntaxFault(Struct, frozen=True):
    """A syntax error of bash."""

    line: int
    """From 1."""
    message: str


def has_bash() -> bool:
    """Return whether this machine has a bash that is new enough."""
    return _version() >= OLDEST


def syntax_fault(text: str) -> SyntaxFault | None:
    """Return the syntax error of `bash -n`. None: there is none, or bash is missing, older than
    4.0, or needs more than SECONDS."""
    done = _bash(["-n"], text)
    if done is None or done.returncode == 0 or _version() < OLDEST:
        return None
    found = MESSAGE.search(done.stderr)
    if found is None:
        return None
    printable = "".join(char if char.isprintable() else "?" for char in found[2])
    return SyntaxFault(int(found[1]), printable[:LONGEST])


def _version() -> int:
    """Return the major version of bash; 0: unknown."""
    done = _bash(["-c", "echo ${BASH_VERSINFO[0]}"], "")
    printed = done.stdout.strip() if done else ""
    return int(printed) if printed.isdecimal() else 0


def _bash(arguments: list[str], text: str) -> subprocess.CompletedProcess[str] | None:
    program = shutil.which("bash")
    if program is None:
        return None
    command = [program, "--norc", "--noprofile", *arguments]
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=CLEAN,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
