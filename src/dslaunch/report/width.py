"""The width of a terminal."""

from __future__ import annotations

import os
from typing import TextIO

USUAL = 80


def columns(terminal: TextIO) -> int:
    """Return the columns of a terminal: `$COLUMNS`, else its size; 80 if unknown."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"]) or USUAL
    try:
        return os.get_terminal_size(terminal.fileno()).columns or USUAL
    except (OSError, ValueError):
        return USUAL
