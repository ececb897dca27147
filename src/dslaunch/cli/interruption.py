"""Ctrl-C before a run has started."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # see start.py
    from types import FrameType
    from typing import NoReturn

_received: list[int] = []
"""The signals for which `interrupted` was called."""


def interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without output; a signal handler."""
    _received.append(number)
    raise SystemExit(128 + number)


def leave_if_interrupted() -> None:
    """Exit if Ctrl-C was pressed but its exception was lost, as in a callback of a C library.

    Call it before something starts that Ctrl-C should have prevented.
    """
    if _received:
        leave(128 + _received[0])


def leave(code: object) -> NoReturn:
    """Flush the standard streams and exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
