"""Every regular expression of dslaunch, and text made from each that would make it slow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import dslaunch
from dslaunch.run.known_endings import built_in
from dslaunch.transport import classify
from tests.growth import Work, grows, seconds

SOURCES = Path(dslaunch.__file__).parent
METHODS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)
SIZE = 3000
"""Characters of a short text."""
QUICK = 0.0004
"""Seconds that half a short text takes most patterns at the most. Quadratic work takes far more."""
BOUNDED = {
    "dslaunch.deepspeed.shards._PATTERNS": "file names",
    "dslaunch.run.waits._RULES": "500 characters of a name",
}
"""Patterns in tables whose text is short before it is matched."""


@dataclass(frozen=True)
class Used:
    """One pattern, and how it is used."""

    where: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]


def every() -> Iterator[Used]:
    """Yield the patterns that are compiled in modules, written in calls, and in tables."""
    sources = {path: path.read_text("utf-8") for path in sorted(SOURCES.rglob("*.py"))}
    for path, text in sources.items():
        yield from _in_calls(path, text)
    called_in = {path: _methods_called(text) for path, text in sources.items()}
    called = _methods_called("\n".join(sources.values()))
    for module in pkgutil.walk_packages(dslaunch.__path__, "dslaunch."):
        if module.name.endswith("__main__"):
            continue
        imported = importlib.import_module(module.name)
        own = called_in[Path(str(imported.__file__))]
        for name, value in vars(imported).items():
            where = f"{module.name}.{name}"
            found = [] if name.startswith("__") or where in BOUNDED else list(_patterns(value))
            # another module may have a private pattern of the same name
            used = (own if name.startswith("_") else called)[name]
            for pattern in found:
                yield Used(where, pattern, tuple(sorted(used or {"search", "fullmatch"})))
    for known in built_in().values():
        yield Used("known_endings", re.compile(known.pattern), ("search",))
    yield Used("classify fingerprint", classify._FINGERPRINT, ("search",))


def _methods_called(text: str) -> defaultdict[str, set[str]]:
    """Return the methods of patterns that are called in source text, by the name before them."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, method in re.findall(r"\b(\w+)\.(\w+)\(", text):
        if method in METHODS:
            found[name].add(method)
    return found


def _in_calls(path: Path, text: str) -> Iterator[Used]:
    if not any(f"re.{method}(" in text for method in METHODS):
        return  # parsing takes long
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
        first = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        if of_re and node.func.attr in METHODS and isinstance(first, str | bytes):
            names = {n.attr for each in [*node.args, *(k.value for k in node.keywords)]
                     for n in ast.walk(each) if isinstance(n, ast.Attribute)}  # fmt: skip
            flags = sum(int(getattr(re, name)) for name in names & {"MULTILINE", "M", "S", "I"})
            where = f"{path.relative_to(SOURCES)}:{node.lineno}"
            yield Used(where, re.compile(first, flags), (node.func.attr,))


def _patterns(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | list | tuple) and depth < 4:
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _patterns(inside, depth + 1)
    elif isinstance(getattr(value, "__self__", None), re.Pattern):
        yield value.__self__  # type: ignore[attr-defined]


def quadratic() -> Iterator[Used]:
    """Yield the patterns whose time grows faster than the text."""
    seen: set[tuple[object, int, tuple[str, ...]]] = set()
    for used in every():
        same = (used.pattern.pattern, used.pattern.flags, used.methods)
        if same not in seen and is_slow(used):
            yield used
        seen.add(same)


def is_slow(used: Used, size: int = SIZE) -> bool:
    """Return whether the time of one pattern grows faster than some text."""
    searches = (
        partial(_search, used.pattern, method, before, piece, end)
        for before, piece in _attacks(used.pattern)
        for end in ("\0", "\n!")
        for method in used.methods
    )
    return any(seconds(search(SIZE // 2)) > QUICK and grows(search, size) for search in searches)


def _search(
    pattern: re.Pattern[Any], method: str, before: str, piece: str, end: str, size: int
) -> Work:
    """Return the search of a pattern in a text of about `size` characters."""
    text = before + piece * (size // len(piece)) + end
    given: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    arguments = (given[:0], given) if method == "sub" else (given,)
    search = partial(getattr(pattern, method), *arguments)
    return (lambda: list(search())) if method == "finditer" else search


@cache
def _attacks(pattern: re.Pattern[Any]) -> tuple[tuple[str, str], ...]:
    source = pattern.pattern
    text = source if isinstance(source, str) else source.decode("latin-1")
    flags = pattern.flags if isinstance(source, str) else pattern.flags & ~re.UNICODE
    general = [("", piece) for piece in ("a", " ", "1", "\n", "a ", "1,", "ab-", "/a", "=a")]
    made = [*_pumped(parser.parse(text, flags), ""), *general]
    return tuple(dict.fromkeys(pair for pair in made if pair[1]))


def _pumped(sequence: Iterable[Any], before: str) -> Iterator[tuple[str, str]]:
    """Yield what comes before, and what to repeat, for each part that may repeat."""
    items = list(sequence)
    for at, (kind, value) in enumerate(items):
        if kind in REPEATS:
            least, most, inside = value
            unit = _example(inside)
            if most > 20:
                yield before, unit
                yield "", before + unit
                yield before, unit + _example(items[at + 1 : at + 2])
            yield from _pumped(inside, before)
            before += unit * max(least, 1)
        elif kind is code.SUBPATTERN:
            yield from _pumped(value[-1], before)
            before += _example(value[-1])
        elif kind is code.ATOMIC_GROUP:
            yield from _pumped(value, before)
            before += _example(value)
        elif kind is code.BRANCH:
            for branch in value[1]:
                yield from _pumped(branch, before)
            before += _example(value[1][0])
        elif kind in (code.ASSERT, code.ASSERT_NOT):
            yield from _pumped(value[1], before)
        else:
            before += _example([(kind, value)])
    yield "", before
    yield "", before[:-1]


def _example(sequence: Iterable[Any]) -> str:
    """Return a text that a part of a pattern matches, more or less."""
    parts: list[str] = []
    for kind, value in sequence:
        if kind in REPEATS:
            parts.append(_example(value[2]) * max(value[0], 1))
        elif kind is code.SUBPATTERN:
            parts.append(_example(value[-1]))
        elif kind is code.ATOMIC_GROUP:
            parts.append(_example(value))
        elif kind is code.BRANCH:
            parts.append(_example(value[1][0]))
        elif kind is code.LITERAL:
            parts.append(chr(value))
        elif kind in (code.ANY, code.NOT_LITERAL):
            parts.append("a")
        elif kind is code.IN:
            parts.append(_member(value))
    return "".join(parts)


def _member(items: Any) -> str:
    """Return a character of a set."""
    negated = items[0][0] is code.NEGATE
    for character in "a1 -_/.:=x\t":
        if any(_is_in(character, item) for item in items) != negated:
            return character
    kind, value = items[0]
    return chr(value) if kind is code.LITERAL else chr(value[0]) if kind is code.RANGE else "a"


def _is_in(character: str, item: Any) -> bool:
    kind, value = item
    if kind is code.LITERAL:
        return chr(value) == character
    if kind is code.RANGE:
        return value[0] <= ord(character) <= value[1]
    if kind is not code.CATEGORY:
        return False
    name = str(value)
    found = {"DIGIT": character.isdigit(), "SPACE": character.isspace()}
    word = character.isalnum() or character == "_"
    return found.get(name.rpartition("_")[2], word) != ("NOT" in name)
