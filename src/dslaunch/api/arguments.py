"""Arguments that several functions of the API have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dslaunch.errors import UsageError

PathText = str | os.PathLike[str]


def directory(cwd: PathText | None) -> Path:
    """Return a directory as an absolute path; None: the current one."""
    return Path.cwd() if cwd is None else Path(cwd).absolute()


def several(name: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises UsageError for one text: that is no list of its
    letters."""
    if isinstance(given, str):
        raise UsageError(f"{name}: one text instead of a list of texts", hint=f"{name}=[{given!r}]")
    return tuple(given)
