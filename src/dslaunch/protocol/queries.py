"""The queries that agents answer, and the type of each answer.

An answer is parsed where it arrives. It must have the right types and sizes, and be about what was
asked: an answer about a file, directory or port that is not in the question is invalid.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Struct, field
from pydantic import BeforeValidator, Field, InstanceOf, TypeAdapter
from typing_extensions import TypedDict

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.protocol import survey
from dslaunch.protocol.collectives import RankAnswers
from dslaunch.protocol.messages import EVENT, NodeEvent
from dslaunch.protocol.values import (
    MOST_ITEMS,
    AbsolutePath,
    Count,
    FoldedNames,
    InvalidAnswer,
    Path,
    Pid,
    Port,
    Rank,
    RankKey,
    RunId,
    Sent,
    Several,
    Short,
    Table,
    Text,
    Time,
    Vendor,
    adapter_of,
    parse,
)

Value = TypeVar("Value")
Argument = Any
LONGEST_NUMBER = 7
"""Digits of the number of a node."""
MOST_PIECE = 4 << 20
"""Characters of a piece of a file in base64."""


def _anything(argument: Argument, value: Any) -> bool:
    return True


class Query(Struct, Generic[Value], frozen=True):
    """A question that an agent answers (`node/probe.py`), with the type of the answer."""

    name: str
    answer: TypeAdapter[Value]
    fits: Callable[[Argument, Value], bool] = _anything
    """Whether an answer is about what was asked."""

    def parse(self, argument: Argument, value: object) -> Value:
        """Return the typed answer. Raises InvalidAnswer."""
        parsed = parse(self.answer, value)
        if not self.fits(argument, parsed):
            raise InvalidAnswer("about something that was not asked")
        return parsed


Questions = Mapping[Query[Any], Argument]


class Answered(Sent):
    """An answer as it arrives: a value, or the error."""

    value: Any = None
    error: Text | None = None


_ANSWERED = adapter_of(Table[Answered])
_NO_ERRORS: Mapping[str, str] = {}
"""One for all nodes."""


class Answers(Struct, frozen=True):
    """The typed answers of one node to one set of questions."""

    host: str
    values: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def error(self, query: Query[Any]) -> str | None:
        """Return why the node could not answer a question; None if it did."""
        return self.errors.get(query.name)

    def get(self, query: Query[Value]) -> Value | None:
        """Return the answer, None if the node could not answer or was not asked."""
        return self.values.get(query.name)

    def __getitem__(self, query: Query[Value]) -> Value:
        """Return the answer. Raises NodeError if the node could not answer."""
        if query.name not in self.values:
            why = self.errors.get(query.name, "no answer")
            raise NodeError((NodeFailure(self.host, "protocol", f"{query.name}: {why}"),))
        value: Value = self.values[query.name]
        return value


class KnownValues:
    """Values that nodes have answered to the same questions: equal ones are parsed and kept once,
    since most nodes of a cluster are alike. A value is never changed."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int, bytes], tuple[Argument, Any]] = {}
        """Name of a query, identity of its argument and what was sent -> the argument and the
        valid value. The argument is kept: otherwise another one could get its identity."""

    def parsed(self, query: Query[Value], argument: Argument, sent: object) -> Value:
        """Return the typed answer, as `Query.parse` does. Raises InvalidAnswer."""
        text = survey.packed_to_compare(sent)
        if text is None:
            return query.parse(argument, sent)
        key = (query.name, id(argument), text)
        if key in self._values:
            known: Value = self._values[key][1]
            return known
        value = query.parse(argument, sent)
        if len(self._values) < survey.MOST_KNOWN:
            self._values[key] = argument, value
        return value


def parse_answers(
    host: str, questions: Questions, value: object, known: KnownValues | None = None
) -> Answers:
    """Return the typed answers to some questions. Raises InvalidAnswer naming the question.

    `known`: the values of other nodes that are asked the same.
    """
    known = known or KnownValues()
    answered = parse(_ANSWERED, value)
    values, errors = {}, {}
    for query, argument in questions.items():
        given = answered.get(query.name)
        if given is None:
            raise InvalidAnswer(f"{query.name}: no answer")
        if given.error is not None:
            errors[query.name] = given.error
            continue
        try:
            values[query.name] = known.parsed(query, argument, given.value)
        except InvalidAnswer as error:
            raise InvalidAnswer(f"{query.name}: {error}") from None
    return Answers(host, values, errors or _NO_ERRORS)


# ---------------------------------------------------------------- before a run


class MadeDirectory(Sent):
    """A directory that was to be created if it is missing."""

    path: AbsolutePath
    made: bool
    error: Short | None
    """Why it could not be created."""


def _names_asked(argument: Argument, value: Mapping[str, Any]) -> bool:
    return value.keys() == set(argument)


def _paths_asked(argument: Argument, value: Mapping[str, Any]) -> bool:
    return value.keys() == set(argument["paths"])


def _targets_asked(argument: Argument, value: Mapping[str, Any]) -> bool:
    return value.keys() == set(argument["targets"])


def _marks_asked(argument: Argument, value: Mapping[str, list[str]]) -> bool:
    seen = {name for names in value.values() for name in names}
    return _paths_asked(argument, value) and seen <= set(argument["names"])


def _claimed_by_a_node(argument: Argument, value: Mapping[str, str | None]) -> bool:
    """Return whether each claim is the text of one of the nodes that were asked."""
    prefix = argument["text"].rpartition("-")[0]
    texts = {text for text in value.values() if text is not None}
    return _paths_asked(argument, value) and all(
        _is_numbered(text, prefix, argument["count"]) for text in texts
    )


def _is_numbered(text: str, prefix: str, count: int) -> bool:
    """Return whether a text is `prefix-NUMBER`, with a number below `count`."""
    start, _, number = text.rpartition("-")
    digits = number.isascii() and number.isdecimal() and len(number) <= LONGEST_NUMBER
    return start == prefix and digits and int(number) < count


ANY_PORT = 0
"""Asks for any free port to listen at."""


def _listens_where_asked(argument: Argument, listening: survey.Listening) -> bool:
    asked = set(argument["ports"])
    taken = {each["port"] for each in listening.get("taken", ())}
    port = listening["port"]
    if port is None:
        return bool(taken) and taken <= asked
    return taken <= asked and (port in asked or ANY_PORT in asked)


def _kind(name: str, fits: Callable[[Argument, Any], bool] = _anything) -> Query[Any]:
    """Return the query for a kind of question that preflights ask too."""
    return Query(name, survey.adapter(name), fits)


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
INTERFACES: Query[list[survey.HeldAddress]] = _kind("interfaces")
ACCELERATORS: Query[Mapping[Vendor, survey.AcceleratorCount]] = _kind("accelerators")
RESOLVE: Query[Mapping[str, list[str]]] = _kind("resolve", _names_asked)
DIGESTS: Query[Mapping[str, str | None]] = Query(
    "digests", adapter_of(Table[Digest | None]), _paths_asked
)
LISTEN: Query[survey.Listening] = _kind("listen", _listens_where_asked)
DIAL: Query[Mapping[str, survey.Dialed]] = _kind("dial", _targets_asked)
RUN: Query[survey.Ran] = _kind("run")
MARK: Query[Mapping[str, str | None]] = _kind("mark", _paths_asked)
MARKS: Query[Mapping[str, list[str]]] = _kind("marks", _marks_asked)
CLAIM: Query[Mapping[str, str | None]] = _kind("claim", _claimed_by_a_node)
UNMARK: Query[None] = _kind("unmark")
GPUS: Query[int | None] = Query("gpus", adapter_of(Annotated[int, Field(ge=0, le=1024)] | None))
INTERPRETER: Query[str | None] = Query("interpreter", adapter_of(Path | None))
DIRECTORIES: Query[Mapping[str, MadeDirectory]] = Query(
    "directories", adapter_of(Table[MadeDirectory]), _names_asked
)


# ---------------------------------------------------------------- recorded runs


def _items(value: object) -> list[object]:
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise ValueError("not a list, or too long")
    return value


def _valid_events(value: object) -> list[NodeEvent]:
    found = []
    for event in _items(value):
        with contextlib.suppress(InvalidAnswer):
            found.append(parse(EVENT, event).kept())
    return found


class RunOnNode(Sent):
    """A run as recorded by one node (`node/run_files.py`, `runs`)."""

    run: RunId
    cluster: Short
    launcher: Short
    hosts: FoldedNames | Several[Short]
    """In rank order; runs of earlier versions list them."""
    ranks: Several[Rank]
    started: Time
    detached: bool
    living: bool
    left: Several[Pid]
    events: Annotated[Several[InstanceOf[NodeEvent]], BeforeValidator(_valid_events)]
    """The valid ones: a last line can be incomplete."""


class RecordedRuns(Sent):
    """All runs that a node has recorded. One broken record hides no other run."""

    runs: tuple[RunOnNode, ...]
    invalid: tuple[str, ...]
    """What is wrong in each record that is not among `runs`."""


def _each_by_itself(value: object) -> RecordedRuns:
    runs = []
    invalid = []
    for record in _items(value):
        try:
            runs.append(parse(_RUN_ON_NODE, record))
        except InvalidAnswer as error:
            invalid.append(str(error))
    return RecordedRuns(runs=tuple(runs), invalid=tuple(invalid))


class Cleaned(Sent):
    """The processes and runs that were removed on a node."""

    killed: Several[Pid]
    removed: Several[RunId]


def _decoded(text: object) -> bytes:
    if not isinstance(text, str) or len(text) > MOST_PIECE:
        raise ValueError("not a piece of a file")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("not base64") from None


class JournalPiece(Sent):
    """A piece of the journal of a detached run."""

    data: Annotated[bytes, BeforeValidator(_decoded)]
    size: Count
    """Bytes of the whole."""


class FrameOfStack(TypedDict):
    """One frame of a thread's stack."""

    file: Text
    line: Count
    function: Text


class ThreadOfProcess(TypedDict):
    """One thread, its innermost frame first."""

    name: Short
    main: bool
    frames: Annotated[list[FrameOfStack], Field(max_length=1000)]


class _ProcessRequired(TypedDict):
    pid: Pid


class ProcessOfRank(_ProcessRequired, total=False):
    """The state and stacks of a rank's process (`node/stacks.py`, `collect`)."""

    command: Text
    state: Short
    wchan: Short
    syscall: Short
    on: Text
    stack: Annotated[list[Short], Field(max_length=1000)]
    computes: bool
    tool: Short
    threads: Annotated[list[ThreadOfProcess], Field(max_length=10_000)]
    error: Text


Stacks = dict[RankKey, Annotated[list[ProcessOfRank], Field(max_length=10_000)]]


class KeptHang(Sent):
    """What a node knows of a hang of a detached run (`node/rank_progress.py`)."""

    time: Time
    seconds: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)] = 0.0
    """Since the start of the run."""
    collectives: RankAnswers
    stacks: Stacks
    answers: Table[Answered] = Field(default_factory=dict)
    """To the questions about GPUs and NCCL; `parse_answers` validates them."""
    unreachable: Several[Short] = ()
    """Nodes that it could not connect to."""


def _of_that_run(argument: Argument, value: Cleaned) -> bool:
    return argument["run"] is None or set(value.removed) <= {argument["run"]}


_RUN_ON_NODE = TypeAdapter(RunOnNode)
RUNS: Query[RecordedRuns] = Query(
    "runs", TypeAdapter(Annotated[RecordedRuns, BeforeValidator(_each_by_itself)])
)
CLEAN: Query[Cleaned] = Query("clean", TypeAdapter(Cleaned), _of_that_run)
JOURNAL: Query[JournalPiece] = Query("journal", TypeAdapter(JournalPiece))
NCCL_RAS: Query[str | None] = Query("nccl_ras", adapter_of(Text | None))
HANG: Query[KeptHang | None] = Query("hang", adapter_of(KeptHang | None))


# ---------------------------------------------------------------- requests with one reply


class Detached(Sent):
    """The reply of a node whose part of a run is detached now."""

    directory: AbsolutePath
    port: Port | None


class SignaledRanks(Sent):
    """The ranks of a node that a signal was meant for."""

    sent: Several[Rank]
    unhandled: Several[Rank]
    """Those without a handler, which the signal would end."""


class HandedOn(Sent):
    """How a node has handed an archive on to another one."""

    how: Literal["done", "no-ssh", "stalled", "failed"]
    """Whether its ssh has exited successfully; there is none; the other node took nothing."""
    words: Text
    """The end of what its ssh wrote."""


UNPACKED: TypeAdapter[int] = adapter_of(Count)
RECEIVED: TypeAdapter[int] = adapter_of(Count)
HANDED_ON: TypeAdapter[HandedOn] = TypeAdapter(HandedOn)
DETACHED: TypeAdapter[Detached] = TypeAdapter(Detached)
STACKS: TypeAdapter[Stacks] = adapter_of(Stacks)
SIGNALED: TypeAdapter[SignaledRanks] = TypeAdapter(SignaledRanks)
JOB_SIGNAL: Query[SignaledRanks] = Query("job_signal", SIGNALED)
