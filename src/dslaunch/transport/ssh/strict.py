"""Write the ssh_config for the system's ssh: strict options first, then the user's own.

Options on ssh's command line do not reach the ssh that it starts for a jump host. A file given
with `-F` does, and the first file that sets an option wins; hence a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

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


class StrictConfig(Struct, frozen=True):
    """A configuration, and which of its lines are those of which file."""

    text: str
    parts: tuple[tuple[int, Path], ...]
    """The number of the first line of a file's text, with the file, in the order of the lines."""

    def with_own_places(self, messages: str, path: Path) -> str:
        """Return ssh's messages about the configuration at a path with the files and lines that the
        user knows."""
        place = re.compile(rf"{re.escape(str(path))}:? line ([0-9]{{1,9}})")
        return place.sub(lambda found: self._own_place(found[0], int(found[1])), messages)

    def _own_place(self, place: str, line: int) -> str:
        for first, file in reversed(self.parts):
            if line >= first:
                return f"{file} line {line - first + 1}"
        return place


def configuration(config_file: str | None, options: Mapping[str, str]) -> StrictConfig:
    """Return the configuration: `STRICT`, `options`, the user's file and the system's file."""
    ours = {**STRICT, **options}
    lines = ["Host *", *(f"  {name} {value}" for name, value in ours.items())]
    file = Path(config_file or USER_FILE).expanduser()
    parts = [(len(lines) + 1, file)]
    lines += read_text(file).split("\n")
    if config_file is None:
        lines.append("Host *")  # each file begins outside of the blocks of the one before
        parts.append((len(lines) + 1, Path(SYSTEM_FILE)))
        lines += _system_text().split("\n")
    return StrictConfig("\n".join(lines) + "\n", tuple(parts))


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
