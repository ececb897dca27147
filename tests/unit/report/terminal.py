"""A stream of text that says it is a terminal."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Keeps what is written to it."""

    def isatty(self) -> bool:
        return True
