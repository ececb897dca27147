"""Values that are written to files as JSON, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs, to_builtins
from msgspec.json import Decoder

if TYPE_CHECKING:
    from pydantic import BaseModel, GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Value = TypeVar("Value")


class RecordedValue(Struct, frozen=True):
    """A value of a file that a user passes: pydantic validates it, as its errors say where the file
    is wrong. Other fields are ignored. Values of a run directory are plain Structs (`reader`)."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[RecordedValue], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        members = {
            field.name: core_schema.typed_dict_field(
                handler.generate_schema(field.type), required=field.required
            )
            for field in structs.fields(source)
        }

        def made(found: dict[str, Any]) -> RecordedValue:
            return source(**found)

        return core_schema.no_info_after_validator_function(
            made, core_schema.typed_dict_schema(members, extra_behavior="ignore")
        )


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
