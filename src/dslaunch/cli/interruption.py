"""Ctrl-C before anything has been started."""

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
    """Leave without a word; a handler of signals."""
    _received.append(number)
    raise SystemExit(128 + number)


def leave_if_interrupted() -> None:
    """Leave for a Ctrl-C whose exception was swallowed: a callback of a C library may do that.

    To be called before something is started that a Ctrl-C should have prevented.
    """
    if _received:
        leave(128 + _received[0])


def leave(code: object) -> NoReturn:
    """Write what is still to be written, and leave."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
