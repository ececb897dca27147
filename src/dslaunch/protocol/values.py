"""Field types for data of nodes. Each bounds size and range.

A node may be compromised and send anything in any field. The models of messages and answers use
these types, so that no other code sees an unchecked value. Control characters in plain text are
kept here and removed where text is shown (`report`).
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
import socket
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, TypeAdapter
from pydantic import ValidationError as PydanticError

MOST_SHORT = 1024
MOST_TEXT = 256 * 1024
MOST_NAMES = 4 << 20
"""Characters of folded names: those that do not fold take 20 to 40 each."""
MOST_PATH = 4096
"""PATH_MAX of Linux."""
MOST_ITEMS = 100_000
LARGEST_INTEGER = 2**63 - 1
LATEST = 4102444800.0
"""The end of 2099 in seconds since the epoch. A later time is invalid, also from a node whose clock
is wrong. Every time up to it can be shown."""
_INTERFACE = re.compile(r"[^\s/\x00-\x1f\x7f-\x9f]{1,15}")
"""What Linux accepts (net/core/dev.c, `dev_valid_name`), and the colon of an alias."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+.-]{0,127}")


class InvalidAnswer(ValueError):
    """Invalid data of a node. The text names the field and never quotes the value."""


class Sent(BaseModel):
    """Base of all data of nodes: exact types, unknown fields dropped, immutable.

    Validators are built when they are first used: no command needs more than a few of them. To
    build all takes 6 to 8 % of the processor time of a short command.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", defer_build=True)


Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Strict(False), Field(max_length=MOST_ITEMS)]
"""A JSON array as a tuple, with strictly checked items."""
Model = TypeVar("Model")
_VALIDATORS: dict[TypeAdapter[Any], Callable[[object], object]] = {}
_BUILDING = threading.Lock()


def parse(adapter: TypeAdapter[Model], value: object) -> Model:
    """Return the typed value. Raises InvalidAnswer naming the first field that is wrong."""
    # `adapter.validate_python` takes twice as long, which counts for small messages
    validate = _VALIDATORS.get(adapter) or _build(adapter)
    try:
        return cast("Model", validate(value))
    except PydanticError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        why = str(first["msg"]).removeprefix("Value error, ")
        raise InvalidAnswer(f"{where or 'value'}: {why}") from None
    except RecursionError:
        raise InvalidAnswer("value: nested too deeply") from None


def _build(adapter: TypeAdapter[Any]) -> Callable[[object], object]:
    """Return the function that validates. One thread builds at a time: pydantic's documentation
    promises nothing about several."""
    with _BUILDING:
        return _VALIDATORS.setdefault(adapter, adapter.validator.validate_python)


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Return a strict adapter for a type that is no model, such as `dict[str, Text]`."""
    return TypeAdapter(annotation, config=ConfigDict(strict=True, defer_build=True))


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return value


def _encodable(value: str) -> str:
    """Reject lone surrogates: they can be neither printed nor written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate") from None
    return value


def _relative_path(value: str) -> str:
    """Accept a normalized path below the directory it is relative to."""
    normal = posixpath.normpath(value)
    if value.startswith("/") or value != normal or normal.split("/")[0] == "..":
        raise ValueError("not a normalized relative path below its root")
    return value


def _file_name(value: str) -> str:
    if "/" in value or value in ("", ".", ".."):
        raise ValueError("not a file name")
    return value


def _absolute_path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("not an absolute path")
    return value


@lru_cache(maxsize=1 << 14)
def _address(value: str) -> str:
    """Accept an IP address. That of one node is in the answers of a dozen others."""
    if _is_ipv4(value):
        return value
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise ValueError("not an IP address") from None
    _, percent, zone = value.partition("%")
    if percent and not _INTERFACE.fullmatch(zone):
        raise ValueError("not an IP address: its zone is no network interface")
    return value


def _is_ipv4(value: str) -> bool:
    """Return whether a value is an IPv4 address, in a tenth of the time that `ipaddress` needs:
    thousands of nodes have a dozen each."""
    try:
        return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, value)) == value
    except (OSError, ValueError):  # ValueError: a NUL character, or a lone surrogate
        return False


def _matching(pattern: re.Pattern[str], meaning: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"not {meaning}")
        return value

    return AfterValidator(check)


Integer = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Seconds = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]
"""Seconds since the epoch by the node's clock."""
Pid = Annotated[int, Field(ge=1, le=2**22)]
"""PID_MAX_LIMIT of Linux."""
Rank = Annotated[int, Field(ge=-1, le=2**20)]
"""-1: the node's launcher. Whether a rank belongs to the run is checked against its plan."""
RankKey = Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]
"""The number of a rank as the key of a JSON object."""
Port = Annotated[int, Field(ge=1, le=65535)]
Vendor = Literal["nvidia", "amd", "intel", "ascend", "gaudi", "neuron", "mlu"]
"""Whose accelerators; `node/accelerators.py` says how each is recognized."""
Short = Annotated[str, Field(max_length=MOST_SHORT), AfterValidator(_encodable)]
Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_encodable)]
FoldedNames = Annotated[str, Field(max_length=MOST_NAMES), AfterValidator(_encodable)]
"""Names as `cluster.nodeset.fold_in_order` writes them; not expanded yet."""
Path = Annotated[
    str, Field(max_length=MOST_PATH), AfterValidator(_encodable), AfterValidator(_without_nul)
]
AbsolutePath = Annotated[Path, AfterValidator(_absolute_path)]
RelativePath = Annotated[Path, AfterValidator(_relative_path)]
"""Normalized and below its root; `.` is the root itself."""
FileName = Annotated[Path, AfterValidator(_file_name)]
Address = Annotated[str, Field(max_length=64), AfterValidator(_address)]
"""An IPv4 or IPv6 address; IPv6 may have a zone."""
InterfaceName = Annotated[str, _matching(_INTERFACE, "a network interface")]
RunId = Annotated[str, _matching(_RUN, "the name of a run")]
Table = Annotated[Mapping[Short, Item], Field(max_length=MOST_ITEMS)]
"""A JSON object whose keys are data."""
