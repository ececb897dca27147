"""Restore the output of nvidia-smi from a pasted or logged text.

Removed are escape sequences, HTML, box drawing, table borders, quote marks, times, and the line
prefixes of `srun -l`, `pdsh`, `mpirun`, `kubectl logs --prefix` and `grep -H`. Lines that a
terminal wrapped are joined.

The result is a guess; `matrix.parse` validates it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import lru_cache

_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]{0,40}[A-Za-z]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]"
    r"|\[[0-9;]{1,20}m|\[m"
)
"""Escape sequences for underlining; some logs lack the escape character."""
_TAG = re.compile(
    r"<(/?)(table|thead|tbody|tr|td|th|pre|code|br|p|div|span|b|i|u|a|font|html|body)"
    r"(?:\s[^<>]{0,400})?/?>",
    re.IGNORECASE,
)
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_BLANK = dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000"), " ")
_UPRIGHT = dict.fromkeys(map(ord, "│┃║┆┇┊┋|"), " ")
_RULE = re.compile(r"[\s|+=:─━═┌-╿*-]{3,}")
_QUOTE = re.compile(r"[ \t]{0,8}(?:>[ \t]?){1,20}")
_TIME = re.compile(
    r"[ \t]{0,8}[\[(]?(?:[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ])?[0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?[\])]?:?[ \t]?"
    r"|[ \t]{0,8}[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} "
)
_QUOTE_OR_TIME = re.compile(f"^(?:{_QUOTE.pattern}|{_TIME.pattern})", re.MULTILINE)
_LABEL = r"(?:GPU[0-9]{1,4}|NIC[0-9]{1,4}|[a-z]{2,8}[0-9][a-z0-9_]{0,40})"
_CODE = r"(?:NV[1-9][0-9]?|PIX|PXB|PHB|PSB|NODE|SYS|SOC|X)"
_ROW = re.compile(rf"(?:^|[\s:>])({_LABEL}[ \t]+{_CODE}+(?:[ \t]|{_CODE}|$))")
_HEADER = re.compile(r"(?:^|[\s:>])((?:GPU[0-9]{1,4}[ \t]*)(?:GPU|NIC|CPU|mlx|[a-z]{2,8}[0-9]))")
_PIECE = re.compile(r"[XNVPIBHSYODECUA0-9,/-]{1,200}")
_LEGEND = re.compile(r"\s*(?:NIC )?Legend:")
_LINE_NUMBER = re.compile(r"^[ \t]{0,12}[0-9]{1,7}[:.)]?(?=\s|$)")
LONGEST_PREFIX = 200


def plain(text: str) -> str:
    """Return a text without escape sequences, HTML, table borders, quote marks and times."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _ESCAPES.sub("", text)
    if _TAG.search(text):
        text = _without_tags(text)
    if "&" in text:
        text = html.unescape(text)
    text = text.translate(_INVISIBLE).translate(_BLANK)
    if any(sign in text for sign in _BORDERS):
        text = "\n".join("" if _is_rule(line) else line for line in text.split("\n"))
    text = text.translate(_UPRIGHT)
    # most texts have neither quote marks nor times, and some have a hundred thousand lines
    if _QUOTE_OR_TIME.search(text) is None:
        return text
    return "\n".join(map(_unquoted, text.split("\n")))


_BORDERS = "|+─"


def _is_rule(line: str) -> bool:
    """Return whether a line is the border of a table."""
    return any(sign in line for sign in _BORDERS) and _RULE.fullmatch(line) is not None


def _unquoted(line: str) -> str:
    """Return a line without quote marks and its time."""
    for prefix in (_QUOTE, _TIME, _QUOTE):
        if found := prefix.match(line):
            line = line[found.end() :]
    return line


def _without_tags(text: str) -> str:
    """Return HTML as lines, one per table row or paragraph; a cell ends with a tab."""
    parts: list[str] = []
    in_row, at = False, 0
    for tag in _TAG.finditer(text):
        between = text[at : tag.start()]
        parts.append(between.replace("\n", " ").strip() if in_row else between)
        at = tag.end()
        closing, name = tag[1] == "/", tag[2].lower()
        if name == "tr":
            in_row = not closing
            parts.append("\n")
        elif name in ("td", "th") and closing:
            parts.append("\t")
        elif name in ("br", "p", "div"):
            parts.append("\n")
    parts.append(text[at:])
    return "".join(parts)


# ---------------------------------------------------------------- prefixes of nodes


def texts(text: str) -> dict[str, str]:
    """Split a text with the outputs of several nodes by the prefixes of its lines.

    The name is empty without a prefix. Several matrices with one name are numbered from 2.
    """
    lines = plain(text).split("\n")
    prefixes = [_prefix(line) for line in lines]
    names = {prefix: _name(prefix) for prefix in dict.fromkeys(prefixes) if prefix}
    if len(names) > 1 and all(map(_LINE_NUMBER.fullmatch, names)) and _differ(prefixes):
        lines = [_LINE_NUMBER.sub("", line, count=1) for line in lines]
        names = {}
    if not names:
        return dict(_numbered("", lines))
    found: dict[str, list[str]] = {}
    lengths = sorted({len(prefix) for prefix in names}, reverse=True)
    for line, prefix in zip(lines, prefixes, strict=True):
        own = prefix or _known(line, names, lengths)
        found.setdefault(names.get(own, ""), []).append(line[len(own) :])
    for name, own_lines in list(found.items()):
        if name == "" and not any(map(_is_matrix, own_lines)) and len(found) > 1:
            del found[name]
    return {key: part for name, own in found.items() for key, part in _numbered(name, own)}


def _differ(prefixes: list[str]) -> bool:
    """Return whether all prefixes differ, for example numbers of lines."""
    given = [prefix for prefix in prefixes if prefix]
    return len(set(given)) == len(given)


def _prefix(line: str) -> str:
    """Return the prefix of a row or header of a matrix, without the spaces before the row."""
    found = _ROW.search(line, 0, LONGEST_PREFIX) or _HEADER.search(line, 0, LONGEST_PREFIX)
    before = line[: found.start(1)] if found else ""
    # the indentation of the header belongs to the header
    return "" if before.isspace() else before.rstrip()


def _known(line: str, names: dict[str, str], lengths: list[int]) -> str:
    """Return the longest of the prefixes that a line has. `lengths`: theirs, longest first."""
    beginnings = (line[:length] for length in lengths)
    return next((beginning for beginning in beginnings if beginning in names), "")


def _name(prefix: str) -> str:
    """Return the node of a prefix such as `node1:` or `[pod/gpu-0/main]`, without punctuation."""
    words = re.sub(r"<std(?:out|err)>", "", prefix)
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.")


def _is_matrix(line: str) -> bool:
    return _ROW.search(line) is not None


def _numbered(name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines as texts with one matrix each."""
    part: list[str] = []
    number = 1
    rows = 0
    for line in lines:
        is_row, is_header = _role(line)
        if is_header and rows:
            yield _key(name, number), "\n".join(part)
            part, rows, number = [], 0, number + 1
        rows += is_row
        part.append(line)
    yield _key(name, number), "\n".join(part)


@lru_cache(maxsize=4096)  # nodes print equal lines
def _role(line: str) -> tuple[bool, bool]:
    """Return whether a line is a row of a matrix, and whether it is a header."""
    text = line.strip()
    is_row = _ROW.match(text) is not None
    return is_row, not is_row and _HEADER.match(text) is not None


def _key(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}".lstrip("-")


# ---------------------------------------------------------------- wrapped lines


def unwrapped(text: str) -> tuple[str, ...]:
    """Return the possible texts with wrapped lines joined; empty: no line was wrapped.

    A terminal wraps within words, an editor between words, and some programs remove trailing
    spaces.
    """
    logical = _logical_lines(text.split("\n"))
    if all(len(pieces) == 1 for pieces in logical):
        return ()
    broken = [pieces for pieces in logical if len(pieces) > 1]
    width = max(len(piece) for pieces in broken for piece in pieces[:-1])
    joined = []
    for full, short in (("", ""), (" ", " "), ("", " ")):
        lines = [_joined(pieces, width, full, short) for pieces in logical]
        joined.append("\n".join(lines))
    return tuple(dict.fromkeys(joined))


def _joined(pieces: list[str], width: int, full: str, short: str) -> str:
    """Join pieces: with `full` after pieces of the full width, with `short` after others."""
    between = [full if len(piece) == width else short for piece in pieces[:-1]]
    return "".join(map("".join, zip(pieces, [*between, ""], strict=True)))


def _logical_lines(lines: list[str]) -> list[list[str]]:
    """Return the pieces of each line; lines of the matrix begin with its header or a device."""
    logical: list[list[str]] = []
    in_header = in_rows = False
    for line in lines:
        words = line.split()
        if _LEGEND.match(line):
            in_header = in_rows = False
        elif _ROW.match(line.strip()):
            in_header, in_rows = False, True
            logical.append([line])
            continue
        elif not in_header and not in_rows and _HEADER.match(line.strip()):
            in_header = True
            logical.append([line])
            continue
        elif words and (in_header or (in_rows and _is_piece(words))):
            logical[-1].append(line)
            continue
        else:
            in_rows = in_rows and not words
        logical.append([line])
    return logical


def _is_piece(words: list[str]) -> bool:
    """Return whether words can continue a row: parts of cells and affinities."""
    tells = any(character.isalnum() for word in words for character in word)
    return tells and all(map(_PIECE.fullmatch, words))
