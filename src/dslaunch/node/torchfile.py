"""Files of torch.save: zip archives of which the entry `data.pkl` is a pickle. Read, never run.

A file may have been made to harm its reader, so nothing is accepted that torch.save does not write
(torch 1.6 and later): no compression, no second table of contents, no duplicate names, no
instruction of other pickle protocols. The result consists of plain values; a class or function that
the pickle names is recorded and not looked up.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from typing import IO, Any, Callable, Dict, List, Optional, Set, Tuple

MOST_TABLE = 64 << 20
MOST_ENTRIES = 500_000
MOST_PICKLE = 32 << 20
MOST_STEPS = 2_000_000
"""Instructions of a pickle, at most: those of a model with 40,000 tensors; they take 150 MB."""
MOST_NAME = 1024
PIECE = 1 << 20

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_FULL = 0xFFFFFFFF
"""Stands for a number that is in the extra field, since it needs 64 bits."""

NUMBERS = re.compile(r"[<>|=]?[?biufcSU][0-9]*")
"""Types of numpy arrays whose bytes are no addresses."""
NO_NUMBERS = ("numpy", "dtype of objects or fields")
"""Recorded instead of `numpy.dtype`, which could make numpy use bytes as addresses."""


class ZipEntry:
    """A file in the archive."""

    __slots__ = ("crc", "name", "offset", "size")

    def __init__(self, name: bytes, offset: int, size: int, crc: int) -> None:
        """`offset`: of its local header."""
        self.name, self.offset, self.size, self.crc = name, offset, size, crc


# ---------------------------------------------------------------- the archive


def entries(file: IO[bytes]) -> List[ZipEntry]:
    """Return what the archive's table of contents lists.

    Raises ValueError for a table that is damaged, or that two readers could understand differently.
    """
    start, size, count = _table(file)
    if size > MOST_TABLE or count > MOST_ENTRIES:
        raise ValueError("the table of contents is too large")
    file.seek(start)
    table = file.read(size)
    found, at = [], 0
    for _ in range(count):
        entry, at = _entry(table, at)
        if entry.offset + _LOCAL.size + entry.size > start:
            raise ValueError("an entry is outside of the file")
        found.append(entry)
    if at != size:
        raise ValueError("the table of contents is damaged")
    if len({entry.name.lower() for entry in found}) != len(found):
        raise ValueError("two entries have the same name")
    if _overlap(found):
        raise ValueError("two entries overlap")
    return found


def _overlap(entries: List[ZipEntry]) -> bool:
    """Return whether entries share bytes: to read each of them could take as long as to read the
    file as often as there are entries."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < end:
            return True
        end = entry.offset + _LOCAL.size + entry.size
    return False


def _table(file: IO[bytes]) -> Tuple[int, int, int]:
    """Return where the table of contents starts, its size, and its number of entries."""
    end = file.seek(0, os.SEEK_END) - _END.size
    if end < 0:
        raise ValueError("no table of contents")
    mark, _, _, _, count, size, start, comment = _END.unpack(_at(file, end, _END.size))
    if mark != b"PK\5\6" or comment:
        raise ValueError("no table of contents")
    before = end - _LOCATOR.size - _END64.size
    if before >= 0:
        locator = _LOCATOR.unpack(_at(file, end - _LOCATOR.size, _LOCATOR.size))
        if locator[0] == b"PK\6\7":
            large = _END64.unpack(_at(file, before, _END64.size))
            if large[0] != b"PK\6\6" or locator[2] != before:
                raise ValueError("the table of contents is damaged")
            count, size, start = large[7:]
            end = before
    if start + size != end:
        raise ValueError("the table of contents is not at the end")
    return start, size, count


def _entry(table: bytes, at: int) -> Tuple[ZipEntry, int]:
    """Return one line of the table, and where the next one is."""
    mark, _, _, flags, method, _, _, *rest = _CENTRAL.unpack_from(table, at)
    crc, packed, size, name_size, extra_size, comment_size, _, _, _, offset = rest
    name_at = at + _CENTRAL.size
    extra_at = name_at + name_size
    following = extra_at + extra_size + comment_size
    if mark != b"PK\1\2" or following > len(table):
        raise ValueError("the table of contents is damaged")
    name = table[name_at:extra_at]
    if b"\0" in name:
        raise ValueError("the name of an entry holds a NUL, at which torch would end it")
    if method != 0 or flags & 1:
        raise ValueError(f"{_shown(name)} is compressed or encrypted, which torch.save never does")
    size, packed, offset = _large(table[extra_at : extra_at + extra_size], [size, packed, offset])
    if size != packed:
        raise ValueError(f"{_shown(name)} has two sizes")
    return ZipEntry(name, offset, size, crc), following


def _large(extra: bytes, numbers: List[int]) -> List[int]:
    """Return the numbers of an entry, those of 64 bits taken from its extra field."""
    found, at = b"", 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and found:
            raise ValueError("an entry has two sizes")
        if kind == 1:
            found = extra[at + 4 : at + 4 + length]
        at += 4 + length
    values = iter(struct.unpack_from(f"<{len(found) // 8}Q", found))
    return [next(values, _FULL) if number == _FULL else number for number in numbers]


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _shown(name: bytes) -> str:
    return name[:200].decode(errors="replace")


def _seek(file: IO[bytes], entry: ZipEntry) -> None:
    """Seek to an entry's first byte."""
    mark, *_, name_size, extra_size = _LOCAL.unpack(_at(file, entry.offset, _LOCAL.size))
    name = file.read(name_size)
    if mark != b"PK\3\4" or name != entry.name:
        raise ValueError(f"{_shown(entry.name)} is not where the table of contents says")
    file.seek(extra_size, os.SEEK_CUR)


def damaged(file: IO[bytes]) -> Optional[str]:
    """Read every byte; return the name of the first entry whose checksum is wrong."""
    for entry in entries(file):
        _seek(file, entry)
        left, crc = entry.size, 0
        while left:
            data = file.read(min(left, PIECE))
            if not data:
                return _shown(entry.name)
            crc, left = zlib.crc32(data, crc), left - len(data)
        if crc != entry.crc:
            return _shown(entry.name)
    return None


def pickle_of(file: IO[bytes]) -> bytes:
    """Return the pickle of a file of torch.save. Raises ValueError, struct.error, OSError."""
    every = entries(file)
    top = every[0].name.partition(b"/")[0] if every else b""
    if any(entry.name.lower().endswith(b"constants.pkl") for entry in every):
        raise ValueError("holds a program (TorchScript)")
    found = [entry for entry in every if entry.name.lower() == top.lower() + b"/data.pkl"]
    if len(found) != 1 or found[0].name != top + b"/data.pkl":
        raise ValueError("not a file of torch.save")
    if found[0].size > MOST_PICKLE:
        raise ValueError("too large to inspect")
    _seek(file, found[0])
    return file.read(found[0].size)


# ---------------------------------------------------------------- the pickle


class Name:
    """A class or function that a pickle names."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Made:
    """Stands for the result of calling the class or function with these arguments."""

    __slots__ = ("arguments", "of")

    def __init__(self, of: Name, arguments: Tuple[Any, ...]) -> None:
        self.of, self.arguments = of, arguments


class Reader:
    """Follows the instructions of a pickle, and calls nothing."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: List[Any] = []
        self.marks: List[int] = []
        self.memo: List[Any] = []
        self.names: Set[Tuple[str, str]] = set()
        """Modules and names in them."""

    def value(self) -> Any:
        """Return what the pickle describes. Raises ValueError for one that torch.save does not
        write, is damaged or too large."""
        try:
            for _ in range(MOST_STEPS):
                code = self.data[self.at]
                self.at += 1
                if code == _STOP:
                    return self.stack.pop()
                operation = OPERATIONS.get(code)
                if operation is None:
                    raise ValueError(f"holds an instruction that torch.save never writes: {code}")
                operation(self)
        except (IndexError, TypeError, AttributeError, struct.error) as error:
            raise ValueError(f"damaged: {error}") from None
        raise ValueError("too large to inspect")

    def take(self, size: int) -> bytes:
        """Return the next bytes of the pickle."""
        data = self.data[self.at : self.at + size]
        if len(data) < size:
            raise IndexError("cut short")
        self.at += size
        return data

    def number(self, form: struct.Struct) -> Any:
        """Return the next number."""
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def line(self) -> str:
        """Return the text up to the end of the line."""
        end = self.data.index(b"\n", self.at, self.at + MOST_NAME)
        return self.take(end - self.at + 1)[:-1].decode()

    def above_mark(self) -> List[Any]:
        """Pop what was put on the stack since the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def put(self, index: int) -> None:
        """Remember the value on top; writers number these values without gaps."""
        if index > len(self.memo):
            raise ValueError("damaged: numbers are left out")
        self.memo[index : index + 1] = [self.stack[-1]]


def _global(reader: Reader) -> None:
    name = Name(reader.line(), reader.line())
    reader.names.add((name.module, name.name))
    reader.stack.append(name)


def _call(reader: Reader) -> None:
    arguments, called = reader.stack.pop(), reader.stack.pop()
    if not isinstance(called, Name) or not isinstance(arguments, tuple):
        raise ValueError("holds a call of something that has no name")
    if (called.module, called.name) == ("numpy", "dtype"):
        kind = arguments[0] if arguments else None
        if not isinstance(kind, str) or not NUMBERS.fullmatch(kind):
            reader.names.add(NO_NUMBERS)
    plain = (called.module, called.name) == ("collections", "OrderedDict") and not arguments
    reader.stack.append({} if plain else Made(called, arguments))


def _build(reader: Reader) -> None:
    """Skip the state of an object."""
    state, built = reader.stack.pop(), reader.stack[-1]
    if not isinstance(built, (Made, dict)):
        raise ValueError("holds a change of something that is no object")
    if isinstance(built, Made) and (built.of.module, built.of.name) == ("numpy", "dtype"):
        fields = state[2:5] if isinstance(state, tuple) else ()
        if fields != (None, None, None):
            reader.names.add(NO_NUMBERS)


def _append(reader: Reader, items: List[Any]) -> None:
    onto = reader.stack[-1]
    if isinstance(onto, list):
        onto += items
    elif not isinstance(onto, Made):
        raise ValueError("damaged: no list to append to")


def _set(reader: Reader, items: List[Any]) -> None:
    """Keep items whose key is text: other keys can be chosen to collide."""
    onto = reader.stack[-1]
    if isinstance(onto, dict):
        for at in range(0, len(items) - 1, 2):
            if isinstance(items[at], str):
                onto[items[at]] = items[at + 1]
    elif not isinstance(onto, Made):
        raise ValueError("damaged: no mapping to set a key of")


def _one(reader: Reader) -> List[Any]:
    return [reader.stack.pop()]


def _two(reader: Reader) -> List[Any]:
    value, key = reader.stack.pop(), reader.stack.pop()
    return [key, value]


def _tuple(reader: Reader, size: int) -> None:
    items = reader.stack[len(reader.stack) - size :]
    del reader.stack[len(reader.stack) - size :]
    reader.stack.append(tuple(items))


def _long(reader: Reader) -> int:
    return int.from_bytes(reader.take(reader.number(_BYTE)), "little", signed=True)


def _pushes(make: Callable[[Reader], Any]) -> Callable[[Reader], None]:
    def push(reader: Reader) -> None:
        reader.stack.append(make(reader))

    return push


_BYTE, _SHORT, _INT, _SIZE = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I"))
_DOUBLE = struct.Struct(">d")
_STOP = ord(".")
OPERATIONS: Dict[int, Callable[[Reader], None]] = {
    code[0]: operation
    for code, operation in (
        (b"\x80", lambda r: r.take(1)),  # PROTO
        (b"c", _global),  # GLOBAL
        (b"R", _call),  # REDUCE
        (b"\x81", _call),  # NEWOBJ
        (b"b", _build),  # BUILD
        (b"a", lambda r: _append(r, _one(r))),  # APPEND
        (b"e", lambda r: _append(r, r.above_mark())),  # APPENDS
        (b"s", lambda r: _set(r, _two(r))),  # SETITEM
        (b"u", lambda r: _set(r, r.above_mark())),  # SETITEMS
        (b"(", lambda r: r.marks.append(len(r.stack))),  # MARK
        (b"0", lambda r: r.stack.pop()),  # POP
        (b"1", lambda r: r.above_mark()),  # POP_MARK
        (b"q", lambda r: r.put(r.number(_BYTE))),  # BINPUT
        (b"r", lambda r: r.put(r.number(_SIZE))),  # LONG_BINPUT
        (b"h", _pushes(lambda r: r.memo[r.number(_BYTE)])),  # BINGET
        (b"j", _pushes(lambda r: r.memo[r.number(_SIZE)])),  # LONG_BINGET
        (b"t", _pushes(lambda r: tuple(r.above_mark()))),  # TUPLE
        (b"\x85", lambda r: _tuple(r, 1)),  # TUPLE1
        (b"\x86", lambda r: _tuple(r, 2)),  # TUPLE2
        (b"\x87", lambda r: _tuple(r, 3)),  # TUPLE3
        (b")", _pushes(lambda r: ())),  # EMPTY_TUPLE
        (b"]", _pushes(lambda r: [])),  # EMPTY_LIST
        (b"}", _pushes(lambda r: {})),  # EMPTY_DICT
        (b"N", _pushes(lambda r: None)),  # NONE
        (b"\x88", _pushes(lambda r: True)),  # NEWTRUE
        (b"\x89", _pushes(lambda r: False)),  # NEWFALSE
        (b"K", _pushes(lambda r: r.number(_BYTE))),  # BININT1
        (b"M", _pushes(lambda r: r.number(_SHORT))),  # BININT2
        (b"J", _pushes(lambda r: r.number(_INT))),  # BININT
        (b"G", _pushes(lambda r: r.number(_DOUBLE))),  # BINFLOAT
        (b"\x8a", _pushes(_long)),  # LONG1
        (b"X", _pushes(lambda r: r.take(r.number(_SIZE)).decode("utf-8", "replace"))),  # BINUNICODE
        (b"Q", lambda r: r.stack.__setitem__(-1, None)),  # BINPERSID
    )
}
"""The instructions of protocol 2 that torch.save uses, named as in the module `pickle`.
BINPERSID stands for a tensor's numbers, which are not read."""
