"""The types of values in a cluster file, and the base class of its sections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from dslaunch.cluster.model import MOST_SLOTS
from dslaunch.registry import Registry

MOST_PORT = 65535
_RANGE = "`auto`, a port or a range of ports such as `29600-29610`"
_RANKS = "ranks such as `0` or `0,8-9`"
_SCALAR = {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True, slots=True)
class Matching:
    """Text that fully matches `pattern`; `what` describes it in messages."""

    pattern: str
    what: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Check the text after the type's own checks."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Add the pattern to the JSON Schema."""
        described: dict[str, Any] = handler(schema)
        return described | {"pattern": f"^(?:{self.pattern})$"}

    def check(self, text: str) -> str:
        """Return `text` if it matches."""
        if re.fullmatch(self.pattern, text) is None:
            raise PydanticCustomError("words", "expected {what}", {"what": self.what})
        return text


@dataclass(frozen=True, slots=True)
class NameOf:
    """The name of a built-in or installed part."""

    parts: Registry[Any]
    description: str
    """What the value decides."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Check the text after the type's own checks."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Add the names and their meanings to the JSON Schema."""
        described: dict[str, Any] = handler(schema)
        names = self.parts.every_name()
        meanings = (f"`{name}` ({self.parts.get(name).summary})" for name in names)
        text = f"{self.description}: {', '.join(meanings)}."
        return described | {"enum": list(names), "description": text}

    def check(self, text: str) -> str:
        """Return `text` if it is a known name."""
        if text in self.parts.names() or text in self.parts.every_name():
            return text
        *names, last = (f"'{name}'" for name in self.parts.every_name())
        expected = f"{', '.join(names)} or {last}"
        raise PydanticKnownError("literal_error", {"expected": expected})


def automatic(value: Any) -> str:
    """Return the tag of `auto` or of a value, for a `Discriminator`."""
    return "<auto>" if value == "auto" else "<value>"


def ports(value: Any) -> str:
    """Return the tag of `auto`, a port or a range of ports, for a `Discriminator`."""
    return "<range>" if isinstance(value, str) and value != "auto" else automatic(value)


def _in_order(text: str) -> str:
    """Return a range of ports if its first port is not above the last."""
    first, last = map(int, text.split("-"))
    if 1 <= first <= last <= MOST_PORT:
        return text
    raise PydanticCustomError("words", "expected {what}", {"what": _RANGE})


def _ascending(text: str) -> str:
    """Give a list of ranks back if no range in it ends below its start."""
    ranges = (part.split("-") for part in text.split(","))
    if all(int(each[0]) <= int(each[-1]) for each in ranges):
        return text
    raise PydanticCustomError("words", "expected {what}", {"what": _RANKS})


def _listed(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<scalar>"


def mapped(value: Any) -> str:
    """Return the tag of a mapping or a scalar, for a `Discriminator`."""
    return "<mapping>" if isinstance(value, dict) else "<scalar>"


VARIABLE = Matching(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "a variable name of letters, digits and `_`, not starting with a digit",
)

# The form of a value is decided before it is checked, so that only errors about that form are
# reported. pydantic includes the tag of the form in the location; `findings` removes it.
Auto = Annotated[Literal["auto"], Tag("<auto>")]
Text = Annotated[str, Field(min_length=1)]
Written = Annotated[str, WithJsonSchema(_SCALAR)]
"""Text exactly as written in the file, also if it looks like a number."""
Variable = Annotated[str, VARIABLE]
Word = Annotated[str, Matching(r"[^\s@,-][^\s@,]*", "one word without `@` and `,`")]
_HOP = r"(?:[^\s@,-][^\s@,]*@)?(?:\[[^\s@,\[\]]+\]|[^\s@,:\[\]-][^\s@,:\[\]]*)(?::[0-9]{1,5})?"
Jump = Annotated[
    str,
    Matching(f"{_HOP}(?:,{_HOP})*", "jump hosts such as `user@bastion:22`, separated by commas"),
]
Port = Annotated[int, Field(ge=1, le=MOST_PORT)]
PortRange = Annotated[str, Matching(r"[0-9]{1,5}-[0-9]{1,5}", _RANGE), AfterValidator(_in_order)]
Slot = Annotated[int, Field(ge=0, le=MOST_SLOTS - 1)]
Ranks = Annotated[
    Written,
    Matching(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", _RANKS),
    AfterValidator(_ascending),
]
Slots = Annotated[
    Annotated[int, Field(ge=1, le=MOST_SLOTS), Tag("<scalar>")]
    | Annotated[
        list[Slot],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
        Tag("<list>"),
    ],
    Discriminator(_listed),
]
Label = Annotated[
    str,
    Matching(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a label's name of letters, digits, `.`, `_`, `-`"),
]
Interface = Annotated[
    str, Matching(r"[^\s/:=^,]{1,15}", "an interface name of at most 15 characters")
]
Environment = Annotated[
    dict[Variable, Written],
    Field(description="Environment variables; values are passed unchanged."),
]


class Section(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
