"""Values that are written to files as JSON, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class RecordedValue(Struct, frozen=True):
    """A value that pydantic can validate: a JSON object with its fields; others are ignored."""

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
