"""Hostile variants of what a node, or another user, sends: every field of a JSON value changed.

Each variant differs from an honest value in one place: another type, size, range, path, control
characters, a missing or an extra key. The order is fixed, so that a failure can be repeated by its
number; `sample` draws a fixed choice of a large set.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x1bPq\x1b\\\x9b31m\r\n\u202e\u2028"
"""Clears the screen, sets a title, draws, colors by a C1 control, and turns the writing around."""
DEEP: Any = None
for _ in range(200):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, -(2**70), 10**400, 1e308, -0.5),
    *(float("nan"), float("inf"), "", " ", "0", "-1", ESCAPES, "a\0b", "\ud800", "é" * 300),
    *("../../../../../../etc/passwd", "/etc/passwd", "..", ".", "a/../../b", "~/.ssh/id_rsa"),
    *("x" * 300_000, "%s%n{0}{x!r}", "-oProxyCommand=touch /tmp/owned", "$(touch /tmp/owned)"),
    *([], {}, [None], [[]], {"": None}, {"a": {"b": []}}, [{}] * 1000, [1, "a", None, {}], DEEP),
)


@dataclass(frozen=True)
class Mutation:
    """One hostile variant, and what was changed where."""

    where: str
    value: Any


def mutations(honest: Any) -> Iterator[Mutation]:
    """Yield every variant: each place of `honest` replaced by each hostile value, keys removed
    and added, and lists made empty, longer and doubled."""
    yield from map(_made, _changes(honest))


def sample(honest: Any, count: int, seed: int = 0) -> list[Mutation]:
    """Return `count` of the variants, the same ones each time; all of them if there are fewer."""
    return _drawn(list(_changes(honest)), count, seed)


def text_sample(honest: Any, count: int, seed: int = 0) -> list[Mutation]:
    """Return `count` variants of what a program printed, the same ones each time: each text in
    `honest` with other numbers, words and lines, cut, repeated to the largest size that is taken,
    and JSON in it changed."""
    return _drawn(list(_text_changes(honest)), count, seed)


Change = tuple[str, Callable[[], Any]]
"""What is changed where, and how to make the variant."""


def _made(change: Change) -> Mutation:
    where, make = change
    return Mutation(where, make())


def _drawn(every: list[Change], count: int, seed: int) -> list[Mutation]:
    if len(every) > count:
        every = random.Random(seed).sample(every, count)
    return [_made(change) for change in every]


def _changes(honest: Any) -> Iterator[Change]:
    for path in _places(honest):
        name = _name(path)
        for number, hostile in enumerate(VALUES):
            yield f"{name} = VALUES[{number}]", partial(_replaced, honest, path, hostile)
        found = _at(honest, path)
        if path and isinstance(path[-1], str):
            yield f"{name} removed", partial(_removed, honest, path)
        if isinstance(found, dict):
            extra = {**found, ESCAPES: ESCAPES, "__class__": [], "": {}}
            yield f"{name} with more keys", partial(_replaced, honest, path, extra)
        if isinstance(found, list) and found:
            yield f"{name} 2000 times", partial(_replaced, honest, path, found * 2000)


LARGEST = 250_000
"""Characters of a text that has been made as large as is taken of a program's output."""
NUMBERS = (
    "9" * 25,
    "9" * 400,
    "9" * 5000,
    "-1",
    "1e999",
    "nan",
    "\u00b2",
    "0",
    "",
    "1.2.3",
    "0x1g",
)
ENDS = (" ", "\n", "[", " [", "(", "{", '"', ",", "=", ":", "0", "a ", "\\", "\x1b[", "\r", "X")


def _text_changes(honest: Any) -> Iterator[Change]:
    for path in _places(honest):
        text = _at(honest, path)
        if isinstance(text, str) and text:
            for what, make in _texts(text):
                yield f"{_name(path)}: {what}", partial(_with_text, honest, path, make)


def _with_text(honest: Any, path: Place, make: Callable[[], str]) -> Any:
    return _replaced(honest, path, make())


def _texts(text: str) -> Iterator[tuple[str, Callable[[], str]]]:
    for at, found in enumerate(list(re.finditer(r"\d+(?:\.\d+)?", text))[:12]):
        for other in NUMBERS:
            yield f"number {at} = {other[:30]}", partial(_spliced, text, found, other)
    for at, found in enumerate(list(re.finditer(r"\S+", text))[:12]):
        word = found[0]
        for other in ("", ESCAPES, "a\0b", f"{word} {word}", f"-{word}"):
            yield f"word {at} = {other[:30]!r}", partial(_spliced, text, found, other)
        yield f"word {at} repeated", partial(_filled, "", f"{word} ")
        yield f"word {at} repeated without a space", partial(_filled, "", word)
    for at in range(1, 8):
        yield f"cut at {at}/8", partial(_cut, text, len(text) * at // 8)
    for end in ENDS:
        yield f"{end!r} repeated at the end", partial(_filled, text.rstrip(), end)
        yield f"{end!r} repeated in it", partial(_filled, text[:9], end, text[9:])
    lines = text.splitlines()
    yield "lines repeated", partial(_filled, "", text.rstrip("\n") + "\n")
    yield "one line", partial(_filled, "", text.replace("\n", " "))
    yield "lines turned around", partial("\n".join, lines[::-1])
    yield "lines without last words", partial("\n".join, [x.rpartition(" ")[0] for x in lines])
    yield from _printed(text)


def _printed(text: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield variants of a JSON object on the last line, as programs of ours print it."""
    try:
        inside = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return
    if isinstance(inside, dict):
        for what, make in _changes(inside):
            yield f"JSON: {what}", partial(_as_json, make)


def _as_json(make: Callable[[], Any]) -> str:
    return json.dumps(make()) + "\n"


def _spliced(text: str, found: re.Match[str], other: str) -> str:
    return text[: found.start()] + other + text[found.end() :]


def _filled(before: str, piece: str, after: str = "") -> str:
    """Return the largest text of that beginning and end with the piece repeated between them."""
    return before + piece * ((LARGEST - len(before) - len(after)) // len(piece)) + after


def _cut(text: str, length: int) -> str:
    return text[:length]


Place = tuple[str | int, ...]


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    yield at
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _places(inside, (*at, key))
    elif isinstance(value, list):
        for index, inside in enumerate(value[:3]):
            yield from _places(inside, (*at, index))


def _at(value: Any, path: Place) -> Any:
    for step in path:
        value = value[step]
    return value


def _replaced(honest: Any, path: Place, hostile: Any) -> Any:
    if not path:
        return hostile
    changed = copy.deepcopy(honest)
    _at(changed, path[:-1])[path[-1]] = hostile
    return changed


def _removed(honest: Any, path: Place) -> Any:
    changed = copy.deepcopy(honest)
    del _at(changed, path[:-1])[path[-1]]
    return changed


def _name(path: Place) -> str:
    return ".".join(map(str, path)) or "everything"
