"""Folded node names such as `node[01-04,07]`, expanded in their written order.

The notation is that of ClusterShell's NodeSet and of SLURM, without groups, operators and steps.
Folding uses ClusterShell where names differ in several numbers. Expanding does not, for two
reasons: ClusterShell sorts the names, but their order decides ranks and pairs hosts with addresses;
and it builds a range before the range can be counted, so that a typing mistake could fill the
memory.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dslaunch.cluster.mistakes import MistakeCode, Value, mistake

LIMIT = 100_000
"""Maximum number of names that one text may expand to."""
LONGEST = 253
"""Maximum length of a name in DNS (RFC 1035, section 2.3.4), in characters."""
MOST_FOLDED = 200
"""Maximum number of names that ClusterShell folds: it takes 30 s for 2,000 with several numbers."""

_PART = re.compile(r"(?:[^,\[\]]++|\[[^\[\]]*+\])*+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)")
_LONG_NUMBER = re.compile(r"[0-9]{19}")
_DIGITS = re.compile(r"[0-9]+")
_PIECE = re.compile(r"([^0-9]*)([0-9]*)")
_FOLDABLE = re.compile(r"[A-Za-z0-9._:-]+")


class InvalidNodeSet(ValueError):
    """A list of names or numbers that cannot be expanded."""

    def __init__(self, code: MistakeCode, **values: Value) -> None:
        self.mistake = mistake(code, **values)
        super().__init__(str(self.mistake))


class _Range(NamedTuple):
    """The numbers from `first` to `last`, written with at least `width` digits."""

    first: int
    last: int
    width: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def length(self) -> int:
        """Return the length of the longest number."""
        return max(self.width, len(str(self.last)))

    def texts(self) -> list[str]:
        return [f"{number:0{self.width}}" for number in range(self.first, self.last + 1)]


def expand(folded: str) -> tuple[str, ...]:
    """Return every name that `folded` expands to, in the written order.

    Raises InvalidNodeSet for invalid notation or more than LIMIT names.
    """
    if not folded:
        raise InvalidNodeSet(MistakeCode.EMPTY_NAME)
    names: list[str] = []
    for part in _parts(folded):
        names += _expand_part(part)
        if len(names) > LIMIT:
            raise InvalidNodeSet(MistakeCode.TOO_MANY_NAMES, text=folded, limit=LIMIT)
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """Return the names folded, sorted and without duplicates; names with special characters
    follow."""
    given = list(dict.fromkeys(names))
    series = _series(given) if len(given) > 1 else None
    if series is not None:
        return series
    plain = [name for name in given if _is_foldable(name)]
    folded = [_folded(plain)] if plain else []
    return ",".join([*folded, *(name for name in given if not _is_foldable(name))])


def fold_numbers(numbers: Iterable[int], width: int = 1) -> str:
    """Return numbers such as ranks as ranges, sorted and each once: `0-2,5`. `width`: the digits of
    each number, with leading zeros."""
    given = set(numbers)
    firsts = sorted(number for number in given if number - 1 not in given)
    lasts = sorted(number for number in given if number + 1 not in given)
    return ",".join(
        f"{low:0{width}}-{high:0{width}}" if high > low else f"{low:0{width}}"
        for low, high in zip(firsts, lasts, strict=True)
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0-2,5`."""
    numbers = set(ranks)
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {fold_numbers(numbers)}"


def _series(names: list[str]) -> str | None:
    """Return names folded that differ in one number alone, as those of most clusters do; None: they
    differ in more. Thousands of names take a tenth of the time of the other ways."""
    start = _common_start(names).rstrip(string.digits)
    end = _common_start([name[::-1] for name in names])[::-1].lstrip(string.digits)
    numbers = [name[len(start) : len(name) - len(end)] for name in names]
    lengths = set(map(len, numbers))
    padded = any(number[:1] == "0" and number != "0" for number in numbers)
    is_one_number = 0 not in lengths and _DIGITS.fullmatch("".join(numbers)) is not None
    if not is_one_number or not _is_foldable(f"{start}{max(numbers, key=len)}{end}"):
        return None
    if padded and len(lengths) > 1:
        return None
    width = max(lengths) if padded else 1
    return f"{start}[{fold_numbers(map(int, numbers), width)}]{end}"


def _common_start(names: list[str]) -> str:
    """Return the text that all of the names begin with."""
    first, last = min(names), max(names)
    length = next((at for at, text in enumerate(first) if text != last[at]), len(first))
    return first[:length]


def _folded(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) > MOST_FOLDED:
        return fold_in_order(sorted(names, key=_by_numbers))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _by_numbers(name: str) -> list[tuple[str, int]]:
    """Return a sort key that puts `n2` before `n10`."""
    return [(text, int(number or 0)) for text, number in _PIECE.findall(name)]


def _is_foldable(name: str) -> bool:
    """Return whether ClusterShell can fold a name: no special characters, no very long number."""
    return _FOLDABLE.fullmatch(name) is not None and _LONG_NUMBER.search(name) is None


def fold_in_order(names: Iterable[str]) -> str:
    """Return the names folded, so that `expand` returns them in the same order.

    Only adjacent names are folded, by their last number: `n1 n2 n4 m n3` is `n[1-2,4],m,n3`.
    """
    pieces: list[tuple[str, str, list[list[str]]]] = []
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        start, number, end = (match[1], match[2], match[3]) if match else (name, "", "")
        if not pieces or not number or pieces[-1][:2] != (start, end) or not pieces[-1][2]:
            pieces.append((start, end, [[number, number]] if number else []))
        elif number == _successor(pieces[-1][2][-1][1]):
            pieces[-1][2][-1][1] = number
        else:
            pieces[-1][2].append([number, number])
    return ",".join(map(_written, pieces))


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0-3,7`, in the written order.

    Raises InvalidNodeSet for an invalid list or more than LIMIT numbers.
    """
    ranges = [_range(part, text) for part in text.split(",")]
    if sum(each.size for each in ranges) > LIMIT:
        raise InvalidNodeSet(MistakeCode.TOO_MANY_NUMBERS, text=text, limit=LIMIT)
    return tuple(n for each in ranges for n in range(each.first, each.last + 1))


def _successor(number: str) -> str | None:
    """Return the next number of a range; None if its padding would differ."""
    following = f"{int(number) + 1:0{len(number)}}"
    padded = len(number) > 1 and number.startswith("0")
    return None if padded and len(following) > len(number) else following


def _written(piece: tuple[str, str, list[list[str]]]) -> str:
    start, end, ranges = piece
    if not ranges:
        return start
    texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    inside = ",".join(texts)
    return f"{start}[{inside}]{end}" if inside != ranges[0][0] else f"{start}{inside}{end}"


def _parts(folded: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets, in one pass."""
    start = 0
    while True:
        part = _PART.match(folded, start)
        assert part is not None  # the pattern matches an empty text as well
        end = part.end()
        if end < len(folded) and folded[end] != ",":
            raise InvalidNodeSet(MistakeCode.BRACKETS, text=folded)
        if not part[0]:
            raise InvalidNodeSet(MistakeCode.EMPTY_NAME_IN_LIST, text=folded)
        yield part[0]
        if end == len(folded):
            return
        start = end + 1


def _expand_part(part: str) -> list[str]:
    pieces = _BRACKETS.split(part)
    lists = [[_range(text, part) for text in inside.split(",")] for inside in pieces[1::2]]
    length = sum(map(len, pieces[::2])) + sum(max(r.length for r in each) for each in lists)
    if length > LONGEST:
        raise InvalidNodeSet(MistakeCode.LONG_NAME, text=part, limit=LONGEST)
    if math.prod(sum(each.size for each in ranges) for ranges in lists) > LIMIT:
        raise InvalidNodeSet(MistakeCode.TOO_MANY_NAMES, text=part, limit=LIMIT)
    choices = [
        [literal + text for each in ranges for text in each.texts()]
        for literal, ranges in zip(pieces[:-1:2], lists, strict=True)
    ]
    return ["".join(chosen) + pieces[-1] for chosen in itertools.product(*choices)]


def _range(text: str, whole: str) -> _Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        ipv6 = text.count(":") > 1
        code = MistakeCode.IPV6_IN_BRACKETS if ipv6 else MistakeCode.NO_RANGE
        raise InvalidNodeSet(code, part=text, text=whole)
    first, last = match[1], match[2] or match[1]
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    if padded and len(first) != len(last):
        raise InvalidNodeSet(MistakeCode.UNEVEN_RANGE, part=text, text=whole)
    if int(last) < int(first):
        raise InvalidNodeSet(MistakeCode.BACKWARD_RANGE, part=text, text=whole)
    return _Range(int(first), int(last), len(first) if padded else 1)
