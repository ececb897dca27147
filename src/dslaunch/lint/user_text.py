"""Read a text that a user wrote, line ends as they are."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from dslaunch.errors import ConfigError, Problem

LARGEST = 16 * 2**20
"""Maximum size of a text in bytes, far above that of real files."""


def read_file(path: Path, most: int = LARGEST) -> str:
    """Return the text of a file. Raises ConfigError."""
    return decoded(read_bytes(path, most), str(path))


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return what a file contains. Raises ConfigError, also for a device without an end."""
    try:
        with path.open("rb") as file:
            return bounded(file, str(path), most)
    except OSError as error:
        raise _unreadable(str(path), "unreadable", str(error.strerror)) from None


def bounded(file: BinaryIO, name: str, most: int = LARGEST) -> bytes:
    """Return the rest of an open file. Raises OSError, and ConfigError for more than `most`
    bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise _unreadable(name, "too-large", f"file too large: expected at most {most:,} bytes")
    return data


def decoded(data: bytes, name: str) -> str:
    """Return what was read as text. Raises ConfigError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _unreadable(name, "not-utf-8", "not UTF-8 text") from None


def _unreadable(name: str, rule: str, why: str) -> ConfigError:
    return ConfigError((Problem(name, 0, 0, "", why, rule=rule),))
