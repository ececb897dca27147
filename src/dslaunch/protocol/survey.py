"""Answers of nodes to the questions of a preflight (`node/questions.py`), as typed values.

There is one type for each kind of question. The values stay dictionaries and lists, of exactly the
shape of their types, since they are recorded. Keys that were not asked are dropped, and an answer
of another shape becomes an error of its question alone.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NotRequired

from msgspec import Struct
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config

# pydantic takes no TypedDict of the standard library before Python 3.12
from typing_extensions import TypedDict

from dslaunch.protocol.name_patterns import NamePatterns
from dslaunch.protocol.values import (
    MOST_PATH,
    MOST_SHORT,
    Address,
    FileName,
    Integer,
    InterfaceName,
    InvalidAnswer,
    Path,
    Port,
    Seconds,
    Sent,
    Short,
    Text,
    Vendor,
    adapter_of,
    parse,
)
from dslaunch.recorded import parsed
from dslaunch.terminal import printable

MOST_KNOWN = 2048
"""Values that are compared with those of further nodes: those in which nodes differ come too, and
are of no use."""
LARGEST_KNOWN = 32 * 1024
"""Bytes of such a value."""
_strict = with_config(ConfigDict(strict=True, extra="ignore", defer_build=True))


def _without_zone(value: str) -> str:
    if "%" in value:
        raise ValueError("an address with a zone, which means nothing on other nodes")
    return value


Size = Annotated[int, Field(ge=0, le=2**80)]
"""Bytes or inodes. Some network file systems report more than 2^64."""
UserId = Annotated[int, Field(ge=0, le=2**32 - 1)]
Dialable = Annotated[Address, AfterValidator(_without_zone)]
"""An address that is given to other nodes."""


@_strict
class Identity(TypedDict):
    """Who a node is, and as whom we run on it; `questions.identity`."""

    uid: UserId
    python: Annotated[list[Annotated[int, Field(ge=0, le=9999)]], Field(min_length=2, max_length=5)]
    executable: Annotated[Path, Field(min_length=1)]
    boot: Short
    network: Short
    umask: Annotated[int, Field(ge=0, le=0o777)]
    cores: Annotated[int, Field(ge=1, le=2**20)]
    hostname: NotRequired[Short]
    kernel: NotRequired[Short]
    machine: NotRequired[Short]
    home: NotRequired[Path]


class Surveyed(Sent):
    """The reply to questions; each answer is parsed by itself."""

    hello: Identity
    answers: dict[str, Any]


class Answer(TypedDict, total=False):
    """The answer to one question: a value of the type of its kind, or the error."""

    value: Any
    error: str
    code: Literal["invalid"]
    """With an error: the answer was malformed."""
    seconds: float


@_strict
class Ran(TypedDict):
    """How a program ended, and what it wrote."""

    code: Annotated[int, Field(ge=-1024, le=1024)]
    out: Text
    err: Text


@_strict
class Transferred(TypedDict):
    """How many bytes were sent or written, and how long that took."""

    bytes: Annotated[int, Field(ge=0, le=2**63)]
    seconds: Annotated[Seconds, Field(ge=0)]


@_strict
class Tried(TypedDict):
    """How a program ended that was started like a job."""

    code: Annotated[int, Field(ge=-1024, le=1024)] | None
    """None: it exceeded its time and was killed."""
    out: Text
    err: Text
    report: Text
    """What it wrote into its report file."""
    missing: NotRequired[Path]
    """The program that could not be started."""
    there: NotRequired[Annotated[list[Path], Field(max_length=1000)]]
    """After a failure: which of the files that were asked for exist."""
    lacks: NotRequired[Annotated[list[Short], Field(max_length=1000)]]
    """After a failure: which of the commands that were asked for the shell lacks."""


# `class` is a keyword of Python, so this type cannot be written as a class
PciDevice = TypedDict("PciDevice", {"class": Short, "driver": Short | None})
_strict(PciDevice)


@_strict
class AcceleratorCount(TypedDict):
    """The accelerators of one vendor: usable ones, and those on the PCI bus."""

    devices: Annotated[int, Field(ge=0, le=1024)]
    bus: Annotated[int, Field(ge=0, le=1024)]


@_strict
class HeldAddress(TypedDict):
    """An address of a node, and the interface that has it."""

    name: InterfaceName
    address: Dialable
    loopback: bool
    up: bool
    speed: Annotated[int, Field(ge=0, le=2**32)] | None
    mtu: Annotated[int, Field(ge=0, le=2**32)] | None


@_strict
class Taken(TypedDict):
    """A port that could not be held; 0: any."""

    port: Annotated[int, Field(ge=0, le=65535)]
    error: Short


@_strict
class Listening(TypedDict):
    """The port that is held; None: all that were asked are taken."""

    port: Port | None
    taken: NotRequired[Annotated[list[Taken], Field(max_length=100_000)]]


@_strict
class Mount(TypedDict):
    """The file system that a path is on."""

    point: Text
    type: Short
    source: Text
    options: Text


@_strict
class PathStatus(TypedDict):
    """What a path is, and its free space."""

    path: Path
    size: Size
    free: Size
    inodes: Size
    inodes_free: Size
    writable: bool
    mount: Mount | None


@_strict
class Listed(TypedDict):
    """A file in a directory."""

    path: Path
    size: Size
    age: Seconds


@_strict
class OwnNames(TypedDict):
    """A node's own names."""

    hostname: NotRequired[Short]
    fqdn: Short
    addresses: Annotated[list[Address], Field(max_length=1000)]


@_strict
class Dialed(TypedDict):
    """The own address on the route to a node that was called."""

    local: NotRequired[Address | None]
    error: NotRequired[Short]


@_strict
class RehearsalFinding(TypedDict):
    """One finding of a rehearsal; `dslaunch.rehearsal.findings` describes the fields."""

    code: Short
    level: Literal["error", "warning", "info"]
    where: Text
    text: Text
    hint: Text | None
    evidence: Text | None


@_strict
class RehearsalSeen(TypedDict):
    """What a rehearsal of the job has shown. No node sends it: the machine that dslaunch runs on
    has rehearsed the job, and a recording keeps the result."""

    verdict: Literal["would-run", "would-fail", "not-rehearsed"]
    ranks: Integer
    steps: Integer
    findings: Annotated[list[RehearsalFinding], Field(max_length=1000)]
    not_rehearsed: Annotated[list[Short], Field(max_length=100)]


def _one_of_both(called: Dialed) -> Dialed:
    if "error" not in called and "local" not in called:
        raise ValueError("neither `local` nor `error`")
    return called


# ---------------------------------------------------------------- the kinds


class Kind(Struct, frozen=True):
    """The form of the answers to a kind of question."""

    type: Any
    names: Callable[[Any], list[str]] | None = None
    """For answers by name: returns the names that were asked, of the question's argument."""
    all_of_them: bool = False
    """Whether each name that was asked must be there."""
    patterns: bool = False
    """Whether the argument is a list of patterns for the keys."""


def _itself(argument: Any) -> list[str]:
    """Return the names that a question asks for, of an argument that may be read from a file."""
    if not isinstance(argument, list | dict) or not {str}.issuperset(map(type, argument)):
        raise InvalidAnswer("what was asked is no list of names")
    return list(argument)


def _field(name: str) -> Callable[[Any], list[str]]:
    def names(argument: Any) -> list[str]:
        return _itself(argument.get(name) if isinstance(argument, dict) else None)

    return names


KINDS: Mapping[str, Kind] = {
    "read": Kind(dict[str, Text], patterns=True),
    "environment": Kind(dict[str, Text], patterns=True),
    "texts": Kind(dict[str, Text], _itself),
    "present": Kind(dict[str, Path], _itself),
    "which": Kind(dict[str, Path | None], _itself, all_of_them=True),
    "limits": Kind(
        dict[str, Annotated[list[Integer], Field(min_length=2, max_length=2)]],
        _itself,
        all_of_them=True,
    ),
    "pci": Kind(Annotated[dict[Short, PciDevice], Field(max_length=10_000)]),
    "accelerators": Kind(Annotated[dict[Vendor, AcceleratorCount], Field(max_length=16)]),
    "interfaces": Kind(Annotated[list[HeldAddress], Field(max_length=10_000)]),
    "listen": Kind(Listening),
    "run": Kind(Ran),
    "each": Kind(dict[str, Ran], _field("programs"), all_of_them=True),
    "path": Kind(PathStatus),
    "above": Kind(PathStatus),
    "list": Kind(Annotated[list[Listed], Field(max_length=1000)]),
    "write": Kind(None),
    "job": Kind(Tried),
    "send_rate": Kind(Transferred),
    "write_rate": Kind(Transferred),
    "digests": Kind(dict[str, Short | None], _field("paths"), all_of_them=True),
    "mark": Kind(dict[str, Short | None], _field("paths"), all_of_them=True),
    "marks": Kind(
        dict[str, Annotated[list[FileName], Field(max_length=100_000)]],
        _field("paths"),
        all_of_them=True,
    ),
    "claim": Kind(dict[str, FileName | None], _field("paths"), all_of_them=True),
    "unmark": Kind(None),
    "resolve": Kind(dict[str, Annotated[list[Address], Field(max_length=1000)]], _itself),
    "names": Kind(OwnNames),
    "dial": Kind(
        dict[str, Annotated[Dialed, AfterValidator(_one_of_both)]],
        _field("targets"),
        all_of_them=True,
    ),
    "rehearsal": Kind(RehearsalSeen),
}


@cache
def adapter(kind: str) -> TypeAdapter[Any]:
    """Return the type adapter of the answers to a kind of question."""
    form = KINDS[kind].type
    return TypeAdapter(form) if hasattr(form, "__required_keys__") else adapter_of(form)


SURVEYED = TypeAdapter(Surveyed)
_HELLO = TypeAdapter(Identity)
_SECONDS: TypeAdapter[float] = adapter_of(Seconds)


def hello(sent: object) -> Identity:
    """Return a node's greeting. Raises InvalidAnswer."""
    return parse(_HELLO, sent)


class KnownAnswers:
    """Answers that nodes have given to the same questions: equal ones are parsed and kept once,
    since most nodes of a cluster are alike. An answer is never changed."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], Answer] = {}
        """Question key and the value that was sent -> the valid answer."""
        self._of_nodes: dict[tuple[int, ...], dict[str, Answer]] = {}
        """The identities of all answers of a node, which are kept with them -> the answers."""

    def answer(self, key: str, kind: str, argument: object, sent: object) -> Answer:
        """Return the answer to the question of this key, as `answer` does; where the value is
        known, with the seconds of the first node that has sent it."""
        if not isinstance(sent, dict) or "value" not in sent or "error" in sent:
            return answer(kind, argument, sent)
        text = packed_to_compare(sent["value"])
        if text is None:
            return answer(kind, argument, sent)
        known = self._answers.get((key, text))
        if known is not None:
            return known if _is_timed(sent) else answer(kind, argument, sent)
        found = answer(kind, argument, sent)
        if "value" in found and len(self._answers) < MOST_KNOWN:
            self._answers[key, text] = found
        return found

    def of_node(self, answers: dict[str, Answer]) -> dict[str, Answer]:
        """Return all answers of a node by the keys of their questions: one object for nodes with
        equal answers."""
        same = tuple(map(id, answers.values()))
        if len(self._of_nodes) < MOST_KNOWN:
            return self._of_nodes.setdefault(same, answers)
        return self._of_nodes.get(same, answers)


def _is_timed(sent: Mapping[str, Any]) -> bool:
    """Return whether the seconds of an answer are valid, or not sent."""
    try:
        parse(_SECONDS, sent.get("seconds", 0.0))
    except InvalidAnswer:
        return False
    return True


def packed_to_compare(value: Any) -> bytes | None:
    """Return a value as `packed` does, to be kept for a comparison; None: it is too large."""
    try:
        found = packed(value)
    except ValueError:  # nested too deeply
        return None
    return found if len(found) <= LARGEST_KNOWN else None


def packed(value: Any) -> bytes:
    """Return a value of JSON as bytes that are equal for equal values only. Raises ValueError for
    one that is nested too deeply."""
    # the format without references: with them, equal values may be written differently
    return marshal.dumps(value, 2)


def answer(kind: str, argument: object, sent: object) -> Answer:
    """Return the answer to one question; an invalid one becomes an error."""
    if not isinstance(sent, dict):
        return _invalid("missing" if sent is None else "not an object")
    if "error" in sent:
        why = sent["error"]
        if not isinstance(why, str):
            return _invalid("error: not a text")
        words = why.encode("utf-8", "replace").decode()[:MOST_SHORT].strip()
        failed: Answer = {"error": words or "it failed without a message"}
        # a recording says so of an answer that was invalid when it was sent
        return {**failed, "code": "invalid"} if sent.get("code") == "invalid" else failed
    if "value" not in sent:
        return _invalid("neither `value` nor `error`")
    try:
        found: Answer = {"value": _value(KINDS[kind], kind, argument, sent["value"])}
        if "seconds" in sent:
            found["seconds"] = parse(_SECONDS, sent["seconds"])
    except InvalidAnswer as error:
        return _invalid(str(error))
    return found


def recorded(key: str, sent: object) -> Answer | None:
    """Return an answer as it was recorded under its question's key; None for an unknown kind of
    question."""
    try:
        kind, argument = _question(key)
        return answer(kind, argument, sent) if kind in KINDS else None
    except (ValueError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def _question(key: str) -> tuple[str, Any]:
    """Return the kind and the argument of a question: most nodes are asked the same ones. Raises
    InvalidValue."""
    kind, _, argument = key.partition(" ")
    return kind, parsed(argument)


def _value(form: Kind, kind: str, argument: object, sent: object) -> Any:
    """Return the value without what was not asked. Raises InvalidAnswer."""
    if form.names is not None or form.patterns:
        if not isinstance(sent, dict):
            raise InvalidAnswer("not an object")
        sent = _asked(form, argument, sent)
    return parse(adapter(kind), sent)


def _asked(form: Kind, argument: Any, sent: Mapping[str, object]) -> dict[str, object]:
    if form.names is None:
        asked = _patterns(tuple(_itself(argument)))
        return {key: value for key, value in sent.items() if len(key) <= MOST_PATH and key in asked}
    names = form.names(argument)
    missing = next((name for name in names if name not in sent), None)
    if form.all_of_them and missing is not None:
        raise InvalidAnswer(f"{missing[:40]}: missing")
    return {name: sent[name] for name in names if name in sent}


@lru_cache(maxsize=4096)
def _patterns(texts: tuple[str, ...]) -> NamePatterns:
    return NamePatterns(texts)


def _invalid(why: str) -> Answer:
    return {"error": f"its answer is invalid: {printable(why)}", "code": "invalid"}
