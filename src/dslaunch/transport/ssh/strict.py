"""Write the ssh_config for the system's ssh: strict options first, then the user's own.

Options on ssh's command line do not reach the ssh that it starts for a jump host. A file given
with `-F` does, and the first file that sets an option wins; hence a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dslaunch.transport.ssh.config import (
    SYSTEM_FILE,
    USER_FILE,
    read_text,
    split_line,
    words_of,
)

STRICT = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "NoHostAuthenticationForLocalhost": "no",
    "UpdateHostKeys": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ControlPersist": "no",
    "LogLevel": "ERROR",
}
"""Options for every host of a route.

Connections to jump hosts that are open already are not used: it is not known how strictly they were
made. Forwardings of the user's configuration are not set up: a node has no use for them. Below
ERROR a server's banners are written, however many it sends, and hide why ssh gave up.
"""


def text(config_file: str | None, options: Mapping[str, str]) -> str:
    """Return the configuration: `STRICT`, `options`, the user's file and the system's file."""
    ours = {**STRICT, **options}
    lines = ["Host *", *(f"  {name} {value}" for name, value in ours.items())]
    if config_file is not None:
        user_file = Path(config_file).expanduser()
        return "\n".join([*lines, read_text(user_file)]) + "\n"
    own = Path(USER_FILE).expanduser()
    # each file begins outside of the blocks of the one before
    parts = [*lines, read_text(own), "Host *", _system_text()]
    return "\n".join(parts) + "\n"


def _system_text() -> str:
    """Return the system's file; files that it includes by relative names are beside it, not in
    ~/.ssh as what a user's file includes."""
    lines = read_text(Path(SYSTEM_FILE)).split("\n")
    return "\n".join(_absolute(line) for line in lines)


def _absolute(line: str) -> str:
    parts = split_line(line)
    if parts is None or parts[0] != "include":
        return line
    try:
        words = words_of(parts[1])
    except ValueError:
        return line
    directory = Path(SYSTEM_FILE).parent
    paths = (word if word.startswith("~") else str(directory / word) for word in words)
    return " ".join(["Include", *(f'"{path}"' for path in paths)])
