"""Mask secret values on the node, before anything is kept or sent."""

from __future__ import annotations

import re

from dslaunch.node.spellings import spellings

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterable, List, Set, Tuple

MASK = b"***"
FIXED = frozenset(
    ("event", "tool", "state", "run", "host", "hosts", "cluster", "launcher", "directory")
)
"""Fields of messages with codes of the protocol and names that the launcher gave. They are not
masked, since a secret that equals one would break the protocol."""
_HEAD = 4
"""Bytes of a form by which it is found."""


class Secrets:
    """The secrets of a run in all their forms, for text and for streams. Immutable."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms: Set[bytes] = set()
        for value in values:
            forms |= spellings(value)
        self._forms = _by_head(forms)
        heads = set(self._forms)
        self._find_head = re.compile(_pattern(heads), re.DOTALL).search if forms else None
        self._starts = {form[:n] for form in forms for n in range(1, min(_HEAD, len(form)))}

    def __bool__(self) -> bool:
        return self._find_head is not None

    def stream(self) -> Redactor:
        """Return a redactor of one stream."""
        return Redactor(self)

    def text(self, text: str) -> str:
        """Return the text with its secrets masked."""
        if not self:
            return text
        # a name or an argument that is not UTF-8 is in Python a text with lone surrogates
        redacted, _, _ = self.mask(text.encode("utf-8", "surrogatepass"), 0, final=True)
        return redacted.decode("utf-8", "surrogatepass")

    def values(self, value: Any) -> Any:
        """Return JSON data with the secrets in all of its texts masked, except `FIXED` fields."""
        if not self:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return dict(self._field(key, item) for key, item in value.items())
        if isinstance(value, (list, tuple)):
            return [self.values(item) for item in value]
        return value

    def _field(self, key: str, item: Any) -> Tuple[str, Any]:
        """Return one field of an object; keys that are identifiers belong to the protocol."""
        shown = key if key.isidentifier() else self.text(key)
        return shown, item if key in FIXED else self.values(item)

    def mask(self, data: bytes, covered: int, *, final: bool) -> Tuple[bytes, bytes, int]:
        """Return the masked output, the bytes that are held back, and how many of those are masked.

        `covered` is how many of the first bytes belong to a secret whose mask was given before.
        Forms that overlap are masked as one. With `final` nothing more follows.
        """
        assert self._find_head is not None
        clean: List[bytes] = []
        undecided = len(data) if final else self._beginning(data)
        position = 0
        while True:
            found = self._find_head(data, position)
            # a longer form that may begin before a complete one is not decided yet
            if found is None or found.start() >= undecided:
                held = undecided
                break
            at = found.start()
            length = self._length(data, at, found[0], final)
            if length is None:
                held = at
                break
            if length and at >= covered:
                clean += (data[covered:at], MASK)
            if length:
                covered = max(covered, at + length)
            position = at + 1
        clean.append(data[covered:held])
        return b"".join(clean), data[held:], max(covered - held, 0)

    def _length(self, data: bytes, at: int, head: bytes, final: bool) -> Any:
        """Return the length of the longest form at that place: 0 if there is none, None if the data
        ends before that can be decided."""
        rest = len(data) - at
        for form in self._forms[head]:
            if data.startswith(form, at):
                return len(form)
            if not final and len(form) > rest and form.startswith(data[at:]):
                return None
        return 0

    def _beginning(self, data: bytes) -> int:
        """Return where the shortest beginnings of a form start at the end of the data, if they
        do."""
        for count in range(min(_HEAD - 1, len(data)), 0, -1):
            if data[-count:] in self._starts:
                return len(data) - count
        return len(data)


class Redactor:
    """Masks secrets in one stream, also those that come in pieces."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""
        self._covered = 0
        """How many of the held bytes belong to a secret whose mask was given."""

    def feed(self, data: bytes) -> bytes:
        """Add bytes; return those that cannot be part of a secret. A possible beginning is held
        back."""
        return self._take(data) if self._secrets else data

    def rest(self) -> bytes:
        """Return what was held back, when its writer has ended.

        Another process may continue to write: what would complete a secret then is left out.
        """
        if not self._secrets:
            return b""
        clean, _, _ = self._secrets.mask(self._held, self._covered, final=True)
        self._covered = len(self._held)
        return clean

    def _take(self, data: bytes) -> bytes:
        clean, self._held, self._covered = self._secrets.mask(
            self._held + data, self._covered, final=False
        )
        return clean


def _by_head(forms: Set[bytes]) -> Dict[bytes, List[bytes]]:
    """Return for each head the forms that begin with it, the longest first."""
    found: Dict[bytes, Set[bytes]] = {}
    for form in forms:
        found.setdefault(form[:_HEAD], set()).add(form)
    # a form that is shorter than a head may be all of it, or the beginning of another form
    for short in sorted((head for head in found if len(head) < _HEAD), key=len):
        for head in list(found):
            if head.startswith(short):
                found[short] |= found[head]
                found[head].add(short)
    return {head: sorted(each, key=len, reverse=True) for head, each in found.items()}


def _pattern(heads: Set[bytes]) -> bytes:
    """Return a pattern that matches the longest of the heads, in a time that hardly depends on
    their number: those with the same beginning share it."""
    tails: Dict[bytes, Set[bytes]] = {}
    for head in heads:
        if head:
            tails.setdefault(head[:1], set()).add(head[1:])
    if not tails:
        return b""
    branches = [re.escape(first) + _pattern(rest) for first, rest in sorted(tails.items())]
    joined = b"(?:" + b"|".join(branches) + b")"
    return joined + b"?" if b"" in heads else joined
