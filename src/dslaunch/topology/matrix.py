"""Parse `nvidia-smi topo -m`, from K80 to B300, also if a log or an editor has damaged it.

Five forms are known (first and last drivers are inferred from dated captures; 590 to 610 are
exact):

0  drivers ~340-352   NICs by device name, CPU Affinity, SOC; legend "Path traverses ..."
1  361-375            the same; legend "Connection traversing ..."
2  384-~435           SYS instead of SOC, and NODE
3  ~440-~525          NUMA Affinity; NICs become NICn with their own legend
4  from ~530          GPU NUMA ID

Columns are ignored, because tabs become spaces and the header loses its indentation. A row is valid
if it has one cell per device and its `X` on the diagonal; a pair if both of its cells agree; a name
if header and row agree. Other parts are skipped, with a note.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile

from msgspec import Struct, field

from dslaunch.notes import Note, note
from dslaunch.topology.model import Status
from dslaunch.topology.notes import MatrixNote
from dslaunch.topology.recorded_text import texts, unwrapped

MOST_DEVICES = 128
LONGEST_NAME = 64
_CODE = r"NV[1-9][0-9]?|PIX|PXB|PHB|PSB|NODE|SYS|SOC"
_CELLS = re.compile(rf"(?:X|{_CODE})+")
_CELL = re.compile(rf"X|{_CODE}")
_TAIL = re.compile(r"[0-9,-]+|N/A")
_DEVICE = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx[0-9]_(?:bond_)?[0-9]{1,4}|\S+")
_COUNTED = re.compile(r"(GPU|NIC)([0-9]{1,4})")
_NAMED = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|(?=[a-z]\w{,60}[0-9])[a-z]\w{,60}", re.ASCII)
"""Names of devices; verbs names are those of rdma-core: `mlx5_0`, `rocep49s0`."""
_AFFINITY = re.compile(r"CPU\s+Affinity")
_LEGEND = re.compile(r"^\s*Legend:")
_NIC_NAME = re.compile(r"^[ \t]*(NIC[0-9]{1,4}):[ \t]+([A-Za-z][\w.-]{0,63})[ \t]*$", re.M | re.A)
_RANGE = r"[0-9]{1,5}(?:-[0-9]{1,5})?"
_LIST = re.compile(rf"{_RANGE}(?:,{_RANGE})*")


class Affinity(Struct, frozen=True):
    """The columns after the matrix; None: blank, N/A or damaged."""

    cpus: str | None = None
    numa: str | None = None
    memory_numa: int | None = None


class TopologyMatrix(Struct):
    """The matrix in a text."""

    status: Status = "none"
    era: int | None = None
    devices: list[str] = field(default_factory=list)
    """In the order of the columns, GPUs and NICs."""
    links: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, Affinity] = field(default_factory=dict)
    nic_names: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    whole: bool = False
    """Whether the matrix, including its affinities, is complete and unambiguous."""
    wrapped: bool = False
    """Whether its lines were wrapped and cannot be joined unambiguously."""


class _Row(Struct, frozen=True):
    label: str
    cells: tuple[str, ...]
    tail: tuple[str, ...]
    cut: bool
    """Whether the text ends in this row, so that its last word may be incomplete."""

    @property
    def own(self) -> int | None:
        """Return the column of its `X`; None: no `X`, or several."""
        return self.cells.index("X") if self.cells.count("X") == 1 else None


def parse(text: str) -> TopologyMatrix:
    """Parse the first matrix in a text. A text without a matrix has the status `none`.

    Wrapped lines are joined if the result is unambiguous. Otherwise the text is rejected: half a
    line looks like a line of a smaller machine.
    """
    parts = texts(text)
    first = next((part for part in parts.values() if part.strip()), "")
    whole = [found for found in map(_parse, unwrapped(first)) if found.whole]
    if not unwrapped(first):
        found = _parse(first)
    elif whole and all(each == whole[0] for each in whole):
        found = whole[0]
    else:
        return TopologyMatrix(notes=[note(MatrixNote.LINES_WRAPPED)], wrapped=True)
    others = sum("GPU" in part for part in parts.values()) - 1
    if others > 0 and found.status != "none":
        found.notes.append(note(MatrixNote.MATRICES_IGNORED, count=others))
    return found


def _parse(text: str) -> TopologyMatrix:
    header, rows, odd = _lines(text)
    found = TopologyMatrix(era=None)
    found.notes += odd
    if not rows:
        return found
    if len(rows) > MOST_DEVICES or max(len(row.cells) for row in rows) > MOST_DEVICES:
        return TopologyMatrix(notes=[note(MatrixNote.TOO_MANY_DEVICES, most=MOST_DEVICES)])
    names = _names(header, rows, found.notes)
    _fill(found, names, rows)
    if not found.devices:
        return TopologyMatrix(notes=found.notes)
    columns = _columns(header)
    # links are known even if affinities or names are missing
    found.status = "partial" if found.notes else "ok"
    for row in rows:
        if row.label in found.devices and row.label.startswith("GPU"):
            found.affinity[row.label] = _affinity(row, columns, rows, found.notes)
    if rows[-1].cut and len(found.notes):
        found.status = "partial"
    found.whole = not found.notes
    found.era = _era(text, columns)
    found.nic_names = _nic_names(text, found)
    return found


def _lines(text: str) -> tuple[str, list[_Row], list[Note]]:
    """Return the header and the rows of the first matrix, before its legend."""
    header, odd = "", list[Note]()
    rows: list[_Row] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _LEGEND.match(line):
            if rows:
                break
            continue
        cut = number == len(lines) - 1
        row = _row(line, cut=cut)
        if row is None:
            if re.search(r"GPU\d", line) and not _looks_like_row(line):
                if rows:
                    break
                header = line
            elif _looks_like_row(line) and header:
                odd.append(note(MatrixNote.ROW_UNREADABLE, row=line.split()[0][:20]))
            continue
        rows.append(row)
    return header, rows, odd if rows else []


def _row(line: str, *, cut: bool) -> _Row | None:
    words = line.split()
    if len(words) < 2 or len(words[0]) > LONGEST_NAME or _CELLS.fullmatch(words[0]):
        return None
    matrix = list(takewhile(_CELLS.fullmatch, words[1:]))
    cells = [cell for word in matrix for cell in _CELL.findall(word)]
    tail = tuple(words[1 + len(matrix) :])
    if cut and tail and not _TAIL.fullmatch(tail[-1]):
        tail = tail[:-1]
    elif cut and cells and not tail and cells[-1].startswith("NV"):
        cells.pop()  # NV1 may be a prefix of NV12; other words are complete or invalid
    if not cells or not all(_TAIL.fullmatch(word) for word in tail):
        return None
    soc = tuple("SYS" if cell == "SOC" else cell for cell in cells)
    return _Row(words[0], soc, tail, cut)


def _looks_like_row(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and any(_CELLS.fullmatch(word) for word in words[1:])


def _names(header: str, rows: list[_Row], notes: list[Note]) -> list[str | None]:
    """Return the names of the columns; None where header and rows differ."""
    titles = _DEVICE.findall(_AFFINITY.split(header)[0])
    sizes = Counter(len(row.cells) for row in rows if not row.cut)
    if titles and (len(titles) in sizes or (len(rows) == 1 and rows[0].cut)):
        return _checked(titles, rows, notes)
    if header:
        notes.append(note(MatrixNote.HEADER_MISMATCH))
    else:
        notes.append(note(MatrixNote.HEADER_MISSING))
    return _by_rows(rows, notes)


def _checked(titles: list[str], rows: list[_Row], notes: list[Note]) -> list[str | None]:
    """Return the names in the header that no row contradicts."""
    names: list[str | None] = list(titles)
    sure: set[int] = set()
    twice = {title for title, times in Counter(titles).items() if times > 1}
    for row in rows:
        if row.own is None or not _size_fits(row, len(titles)):
            continue
        if titles[row.own] == row.label:
            sure.add(row.own)
        else:
            names[row.own] = None
            notes.append(note(MatrixNote.ROW_RENAMED, row=row.label, title=titles[row.own]))
    odd = not _in_order(titles)
    for column, title in enumerate(titles):
        doubtful = odd and column not in sure
        if title in twice or doubtful or not _NAMED.fullmatch(title):
            names[column] = None
            notes.append(note(MatrixNote.COLUMN_AMBIGUOUS, column=column + 1, title=title[:20]))
    return names


def _by_rows(rows: list[_Row], notes: list[Note]) -> list[str | None]:
    """Return column names from the rows with their `X` there; empty if ambiguous."""
    sizes = Counter(len(row.cells) for row in rows if row.own is not None and not row.cut)
    size = sizes.most_common(1)[0][0] if sizes else 0
    names: list[str | None] = [None] * size
    for row in rows:
        if row.own is None or len(row.cells) != size:
            continue
        if names[row.own] not in (None, row.label) or not _NAMED.fullmatch(row.label):
            notes.append(note(MatrixNote.ROW_OUT_OF_ORDER, row=row.label))
            return []
        names[row.own] = row.label
    known = [name for name in names if name]
    if len(set(known)) < len(known) or not _in_order(known):
        notes.append(note(MatrixNote.ROWS_NOT_NUMBERED))
        return []
    return names


def _in_order(names: list[str]) -> bool:
    """Return whether GPUs come first, and GPUs and NICs are numbered 0, 1, 2 ... as nvidia-smi
    does."""
    counted: dict[str, list[int]] = {}
    for match in filter(None, map(_COUNTED.fullmatch, names)):
        counted.setdefault(match[1], []).append(int(match[2]))
    others = [not name.startswith("GPU") for name in names]
    return others == sorted(others) and all(
        numbers == list(range(len(numbers))) for numbers in counted.values()
    )


def _fill(found: TopologyMatrix, names: list[str | None], rows: list[_Row]) -> None:
    """Add the links of matching rows, without pairs whose two cells differ."""
    fitting = [row for row in rows if _fits(row, names)]
    found.notes += [
        note(MatrixNote.ROW_MISMATCH, row=row.label[:20]) for row in rows if not _fits(row, names)
    ]
    if not fitting:
        return
    found.devices = [name for name in names if name]
    whole = {row.label for row in fitting if len(row.cells) == len(names)}
    missing = [name for name in found.devices if name not in whole]
    if missing:
        found.notes.append(note(MatrixNote.ROWS_MISSING, rows=", ".join(missing)))
    if None in names:
        unnamed = names.count(None)
        found.notes.append(note(MatrixNote.DEVICES_UNNAMED, unnamed=unnamed, devices=len(names)))
    for pair, cells in sorted(_seen(fitting, names).items()):
        a, b = (found.devices[at] for at in pair)
        if len(cells) == 1:
            found.links[a, b] = cells.pop()
        else:
            links = " and ".join(sorted(cells))
            found.notes.append(note(MatrixNote.LINK_CONTRADICTS, pair=f"{a}-{b}", links=links))


def _seen(rows: list[_Row], names: list[str | None]) -> dict[tuple[int, int], set[str]]:
    """Return the links in the rows for each pair of named devices."""
    order = {name: at for at, name in enumerate(filter(None, names))}
    seen: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        for name, cell in zip(names, row.cells, strict=False):
            if name and name != row.label:
                a, b = sorted((order[row.label], order[name]))
                seen.setdefault((a, b), set()).add(cell)
    return seen


def _fits(row: _Row, names: list[str | None]) -> bool:
    if row.own is None or row.own >= len(names) or names[row.own] != row.label:
        return False
    return _size_fits(row, len(names))


def _size_fits(row: _Row, size: int) -> bool:
    return len(row.cells) == size or (row.cut and len(row.cells) < size)


def _columns(header: str) -> int:
    """Return the number of columns after the matrix in the header."""
    titles = (r"CPU\s+Affinity", r"NUMA\s+Affinity", r"GPU\s+NUMA\s+ID")
    there = [re.search(title, header) is not None for title in titles]
    return sum(there) if there == sorted(there, reverse=True) else 0


def _affinity(row: _Row, columns: int, rows: list[_Row], notes: list[Note]) -> Affinity:
    """Parse the words after the cells by their order, because their forms are equal."""
    tail = row.tail
    if row.cut and tail and not any(tail == other.tail for other in rows if other is not row):
        notes.append(note(MatrixNote.TEXT_ENDS, row=row.label))
        tail = tail[:-1]
    if not set(tail) - {"N/A"}:
        return Affinity()
    if len(tail) != columns:
        notes.append(note(MatrixNote.AFFINITY_AMBIGUOUS, row=row.label))
        return Affinity()
    cpus, numa, memory = [*map(_list, tail), None, None, None][:3]
    if any(word != "N/A" and _list(word) is None for word in tail):
        notes.append(note(MatrixNote.AFFINITY_DAMAGED, row=row.label))
        return Affinity()
    return Affinity(cpus, numa, int(memory) if memory and memory.isdecimal() else None)


def _list(word: str) -> str | None:
    """Return an ascending list of numbers and ranges; None: invalid."""
    if not _LIST.fullmatch(word):
        return None
    ranges = [list(map(int, part.split("-"))) for part in word.split(",")]
    return word if all(part == sorted(part) for part in ranges) else None


def _era(text: str, columns: int) -> int | None:
    if columns == 3:
        return 4
    if columns == 2:
        return 3
    if re.search(r"\bSOC\b", text):
        if "Path traverses" in text:
            return 0
        return 1 if "Connection traversing" in text else None
    return 2 if re.search(r"\b(?:SYS|NODE)\b", text) else None


def _nic_names(text: str, found: TopologyMatrix) -> dict[str, str]:
    """Parse the NIC legend. Of a name that occurs twice, one was truncated, so neither counts."""
    numbered = [name for name in found.devices if re.fullmatch(r"NIC[0-9]+", name)]
    given = dict(_NIC_NAME.findall(text))
    times = Counter(given.values())
    names = {nic: given[nic] for nic in numbered if nic in given and times[given[nic]] == 1}
    unknown = [nic for nic in numbered if nic not in names]
    if unknown:
        shown = ", ".join(unknown) if len(unknown) < 5 else f"{len(unknown)} NICs"
        found.notes.append(note(MatrixNote.NICS_UNNAMED, nics=shown))
    return names
