"""Notes to users: a code with parameters, and its text in the table of the codes. Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

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


class Note(Struct, frozen=True):
    """One note. As a string it is the text for users."""

    code: NoteCode
    parameters: tuple[tuple[str, Value], ...] = ()
    """Sorted by name; `note` does it."""

    @property
    def values(self) -> dict[str, Value]:
        """Return the parameters by name."""
        return dict(self.parameters)

    def __str__(self) -> str:
        return filled(self.code.text, self.values)


def note(code: NoteCode, **values: Value) -> Note:
    """Return a note with its parameters."""
    return Note(code, tuple(sorted(values.items())))
