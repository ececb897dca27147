"""Logins from this node to other nodes, by its own ssh.

The launcher names the other node by an address, a user and a port, which are checked here. The
login runs one fixed command, which reads its shell line from standard input: neither arguments nor
secrets are on a command line.
"""

from __future__ import annotations

import os
import re
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List

COMMAND = """exec /bin/sh -c 'IFS= read -r line; eval "$line"'"""
"""What a login runs, in any login shell. It takes one byte at a time from its standard input, up to
the end of the line: what follows is left for the program that the line starts."""
LOGGED_IN = b"\n"
"""What ssh's LocalCommand prints once the login has succeeded, before any output of the child."""
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+$-]{0,127}")


class InvalidChildError(ValueError):
    """The address, user or port of a child is not valid."""


def start(
    ssh: str, options: Dict[str, str], child: Any, output: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start an ssh that logs in to a child, with pipes for its input and error output.

    `ssh`: the path of the program. `options`: its options, by name. `output`: where its output
    goes, as for Popen. Raises InvalidChildError, and OSError if the program cannot be started.
    """
    named = [f"-o{name}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [ssh, "-T", *named, *destination(child), COMMAND],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "SHELL": "/bin/sh"},  # the shell runs LocalCommand
    )


def destination(child: Any) -> List[str]:
    """Return the words that name a child: a dictionary with its `host`, `user` and `port`.

    Raises InvalidChildError for everything that is not plainly an address, a user and a port: ssh
    would take a `-` at the beginning for an option.
    """
    try:
        host, user, port = child["host"], child["user"], child["port"]
    except (TypeError, KeyError):
        raise InvalidChildError("no child") from None
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        raise InvalidChildError("host")
    words = []
    if user is not None:
        if not isinstance(user, str) or not _USER.fullmatch(user):
            raise InvalidChildError("user")
        words += ["-l", user]
    if port is not None:
        if type(port) is not int or not 0 < port < 65536:
            raise InvalidChildError("port")
        words += ["-p", str(port)]
    return [*words, "--", host]
