"""Secret values are taken out of the ranks' output on the node, before it is kept or sent."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Tuple


class Redactor:
    """Replaces secret values in one stream, also one that comes in two pieces."""

    def __init__(self, secrets: Tuple[str, ...]) -> None:
        values = sorted((s.encode() for s in secrets if s), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, values))) if values else None
        self._prefixes = {v[:n] for v in values for n in range(1, len(v))}
        self._longest = max(map(len, values), default=1) - 1
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Add bytes; give what is certain to hold no secret. A beginning of one is held back."""
        if self._pattern is None:
            return data
        text = self._pattern.sub(b"***", self._held + data)
        keep = next(
            (n for n in range(min(self._longest, len(text)), 0, -1) if text[-n:] in self._prefixes),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held
