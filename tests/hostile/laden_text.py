"""Text that must not be shown as it is, put into every text of a value; and what may be shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict, replace
from pydantic import BaseModel

from dslaunch.launch.decisions import Decision
from dslaunch.notes import Note
from dslaunch.topology.advice_codes import Advice
from tests.hostile.mutations import ESCAPES

LADEN = (
    f"{ESCAPES}\x1b[31m\x1b]8;;https://evil.example\x1b\\\x7f\x85\x0b\x0c\x1c\x1e"
    "\u200f\u061c\u2066\u2069\u2029\u00ad\u200b\ufeff\U000e0041\udcc2\udc9b\ud800"
)
"""One of each kind: control sequences, C0, C1, directions, line ends, hidden characters, halves."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_HIDDEN = set("\u00ad\u061c\u180e\u200b\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff")


def harmful(text: str, *, colors: bool = False, ours: str = "") -> set[str]:
    """Return the characters of a shown text that could control a terminal, or hide text.

    `ours`: a control sequence that dslaunch itself writes there.
    """
    rest = text.replace(ours, "") if ours else text
    rest = COLOR.sub("", rest) if colors else rest
    return {character for character in rest if _is_harmful(character)}


def _is_harmful(character: str) -> bool:
    if character in "\n\t":
        return False
    kind = unicodedata.category(character)
    tag = 0xE0000 <= ord(character) <= 0xE007F
    return (
        kind in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in _DIRECTIONS
        or character in _HIDDEN
        or tag
    )


def laden(value: Any, text: str = LADEN) -> Any:
    """Return a copy of a value with `text` behind each of its texts, apart from fixed words.

    Equal texts stay equal, so that what refers to each other still does.
    """
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value + text
    if isinstance(value, Decision | Note | Advice):
        return _with_parameters(value, text)
    if isinstance(value, Struct):
        hints = get_type_hints(type(value), _names(type(value)))
        made = {
            name: found if _is_fixed(hints.get(name)) else laden(found, text)
            for name, found in asdict(value).items()
        }
        return type(value)(**made)
    if isinstance(value, BaseModel):
        changed = {name: laden(inside, text) for name, inside in dict(value).items()}
        return value.model_construct(**changed)
    if isinstance(value, Mapping):
        return {laden(key, text): laden(inside, text) for key, inside in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(laden(inside, text) for inside in value))
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(laden(inside, text) for inside in value)
    return value


def _with_parameters(value: Decision | Note | Advice, text: str) -> Any:
    """The names of the parameters of a code are ours."""
    changed = {name: laden(inside, text) for name, inside in dict(value.values).items()}
    if isinstance(value, Decision):
        return replace(value, values=changed)
    if isinstance(value, Note):
        return replace(value, parameters=tuple(changed.items()))
    return replace(value, values=tuple(changed.items()))


def _names(kind: type) -> dict[str, Any]:
    """Names that annotations use and their modules import for type checkers only."""
    import sys
    from typing import Any as Anything

    there = vars(sys.modules[kind.__module__])
    return {
        **there,
        **{n: there.get(n, Anything) for n in ("Mapping", "Sequence", "Event", "JobInfo")},
    }


def _is_fixed(hint: Any) -> bool:
    """Whether a field holds one of a few words of ours, such as a level."""
    if get_origin(hint) is Literal:
        return True
    return any(get_origin(each) is Literal for each in get_args(hint))
