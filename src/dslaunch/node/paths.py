"""What is at a path: a text, a digest, and the marks that show which nodes share a directory."""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict, Iterable, List, Optional

MOST_TEXT = 256 * 1024
PIECE = 1 << 20
"""Bytes that are read at a time."""
WHOLE = -1
"""As `most`: however long the file is."""
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def home() -> str:
    """The user's home directory."""
    return os.path.expanduser("~")


def absolute(path: str) -> str:
    """A path as this node means it: `~` and relative paths start at the user's home."""
    return os.path.abspath(os.path.join(home(), os.path.expanduser(path)))


def program(name: str, search: Optional[str] = None) -> Optional[str]:
    """Where a program is, by default on the session's PATH."""
    # not `shutil.which`: to import that takes a node longer than to look
    directories = (search or os.environ.get("PATH") or SYSTEM).split(":")
    places = [name] if "/" in name else [os.path.join(d, name) for d in directories]
    for place in places:
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    return None


def expanded(word: Any, environment: Dict[str, str]) -> str:
    """A word of a command: text, or parts in which `{"name": X}` stands for a variable."""
    if isinstance(word, str):
        return word
    return "".join(p if isinstance(p, str) else environment.get(p["name"], "") for p in word)


def text_of(path: str, most: int = MOST_TEXT) -> str:
    """A file's text, stripped; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:
        return ""


def sha256(path: str) -> str:
    """A file's SHA-256, however large it is. Raises OSError."""
    import hashlib

    made = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            data = file.read(PIECE)
            if not data:
                return made.hexdigest()
            made.update(data)


def digest(path: str) -> Optional[str]:
    """A file's SHA-256, None if it cannot be read."""
    try:
        return sha256(path)
    except OSError:
        return None


def leave(directory: str, name: str) -> Optional[str]:
    """Leave a mark of that name, or find it: nobody else knows it; why it could not be left."""
    try:
        with open(os.path.join(directory, name), "x", encoding="ascii"):
            return None
    except FileExistsError:
        return None
    except OSError as error:
        return error.strerror


def seen(directory: str, names: Iterable[str]) -> List[str]:
    """Which of the nodes' marks a directory has.

    Opened by name, not listed: a name never looked up before is asked of the server even by an
    NFS client whose directory cache is old.
    """
    return [name for name in names if os.path.exists(os.path.join(directory, name))]


def remove(directory: str, name: str) -> None:
    """Take a mark away, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, name))
