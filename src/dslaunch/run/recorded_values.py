"""What the files of a run directory have in common: models, and texts that JSON can hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from dslaunch.protocol.values import MOST_PATH, MOST_TEXT


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
Host = Annotated[str, Field(max_length=MOST_PATH)]
ExitCode = Annotated[int, Field(ge=-1024, le=1024)]
Signal = Annotated[int, Field(ge=0, le=127)]
Duration = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Seconds."""
Pair = Annotated[tuple[Text, Text], Strict(False)]
