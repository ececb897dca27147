"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`, `0 nodes`; `plural` for what does not just take an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
