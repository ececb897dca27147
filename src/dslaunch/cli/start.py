"""The entry point and the exit of the program.

Half of a short command's time went into garbage collection during imports and into the
interpreter's shutdown; both are avoided here.
"""

from __future__ import annotations

import os
import sys

# built in; the library's `signal` imports `enum` first
from _signal import SIGINT, signal  # type: ignore[import-not-found] # typeshed has no stub of it

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer than all else up to the handling of Ctrl-C
    from sys import UnraisableHookArgs
    from types import FrameType
    from typing import NoReturn


def _interrupted_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without output for Ctrl-C while modules are being imported.

    An exception could be raised inside a callback of the import system, where Python prints it.
    """
    os._exit(128 + number)


signal(SIGINT, _interrupted_at_once)

import gc  # noqa: E402 - Ctrl-C comes first

from dslaunch.cli.interruption import interrupted, leave, leave_if_interrupted  # noqa: E402

ALLOCATIONS = 200_000
"""New objects before a collection. Python's default of 700 slows down imports; a run makes more
than 100,000 before its ranks print anything, and to walk over them takes 20 ms each time."""


def open_closed_streams() -> None:
    """Connect closed standard streams, as by `>&-`, to /dev/null.

    Otherwise Python sets them to None, and a file or socket opened later gets their number.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            if nowhere != number:
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode))


def start() -> NoReturn:
    """Run the program and exit at once, without the interpreter's shutdown."""
    code: object = 0
    try:
        gc.set_threshold(ALLOCATIONS)
        open_closed_streams()
        from dslaunch.cli.main import main

        sys.unraisablehook = _unraisable
        signal(SIGINT, interrupted)
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        # a library may have turned the Ctrl-C into another exception
        leave_if_interrupted()
        raise
    leave(code)


def _unraisable(raised: UnraisableHookArgs) -> None:
    """Exit for Ctrl-C inside a finalizer or a callback, where Python would print the exception and
    continue."""
    if isinstance(raised.exc_value, SystemExit):
        leave(raised.exc_value.code)
    sys.__unraisablehook__(raised)
