"""Text that is safe to show: what could control a terminal, or hide text, is spelled out.

A node, a file or another user chooses much of the text that is shown. Raw, it could clear the
screen, set the title, write to the clipboard, or reorder what is read (CVE-2021-42574). Every
outlet passes its text through `visible`; a value that is to stay on one line, through `one_line`.
"""

from __future__ import annotations

import re

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 and C1 control characters, less tab and line feed."""
_INVISIBLE = (
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""Direction marks and characters without width. The two joiners (U+200C, U+200D) are needed to
write Persian and emoji, and stay."""
_LINES_AND_DIRECTIONS = "\u2028-\u202e"
_HALVES = "\ud800-\udfff"
"""Lone surrogates: two of them could be written as the bytes of a C1 control character."""
_UNSAFE_SET = f"{_CONTROL}{_INVISIBLE}{_LINES_AND_DIRECTIONS}{_HALVES}"

UNSAFE = re.compile(f"[{_UNSAFE_SET}]")
"""A character that no outlet shows, apart from the colors that dslaunch or a rank asked for."""
_UNSAFE_IN_A_LINE = re.compile(f"[{_UNSAFE_SET}\t\n]")
COLOR = re.compile(r"\x1b\[[0-9;]{0,64}m")
"""A color or other attribute of text (ECMA-48, SGR)."""
_COLOR_OR_UNSAFE = re.compile(f"{COLOR.pattern}|{UNSAFE.pattern}")
PLAIN = "\x1b[0m"
_OPEN_COLOR = re.compile(r"\x1b\[(?!0m)[0-9;]{0,64}m[^\x1b\n]*+$", re.MULTILINE)
"""A color that its line does not end."""
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """Return `text` with unsafe characters spelled out; line feeds and tabs stay."""
    return text if _is_plain(text) else UNSAFE.sub(_spelled, text)


def one_line(text: str) -> str:
    """Return `text` as one line: line feeds and tabs are spelled out too."""
    return _UNSAFE_IN_A_LINE.sub(_spelled, text)


def printable(text: str) -> str:
    """Return `text` with `?` for each character that cannot be printed, for a short quotation."""
    return "".join(c if c.isprintable() else "?" for c in text)


def cut(text: str, most: int) -> str:
    """Return a text with at most `most` characters, and `...` in place of the others."""
    return text if len(text) <= most else f"{text[:most]}..."


def shortened(value: object, limit: int = 60) -> str:
    """Return `repr(value)`, cut to at most `limit` characters, for messages."""
    text = repr(value[: limit * 2] if isinstance(value, str) else value)
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[-1]}"


def colored(text: str) -> str:
    """Return `text` with unsafe characters spelled out, except colors.

    A color ends with its line, so that the text of others never has it.
    """
    return end_colors(text if is_safe(text) else _COLOR_OR_UNSAFE.sub(_kept_or_spelled, text))


def end_colors(text: str) -> str:
    """Return `text` with each color ended by its line."""
    return _OPEN_COLOR.sub(rf"\g<0>{PLAIN}", text) if "\x1b" in text else text


def is_safe(text: str) -> bool:
    """Return whether `colored` spells nothing out of a text."""
    plain = without_color(text)
    return _is_plain(plain) or UNSAFE.search(plain) is None


def without_color(text: str) -> str:
    """Return `text` without its colors."""
    return COLOR.sub("", text) if "\x1b" in text else text


def _is_plain(text: str) -> bool:
    """Return whether a text has only characters that can be printed, line feeds and tabs, as almost
    all text has: several times as fast as the expression."""
    return text.replace("\n", "").replace("\t", "").isprintable()


def _kept_or_spelled(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) > 1 else _spelled(match)


def _spelled(match: re.Match[str]) -> str:
    r"""Return `\u001b` for an escape character: also what JSON has for it, so JSON stays JSON."""
    character = match[0]
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
