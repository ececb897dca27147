"""Read a text that a user wrote, line ends as they are."""

from __future__ import annotations

from pathlib import Path

from dslaunch.errors import ConfigError, Problem

LARGEST = 16 * 2**20
"""Maximum size of a text in bytes, far above that of real files."""


def read_file(path: Path, most: int = LARGEST) -> str:
    """Read a file, but no device without an end. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise _unreadable(str(path), "unreadable", str(error.strerror)) from None
    return decoded(data, str(path), most)


def decoded(data: bytes, name: str, most: int = LARGEST) -> str:
    """Return what was read as text. Raises ConfigError."""
    if len(data) > most:
        raise _unreadable(name, "too-large", f"file too large: expected at most {most:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _unreadable(name, "not-utf-8", "not UTF-8 text") from None


def _unreadable(name: str, rule: str, why: str) -> ConfigError:
    return ConfigError((Problem(name, 0, 0, "", why, rule=rule),))
