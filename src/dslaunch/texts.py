"""Texts with parameters, and the known name that a user probably meant. Pure.

In a text, `{name}` is a value and `{name!r}` one that a user wrote.

Codes with such texts are those of errors (`error_codes`), of mistakes in cluster files
(`cluster/mistakes.py`) and sbatch scripts (`slurm/script_mistakes.py`), and of decisions
(`launch/decisions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from string import Formatter
from typing import Any

from dslaunch.terminal import shortened

Value = str | int | float | tuple[str, ...]

_OPTIONAL = frozenset(("similar", "more", "known", "meant", "available", "lines"))
"""Parameters that may be left out. Each has its own words, and none where it is missing."""
_MOST_KNOWN = 10
"""A list of known names is shown if it has fewer."""
_LONGEST = 100
"""The most characters of a word that is compared with known names."""
_MOST_COMPARED = 10_000
"""The most known names that a word is compared with."""


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return a text with its parameters filled in. Raises KeyError for a missing one."""
    return _TEXTS.vformat(text, (), values)


def closest(word: str, known: Iterable[str], *, ratio: float = 0.6) -> str:
    """Return the known name that is most like a word; empty if none is like it.

    `ratio` is that of `difflib` from which on a name is like the word: 1 for the same. Compares
    limited lengths and numbers, since a word may come from a hostile file.
    """
    # imported here: every command loads this module, and few have a misspelled name
    from difflib import get_close_matches

    compared = list(islice(known, _MOST_COMPARED))
    found = get_close_matches(word[:_LONGEST], compared, n=1, cutoff=ratio)
    return found[0] if found else ""


def alternatives(names: Sequence[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`; empty without any."""
    *others, last = names or ("",)
    return f"{', '.join(others)} or {last}" if others else last


def parameter_names(*texts: str) -> tuple[str, ...]:
    """Return the names of the parameters of texts, in their order, each once."""
    pieces = (piece for text in texts for piece in Formatter().parse(text))
    return tuple(dict.fromkeys(name for _, name, _, _ in pieces if name))


class _Texts(Formatter):
    """The syntax of `str.format`, with words for optional parameters and cut quotations."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Return the words for a parameter."""
        if key in _OPTIONAL:
            return _optional(str(key), kwargs.get(key))
        value = kwargs[key]
        return ", ".join(map(str, value)) if isinstance(value, tuple) else value

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Quote what users have written, and cut it."""
        return shortened(value) if conversion == "r" else value


def _optional(name: str, value: Any) -> str:
    if name == "known":
        return _known(value or ())
    if not value:
        return ""
    if name == "similar":
        return f", did you mean `{value}`?"
    if name == "meant":
        return f"did you mean `{value}`?"
    if name == "more":
        return f" (and {value:,} more)"
    if name == "available":
        return f"available: {value}"
    return "".join(f"\n{line}" for line in value)


def _known(names: tuple[str, ...]) -> str:
    if not names:
        return "; none are defined"
    return f"; known: {', '.join(names)}" if len(names) < _MOST_KNOWN else ""


_TEXTS = _Texts()
