"""Paths on a node: texts, digests, and the marks that show which nodes share a directory.

This module and the others of a preflight import as little as possible, since all nodes wait for it.
`signal`, `socket`, `json`, `glob`, `contextlib` and `subprocess` import `enum`, `re` and
`collections`: together they take more than twice as much processor time as the start of Python.
What the first two have is taken from `_signal` and `_socket`, on which they are built.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict, Iterable, List, Optional

MOST_TEXT = 256 * 1024
PIECE = 1 << 20
"""Bytes that are read at a time."""
CLAIM_TIMEOUT, CLAIM_PAUSE = 2.0, 0.02
"""Seconds for another node to write into a file that it has created; between two looks at it."""
MOST_CLAIM = 256
"""Bytes of such a text."""
WHOLE = -1
"""As `most`: however long the file is."""
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def home() -> str:
    """Return the user's home directory."""
    return os.path.expanduser("~")


def absolute(path: str) -> str:
    """Return the absolute path on this node: `~` and relative paths start at the user's home."""
    return os.path.abspath(os.path.join(home(), os.path.expanduser(path)))


def program(name: str, search: Optional[str] = None) -> Optional[str]:
    """Return the path of a program, by default on the session's PATH; None: not found."""
    # not `shutil.which`: to import that takes a node longer than to look
    directories = (search or os.environ.get("PATH") or SYSTEM).split(":")
    places = [name] if "/" in name else [os.path.join(d, name) for d in directories]
    for place in places:
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    return None


def matching(pattern: str) -> List[str]:
    """Return the paths that an absolute path with wildcards stands for. Names without wildcards are
    not looked for: they may be missing."""
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        if is_pattern(part):
            inside = [(path, name) for path in found for name in sorted(entries(path))]
            found = [os.path.join(path, name) for path, name in inside if fits(name, part)]
        else:
            found = [os.path.join(path, part) for path in found]
    return found


def entries(directory: str) -> List[str]:
    """Return the names in a directory, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def fits(name: str, pattern: str) -> bool:
    """Return whether a name fits a pattern of the shell."""
    first, star, last = pattern.partition("*")
    if not star and not is_pattern(pattern):
        return name == pattern
    if is_pattern(first + last):
        import fnmatch  # it needs `re`: few patterns are more than a `*`

        return fnmatch.fnmatchcase(name, pattern)
    long_enough = len(name) >= len(first + last)
    return long_enough and name.startswith(first) and name.endswith(last)


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards."""
    return any(letter in text for letter in "*?[")


def expanded(word: Any, environment: Dict[str, str]) -> str:
    """Return a word of a command as text; `{"name": X}` in its parts stands for a variable."""
    if isinstance(word, str):
        return word
    return "".join(p if isinstance(p, str) else environment.get(p["name"], "") for p in word)


def text_of(path: str, most: int = MOST_TEXT) -> str:
    """Return a file's text, stripped; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:
        return ""


def number_of(path: str) -> Optional[int]:
    """Return the number that a file contains; None if it contains another text."""
    text = text_of(path, 64)
    return int(text) if text.isdigit() else None


def sha256(path: str) -> str:
    """Return a file's SHA-256, however large it is. Raises OSError."""
    import hashlib  # 3 ms, which most preflights do not need

    made = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            data = file.read(PIECE)
            if not data:
                return made.hexdigest()
            made.update(data)


def digest(path: str) -> Optional[str]:
    """Return a file's SHA-256, None if it cannot be read."""
    try:
        return sha256(path)
    except OSError:
        return None


def leave(directory: str, name: str) -> Optional[str]:
    """Create the file `name`, which no other user can guess; return why that failed, else None."""
    try:
        with open(os.path.join(directory, name), "x", encoding="ascii"):
            return None
    except FileExistsError:
        return None
    except OSError as error:
        return error.strerror


def claim(directory: str, name: str, text: str) -> Optional[str]:
    """Create the file `name` with a text, unless another node was first; return what it holds, None
    if that cannot be read.

    Only one of all nodes can create it (O_EXCL), also on NFS: those that share the directory find
    the same text. They may find the file before the first node has written into it.
    """
    path = os.path.join(directory, name)
    try:
        with open(path, "x", encoding="ascii") as file:
            file.write(text)
        return text
    except FileExistsError:
        deadline = time.monotonic() + CLAIM_TIMEOUT
    except OSError:
        return None
    found = text_of(path, MOST_CLAIM)
    while not found and time.monotonic() < deadline:
        time.sleep(CLAIM_PAUSE)
        found = text_of(path, MOST_CLAIM)
    return found or None


def seen(directory: str, names: Iterable[str]) -> List[str]:
    """Return which of the nodes' marks a directory has.

    They are opened by name, not listed: an NFS client asks the server about a name that it has
    never looked up, even if its directory cache is old.
    """
    return [name for name in names if os.path.exists(os.path.join(directory, name))]


def remove(directory: str, name: str) -> None:
    """Remove a mark, if it exists."""
    try:
        os.unlink(os.path.join(directory, name))
    except OSError:
        pass
