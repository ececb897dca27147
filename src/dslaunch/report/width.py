"""How wide what people read may be."""

from __future__ import annotations

import os
from typing import TextIO

USUAL = 80


def columns(terminal: TextIO) -> int:
    """How many columns a terminal has, or `$COLUMNS` says that it has; 80 where that is unknown."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"]) or USUAL
    try:
        return os.get_terminal_size(terminal.fileno()).columns or USUAL
    except (OSError, ValueError):
        return USUAL
