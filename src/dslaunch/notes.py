"""Notes to users: a code with parameters, and its text in the table of the codes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.texts import Value, filled


class NoteCode(StrEnum):
    """Base of enums of codes. A member is `NAME = "code", "text with {parameters}"`."""

    text: str

    def __new__(cls, value: str, text: str) -> NoteCode:
        """Make a member whose value is the code alone."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member


Parameters = tuple[tuple[str, Value], ...]
"""Names with values, sorted by name, so that equal notes are equal values."""


class Note(Struct, frozen=True):
    """One note. As a string it is the text for users."""

    code: NoteCode
    parameters: Parameters = ()

    @property
    def values(self) -> dict[str, Value]:
        """Return the parameters by name."""
        return dict(self.parameters)

    def with_values(self, **values: Value) -> Self:
        """Return the same note with other parameters, or more of them."""
        return replace(self, parameters=sorted_parameters({**self.values, **values}))

    def __str__(self) -> str:
        return filled(self.code.text, self.values)


def note(code: NoteCode, **values: Value) -> Note:
    """Return a note with its parameters."""
    return Note(code, sorted_parameters(values))


def sorted_parameters(values: Mapping[str, Value]) -> Parameters:
    """Return parameters as notes have them."""
    return tuple(sorted(values.items()))
