"""Names that a question asks for by patterns: files in /sys, variables of the environment.

The patterns of a recording may be chosen by another user. A regular expression of them could take
days, so each name is compared in a time that grows with its length only. Thousands of nodes send
the same names, so each is compared once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dslaunch.protocol.values import InvalidAnswer

MOST_PATTERNS = 100
"""Patterns with a `*` of one question, at most."""
MOST_KNOWN = 4096
"""Compared names of one question that are kept, at most."""
LONGEST_KNOWN = 256
"""Characters of such a name, at most: a node may send names of thousands."""
_STANDS_FOR = re.compile(r"[^/\x00-\x1f\x7f]*")
"""What a `*` stands for: neither a `/` nor a control character."""


class NamePatterns:
    """The names that some patterns with `*` mean, as a node reads them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises InvalidAnswer for more patterns than any question has."""
        several = list(patterns)
        self._names = frozenset(text for text in several if "*" not in text)
        self._parts = [text.split("*") for text in several if "*" in text]
        """The texts between the `*` of each pattern."""
        if len(self._parts) > MOST_PATTERNS:
            raise InvalidAnswer(f"more than {MOST_PATTERNS} patterns were asked for")
        self._known: dict[str, bool] = {}
        """Compared names -> whether they are meant."""

    @property
    def known(self) -> int:
        """Return how many compared names are kept."""
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        known = self._known.get(name)
        if known is not None:
            return known
        is_meant = name in self._names or any(_fits(name, parts) for parts in self._parts)
        if len(name) <= LONGEST_KNOWN and len(self._known) < MOST_KNOWN:
            self._known[name] = is_meant
        return is_meant


def _fits(name: str, parts: list[str]) -> bool:
    """Return whether a name consists of these texts, with what `*` stands for between them.

    Each text is taken where it occurs first: what is skipped for a later place, the next `*` can
    stand for too.
    """
    first, last = parts[0], parts[-1]
    position, end = len(first), len(name) - len(last)
    if position > end or not name.endswith(last) or not name.startswith(first):
        return False
    for part in parts[1:-1]:
        found = name.find(part, position, end)
        if found < 0 or not _STANDS_FOR.fullmatch(name, position, found):
            return False
        position = found + len(part)
    return _STANDS_FOR.fullmatch(name, position, end) is not None
