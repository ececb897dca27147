"""Values that are written to files as JSON, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import DecodeError, ValidationError, convert, to_builtins
from msgspec.json import Decoder, decode

if TYPE_CHECKING:
    from pydantic import BaseModel

Value = TypeVar("Value")


class InvalidValue(ValueError):
    """A file, such as one that a user passes, is not of its type."""

    def __init__(self, problem: str, place: str = "", line: int = 0, column: int = 0) -> None:
        """`place`: names and positions from the top of the data, `nodes.n1.answers[0]`; empty: the
        whole. `line`, `column`: of a text that is not JSON; 0: none."""
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem, self.place, self.line, self.column = problem, place, line, column


def parsed(text: str | bytes) -> Any:
    """Return the data of a JSON text of a file. Raises InvalidValue."""
    try:
        return decode(text)
    except DecodeError:
        return _parsed_by_python(text)
    except RecursionError:
        raise InvalidValue("nested too deeply") from None


def _parsed_by_python(text: str | bytes) -> Any:
    """Return the data of a text that msgspec refuses: Python accepts NaN, and escapes of bytes that
    are no UTF-8. It also says where a text is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidValue("invalid JSON", line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits
        raise InvalidValue(str(error)) from None


def checked(kind: type[Value], data: object, place: str = "") -> Value:
    """Return data of a file, such as one that a user passes, as a value of a type. Other fields are
    ignored.

    `place`: where in the file the data is. Raises InvalidValue.
    """
    try:
        return convert(data, kind)
    except ValidationError as error:
        problem, _, below = str(error).partition(_PLACE)
        where = f"{place}{below.rstrip('`')}".removeprefix(".")
        raise InvalidValue(problem, where) from None


_PLACE = " - at `$"
"""Precedes the place in a message of msgspec."""


def reader(kind: type[Value]) -> Callable[[bytes], Value]:
    """Return a function that reads values of a type from JSON of a run directory, which a user may
    have changed: exact types, within the bounds of each `Meta`. Fields of later versions are
    ignored. It raises ValueError."""
    decoder = Decoder(kind, dec_hook=_as_model)

    def read(text: bytes) -> Value:
        try:
            return decoder.decode(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    return read


def _as_model(kind: type[BaseModel], data: object) -> BaseModel:
    """Return data of a node as its model."""
    return kind.model_validate(data)


def as_json_data(value: object) -> Any:
    """Return a value as data for JSON: objects, arrays and single values."""
    return to_builtins(value, enc_hook=_of_model)


def _of_model(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(exclude_defaults=True)
