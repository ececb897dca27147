"""Notes about invalid parts of a topology matrix: codes, and their texts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dslaunch.notes import Note, NoteCode

MOST_SHOWN = 3


class MatrixNote(NoteCode):
    """A part of a matrix that cannot be parsed, or contradicts another one."""

    LINES_WRAPPED = (
        "lines-wrapped",
        "its lines are wrapped by a terminal and cannot be joined unambiguously",
    )
    MATRICES_IGNORED = "matrices-ignored", "{count} more in the same text ignored"
    TOO_MANY_DEVICES = "too-many-devices", "more than {most} devices"
    ROW_UNREADABLE = "row-unreadable", "row of {row} cannot be parsed"
    HEADER_MISMATCH = (
        "header-mismatch",
        "header does not match the rows; devices are named by their rows",
    )
    HEADER_MISSING = "header-missing", "header missing; devices are named by their rows"
    ROW_RENAMED = "row-renamed", "row of {row} is {title} in the header"
    COLUMN_AMBIGUOUS = "column-ambiguous", "column {column} of the header, {title}, is ambiguous"
    ROW_OUT_OF_ORDER = "row-out-of-order", "row of {row} is out of order"
    ROWS_NOT_NUMBERED = "rows-not-numbered", "rows do not number the devices from 0"
    ROW_MISMATCH = "row-mismatch", "row of {row} does not match the header"
    ROWS_MISSING = "rows-missing", "no complete row of {rows}"
    DEVICES_UNNAMED = "devices-unnamed", "{unnamed} of {devices} devices have no name"
    LINK_CONTRADICTS = "link-contradicts", "{pair} is {links}"
    TEXT_ENDS = "text-ends", "the text ends in the row of {row}"
    AFFINITY_AMBIGUOUS = "affinity-ambiguous", "affinity of {row} is ambiguous"
    AFFINITY_DAMAGED = "affinity-damaged", "affinity of {row} is damaged"
    NICS_UNNAMED = "nics-unnamed", "no name of {nics} in the NIC legend"
    GPUS_DIFFER = "gpus-differ", "`nvidia-smi -L` lists {listed} GPUs, the matrix has {gpus}"
    NVLINKS_INACTIVE = "nvlinks-inactive", "{gpu} has {active} of {links} NVLinks active"


def shown(notes: Iterable[Note]) -> str:
    """Return the first notes as text."""
    return "; ".join(str(each) for each in islice(notes, MOST_SHOWN))
