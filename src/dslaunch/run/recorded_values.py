"""What the files of a run directory have in common: models, bounded fields, and texts that JSON can
hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from dslaunch.protocol.values import LARGEST_INTEGER, LATEST, MOST_PATH, MOST_SHORT, MOST_TEXT


class Recorded(BaseModel):
    """Exact types and immutable; fields of later versions of the same format are ignored.

    Validators are built when they are first used, as those of `protocol.values.Sent`.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", populate_by_name=True, defer_build=True
    )


def _printable(value: object) -> object:
    """Spell bytes that are no UTF-8, which JSON cannot hold, as `\\udcff`."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _text(value: object) -> object:
    """Return a text as JSON can hold it, without the rest of one that is too long."""
    printable = _printable(value)
    return printable[:MOST_TEXT] if isinstance(printable, str) else printable


Text = Annotated[str, BeforeValidator(_text)]
"""A text; the rest of one that is too long is dropped."""
Name = Annotated[str, Field(max_length=MOST_PATH), BeforeValidator(_printable)]
"""A name or path; one that is too long is an error."""
Pair = Annotated[tuple[Text, Text], Strict(False)]


# ---------------------------------------------------------------- fields of `RecordedValue`s

Host = Annotated[str, Meta(max_length=MOST_PATH)]
Short = Annotated[str, Meta(max_length=MOST_SHORT)]
Count = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
RankNumber = Annotated[int, Meta(ge=0, le=2**20)]
Pid = Annotated[int, Meta(ge=1, le=2**22)]
"""PID_MAX_LIMIT of Linux."""
ExitCode = Annotated[int, Meta(ge=-1024, le=1024)]
Signal = Annotated[int, Meta(ge=0, le=127)]
Time = Annotated[float, Meta(ge=0, le=LATEST)]
"""Seconds since the epoch."""
Duration = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds."""
Quantity = Annotated[float, Meta(ge=0, le=1e18)]
Share = Annotated[float, Meta(ge=0, le=1)]
Degrees = Annotated[float, Meta(ge=-100, le=1000)]
