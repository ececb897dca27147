"""The kinds of values in a cluster file, and what its sections have in common."""

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
_SCALAR = {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True, slots=True)
class Matching:
    """Text that matches `pattern` as a whole; `what` says in words what is expected."""

    pattern: str
    what: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Check the text after the type's own checks."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Say the pattern to editors as well."""
        described: dict[str, Any] = handler(schema)
        return described | {"pattern": f"^(?:{self.pattern})$"}

    def check(self, text: str) -> str:
        """Give `text` back if it matches."""
        if re.fullmatch(self.pattern, text) is None:
            raise PydanticCustomError("words", "expected {what}", {"what": self.what})
        return text


@dataclass(frozen=True, slots=True)
class NameOf:
    """The name of a part that is built in or installed."""

    parts: Registry[Any]
    description: str
    """What the value decides."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Check the text after the type's own checks."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """List the names and what they stand for, for editors as well."""
        described: dict[str, Any] = handler(schema)
        names = self.parts.every_name()
        meanings = (f"`{name}` ({self.parts.get(name).summary})" for name in names)
        text = f"{self.description}: {', '.join(meanings)}."
        return described | {"enum": list(names), "description": text}

    def check(self, text: str) -> str:
        """Give `text` back if it is such a name."""
        if text in self.parts.names() or text in self.parts.every_name():
            return text
        *names, last = (f"'{name}'" for name in self.parts.every_name())
        expected = f"{', '.join(names)} or {last}"
        raise PydanticKnownError("literal_error", {"expected": expected})


def automatic(value: Any) -> str:
    """Tell `auto` from a value, for a `Discriminator`."""
    return "<auto>" if value == "auto" else "<value>"


def ports(value: Any) -> str:
    """Tell `auto`, a port and a range of ports apart, for a `Discriminator`."""
    return "<range>" if isinstance(value, str) and value != "auto" else automatic(value)


def _in_order(text: str) -> str:
    """Give a range of ports back if its first port is not above the last."""
    first, last = map(int, text.split("-"))
    if 1 <= first <= last <= MOST_PORT:
        return text
    raise PydanticCustomError("words", "expected {what}", {"what": _RANGE})


def _listed(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<scalar>"


def mapped(value: Any) -> str:
    """Tell a mapping from a scalar, for a `Discriminator`."""
    return "<mapping>" if isinstance(value, dict) else "<scalar>"


VARIABLE = Matching(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "a variable's name of letters, digits and `_`, not beginning with a digit",
)

# Which form a value has is decided before it is checked, so that only the complaints about that
# form are heard. The forms' tags are in the places that pydantic reports; `findings` drops them.
Auto = Annotated[Literal["auto"], Tag("<auto>")]
Text = Annotated[str, Field(min_length=1)]
Written = Annotated[str, WithJsonSchema(_SCALAR)]
"""Text as the file has it, also where it looks like a number."""
Variable = Annotated[str, VARIABLE]
Word = Annotated[str, Matching(r"[^\s@,-][^\s@,]*", "one word without `@`")]
_HOP = r"(?:[^\s@,-][^\s@,]*@)?(?:\[[^\s@,\[\]]+\]|[^\s@,:\[\]-][^\s@,:\[\]]*)(?::[0-9]{1,5})?"
Jump = Annotated[
    str,
    Matching(f"{_HOP}(?:,{_HOP})*", "jump hosts such as `user@bastion:22`, with commas between"),
]
Port = Annotated[int, Field(ge=1, le=MOST_PORT)]
PortRange = Annotated[str, Matching(r"[0-9]{1,5}-[0-9]{1,5}", _RANGE), AfterValidator(_in_order)]
Slot = Annotated[int, Field(ge=0, le=MOST_SLOTS - 1)]
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
    str, Matching(r"[^\s/:=^,]{1,15}", "an interface's name of at most 15 characters")
]
Environment = Annotated[
    dict[Variable, Written],
    Field(description="Variables and their values. A value arrives exactly as it is written here."),
]


class Section(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
