"""OpenSSH's patterns (ssh_config(5), PATTERNS): `*`, `?`, lists and negation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def matches(text: str, pattern: str) -> bool:
    """Return whether one pattern matches all of `text`. Brackets have no special meaning."""
    if "*" not in pattern and "?" not in pattern:
        # a name of known_hosts is compared once, and would be compiled for that
        return text == pattern
    return _compiled(pattern).fullmatch(text) is not None


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches and none of the patterns negated by `!` does."""
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches(text, pattern[1:]):
                return False
        elif matches(text, pattern):
            found = True
    return found


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # several stars in a row mean the same as one, and would cost time
    shorter = re.sub(r"\*+", "*", pattern)
    translated = (_translated(character) for character in shorter)
    return re.compile("".join(translated), re.DOTALL)


def _translated(character: str) -> str:
    special = {"*": ".*", "?": "."}
    return special.get(character, re.escape(character))
