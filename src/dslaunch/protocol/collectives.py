"""What ranks have recorded of their collectives (`node/collectives.py`), as typed and bounded
values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, model_validator

from dslaunch.protocol.values import (
    Count,
    InvalidAnswer,
    Pid,
    RankKey,
    Sent,
    Several,
    Short,
    Text,
    Time,
    adapter_of,
    parse,
)

MOST_RANKS = 4096
MOST_GROUPS = 4096
MOST_ENTRIES = 4096
MOST_DIMENSIONS = 64
MOST_FRAMES = 64
MOST_NAME = 200
"""Characters of a name, as `node/hook_collectives.py` cuts it: a name is kept for each of thousands
of collectives."""
Name = Annotated[Short, Field(max_length=MOST_NAME)]
MemberRank = Annotated[int, Field(ge=0, le=2**20)]
Dimensions = Annotated[Several[Count], Field(max_length=MOST_DIMENSIONS)]


class SentFrame(Sent):
    """One call of the stack of a collective."""

    file: Short
    line: Count
    function: Short


class SentCollective(Sent):
    """One collective; fields as of `run.collectives.Collective`."""

    group: Name
    seq: Count
    operation: Name
    backend: Name
    sizes: Annotated[Several[Dimensions], Field(max_length=MOST_DIMENSIONS)] = ()
    tensors: Count = 0
    dtypes: Annotated[Several[Name], Field(max_length=MOST_DIMENSIONS)] = ()
    entered: Time
    started: bool = False
    completed: bool
    p2p: bool = False
    root: MemberRank | None = None
    timeout: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None
    frames: Annotated[Several[SentFrame], Field(max_length=MOST_FRAMES)] = ()


class SentTransfer(Sent):
    """A transfer that a rank waits in; fields as of `run.collectives.Transfer`."""

    kind: Literal["send", "recv"]
    peer: MemberRank | None = None


class SentGroup(Sent):
    """One process group; fields as of `run.collectives.Group`."""

    id: Count | None = None
    name: Name | None = None
    description: Name = ""
    backend: Name = ""
    ranks: Annotated[Several[MemberRank], Field(max_length=2**20)] = ()
    enqueued: Count | None = None
    started: Count | None = None
    completed: Count | None = None


class SentForming(Sent):
    """A process group that a rank forms; fields as of `run.collectives.Forming`."""

    name: Name
    ranks: Annotated[Several[MemberRank], Field(max_length=2**20)]


Duration = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Call = Annotated[tuple[Count, Count, Time, Duration | None], Strict(False)]
"""A collective: its number, the index of its kind, when it was entered, the seconds it took."""


class SentTimes(Sent):
    """When a rank entered the collectives of a process group."""

    group: Name
    backend: Name
    ranks: Annotated[Several[MemberRank], Field(max_length=2**20)] = ()
    kinds: Annotated[Several[Name], Field(max_length=MOST_ENTRIES)]
    calls: Annotated[Several[Call], Field(max_length=MOST_ENTRIES)]

    @model_validator(mode="after")
    def _kinds_are_listed(self) -> Self:
        if any(index >= len(self.kinds) for _, index, _, _ in self.calls):
            raise ValueError("a kind that is not listed")
        return self


class SentRecord(Sent):
    """The answer of a rank's process."""

    now: Time | None = None
    initialized: bool = False
    groups: Annotated[Several[SentGroup], Field(max_length=MOST_GROUPS)] = ()
    compiles: bool = False
    transfers: Count = 0
    entries: Annotated[Several[SentCollective], Field(max_length=MOST_ENTRIES)] = ()
    transfer: SentTransfer | None = None
    forming: SentForming | None = None
    times: Annotated[Several[SentTimes], Field(max_length=MOST_GROUPS)] = ()
    spent: Duration = 0.0
    """Seconds of CPU time that the answer took in the rank."""
    error: Short | None = None
    """Why there is no record."""


def _valid_record(value: object) -> SentRecord | None:
    """Return the record of a rank; one that is invalid is replaced by the reason. The process of
    the rank made it, which runs the user's program: its node and the other ranks still count."""
    if value is None:
        return None
    try:
        return parse(_RECORD, value)
    except InvalidAnswer as error:
        return SentRecord(error=f"invalid record: {error}")


class SentLock(Sent):
    """A lock in a file; fields as of `run.waits.FileLock`."""

    file: Text
    pid: Pid | None = None
    command: Short = ""
    rank: MemberRank | None = None


class RankAnswer(Sent):
    """How a rank answered; fields as of `run.collectives.RankRecord`."""

    state: Literal["answered", "silent", "absent"]
    pid: Pid
    waited: Duration = 0.0
    transferred: Count = 0
    compiled: Duration | None = None
    lock: SentLock | None = None
    told: Annotated[SentRecord | None, BeforeValidator(_valid_record)] = None


_RECORD = TypeAdapter(SentRecord)
RankAnswers = Annotated[dict[RankKey, RankAnswer], Field(max_length=MOST_RANKS)]
COLLECTIVES: TypeAdapter[Mapping[str, RankAnswer]] = adapter_of(RankAnswers)
