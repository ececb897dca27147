"""The forms in which a secret value appears in text: plain, quoted, escaped or encoded."""

from __future__ import annotations

import binascii
import json

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Iterator, Set

SHORTEST = 6
"""Bytes of a secret below which only its exact text is masked, and no encoded form."""
SHORTEST_LINE = 8
"""Characters of one line of a secret, or of wrapped Base64, below which it is not masked."""
LONGEST_TWICE = 16 * 1024
"""Characters of a secret above which forms of forms, many times as long, are left out."""
_WRAPPED = (64, 76)
"""Characters per line of wrapped Base64: PEM and OpenSSL, MIME and coreutils."""
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LEFT_BY_URL_ENCODERS = ("/", "", "!*'()", ";,/?:@&=+$!*'()#", "/:")
"""Characters that encoders keep beside the unreserved ones: Python's `quote` and `quote_plus`,
JavaScript's `encodeURIComponent` and `encodeURI`, and what is usual for paths."""
_LEFT_BY_SHELLS = _UNRESERVED | frozenset("@%+=:,/")
_HTML_QUOTES = (('"', "'"), ("&quot;", "&#x27;"), ("&quot;", "&#39;"), ("&#34;", "&#39;"))
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def spellings(secret: str) -> Set[bytes]:
    """Return every form of a secret that is masked; none for an empty one."""
    if not secret:
        return set()
    found = {secret}
    encoded: Set[bytes] = set()
    for part in _parts(secret):
        found.update(_escaped(part))
        encoded.update(_encoded(part.encode()))
    return {text.encode() for text in found if text} | encoded


def _parts(secret: str) -> Iterator[str]:
    """Yield the secret without surrounding space, and each line that is long enough."""
    stripped = secret.strip()
    for part in (secret, stripped):
        if len(part.encode()) >= SHORTEST:
            yield part
    lines = stripped.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST_LINE)


def _escaped(text: str) -> Iterator[str]:
    """Yield the forms that are text themselves."""
    once = {text, *_string_literals(text)}
    yield from once
    for form in once if len(text) <= LONGEST_TWICE else ():
        # a string in a string: JSON that holds a traceback, a log line that quotes JSON
        yield from _string_literals(form)
    yield from _in_urls(text)
    yield from _in_html(text)
    yield from _in_shells(text)


def _string_literals(text: str) -> Iterator[str]:
    """Yield the inside of string literals: Python's `repr` and `ascii`, its bytes, JSON."""
    yield from _with_quotes(_literal(text, repr))
    yield from _with_quotes(_literal(text, ascii))
    yield from _with_quotes(_literal(text.encode().decode("latin-1"), ascii))
    for ascii_only in (True, False):
        inner = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield inner
        yield inner.replace("/", "\\/")


def _literal(text: str, literal: Callable[[str], str]) -> str:
    """Return the inside of a literal whose quotes are not escaped."""
    return "'".join(literal(piece)[1:-1] for piece in text.split("'"))


def _with_quotes(text: str) -> Iterator[str]:
    """Yield the text with neither, either or both quotes escaped: it depends on what is around
    it."""
    single = text.replace("'", "\\'")
    yield text
    yield single
    yield text.replace('"', '\\"')
    yield single.replace('"', '\\"')


def _in_urls(text: str) -> Iterator[str]:
    for more in _LEFT_BY_URL_ENCODERS:
        left = _UNRESERVED | frozenset(more)
        for hexadecimal in ("%%%02X", "%%%02x"):
            quoted = "".join(
                each if each in left else "".join(hexadecimal % byte for byte in each.encode())
                for each in text
            )
            yield quoted
            yield quoted.replace("%20", "+")


def _in_html(text: str) -> Iterator[str]:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for double, single in _HTML_QUOTES:
        yield escaped.replace('"', double).replace("'", single)


def _in_shells(text: str) -> Iterator[str]:
    """Yield the forms that `set -x`, `declare -p`, `printf %q` and `shlex.quote` write."""
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield "".join(f"\\{each}" if each in '\\"$`' else each for each in text)
    yield "".join(each if each in _LEFT_BY_SHELLS else f"\\{each}" for each in text)


def _encoded(data: bytes) -> Iterator[bytes]:
    """Yield hexadecimal and Base64 of both alphabets, alone and within a longer encoded text."""
    yield binascii.hexlify(data)
    yield binascii.hexlify(data).upper()
    whole, inside = binascii.b2a_base64(data, newline=False), _base64_inside(data, 0)
    forms = {whole, *(_base64_inside(data, before) for before in range(3))}
    for width in _WRAPPED:
        lines = (inside[at : at + width] for at in range(0, len(inside), width))
        forms.update(line for line in lines if len(line) >= SHORTEST_LINE)
    for form in forms:
        yield form
        yield form.translate(_URL_SAFE)


def _base64_inside(data: bytes, before: int) -> bytes:
    """Return the characters that do not depend on the data before and after.

    `before` is the number of bytes in front, modulo 3. A character holds 6 bits, so that the first
    and the last may depend on a neighbor.
    """
    encoded = binascii.b2a_base64(b"\0" * before + data, newline=False)
    first = (before * 8 + 5) // 6
    last = (before + len(data)) * 8 // 6
    return encoded[first:last]
