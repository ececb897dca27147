"""Find phrases that the glossary replaces: `python -m tools.prose`, part of `make lint`.

Searches texts for users and developers: documentation, and the strings, docstrings and comments of
Python files, templates and tables. `words.toml` has the phrases and what to write instead.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READ = ("src", "templates", "docs", "examples", "clusters", "tools", "benchmarks")
"""Directories that are read. Tests quote texts of other programs, and are not."""
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SUFFIXES = (".py", ".md", ".toml", ".j2", ".sh", ".yaml")
WORDS = Path(__file__).with_name("words.toml")
PROSE_TOKENS = {"STRING", "COMMENT", "FSTRING_MIDDLE"}
"""FSTRING_MIDDLE from Python 3.12 on; before, an f-string is a STRING."""


class Found(NamedTuple):
    """A phrase in a file."""

    path: Path
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        """Return the line that is printed."""
        return f"{self.path}:{self.line}: `{self.phrase}`: {self.instead}"


def phrases() -> dict[re.Pattern[str], str]:
    """Return the patterns, with what to write instead."""
    rows = tomllib.loads(WORDS.read_text("utf-8"))["phrases"]
    return {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): row for pattern, row in rows.items()}


def files() -> list[Path]:
    """Return the files that are read."""
    below = [path for name in READ for path in sorted((ROOT / name).rglob("*"))]
    kept = [path for path in below if path.suffix in SUFFIXES and path != WORDS]
    return [*kept, *(ROOT / name for name in PAGES)]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file with the number of the line on which each begins."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in PROSE_TOKENS:
            yield token.start[0], token.string


def found_in(path: Path, known: dict[re.Pattern[str], str]) -> Iterator[Found]:
    """Yield the phrases of a file that have a better word."""
    for first_line, text in prose(path):
        for pattern, instead in known.items():
            for match in pattern.finditer(text):
                line = first_line + text.count("\n", 0, match.start())
                yield Found(path.relative_to(ROOT), line, match.group(), instead)


def main() -> int:
    """Print every phrase that is found; return the exit code."""
    known = phrases()
    found = [each for path in files() for each in found_in(path, known)]
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
