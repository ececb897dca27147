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
        raise unreadable(str(path), str(error.strerror)) from None
    return decoded(data, str(path), most)


def decoded(data: bytes, name: str, most: int = LARGEST) -> str:
    """Return what was read as text. Raises ConfigError."""
    if len(data) > most:
        raise unreadable(name, f"more than {most:,} bytes, and no more are read")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise unreadable(name, "no text in UTF-8") from None


def unreadable(name: str, why: str) -> ConfigError:
    """Return the error for a file that cannot be read as a text."""
    return ConfigError((Problem(name, 0, 0, "", why),))
