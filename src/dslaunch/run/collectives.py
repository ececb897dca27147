"""The collectives of the ranks of a run, as their own processes recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.protocol.collectives import (
    COLLECTIVES,
    RankAnswer,
    SentCollective,
    SentGroup,
    SentLock,
)
from dslaunch.run.asked import Asked
from dslaunch.run.session import Session
from dslaunch.run.waits import FileLock, Frame

_FUNCTIONS: Mapping[str, str] = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
}
"""Functions of `torch.distributed` for which NCCL's recorder has another name (torch 2.11,
ProcessGroupNCCL.cpp; those of gloo have their own names)."""
OF_NODE = 2 / 3
"""The part of a timeout that a node has for its ranks; the rest is for the way back."""


class Question(StrEnum):
    """How much is asked (`node/hook_collectives.py`)."""

    STATUS = "status"
    """The numbers of each group's last collectives; takes less than a millisecond."""
    FULL = "full"
    """Also the groups' names and ranks, and the last 32 collectives of each, with their stacks
    where torch has them available."""
    TIMES = "times"
    """When each collective was entered, without their groups and stacks."""


class RankState(StrEnum):
    """How a rank answered."""

    ANSWERED = "answered"
    SILENT = "silent"
    """It listens but did not answer: it is stopped, or a thread holds the interpreter."""
    ABSENT = "absent"
    """It has not initialized a process group, or is no Python program of ours."""


class Collective(Struct, frozen=True):
    """One collective, or one transfer between two ranks (`p2p`), that a rank has entered."""

    group: str
    """The name of the process group, which is equal in all its ranks."""
    seq: int
    """Counted from 1 in each group; for a transfer by transfers."""
    operation: str
    """Such as `all_reduce`."""
    backend: str
    """Such as `gloo`."""
    entered: float
    """Seconds since the epoch by the launcher's clock."""
    completed: bool
    started: bool = False
    """Whether the GPU is known to have begun it. Only NCCL tells, with TORCH_NCCL_ENABLE_TIMING."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Of the first 8 input tensors."""
    tensors: int = 0
    """Number of input tensors."""
    dtypes: tuple[str, ...] = ()
    p2p: bool = False
    root: int | None = None
    """The rank that it sends from, or to; None: it has none, or it is unknown."""
    timeout: float | None = None
    """Seconds after which PyTorch gives it up."""
    frames: tuple[Frame, ...] = ()
    """The innermost first; empty: unknown."""


class Transfer(Struct, frozen=True):
    """A transfer to or from one rank, which the main thread of a rank waits in."""

    kind: Literal["send", "recv"]
    peer: int | None
    """The other rank; None: any."""


class Group(Struct, frozen=True):
    """A process group as one of its ranks knows it. Of an answer to `STATUS` only `id` and the
    numbers are known."""

    id: int | None
    """The process's own number of it; None: no collective is recorded."""
    name: str | None
    """Equal in all its ranks."""
    description: str = ""
    """Such as `default_pg`."""
    backend: str = ""
    ranks: tuple[int, ...] = ()
    enqueued: int | None = None
    """Number of the last collective that was entered; None: none, or unknown."""
    started: int | None = None
    completed: int | None = None


class Forming(Struct, frozen=True):
    """A process group that the main thread of a rank forms."""

    name: str
    """Which its members find each other by."""
    ranks: tuple[int, ...]


class RankRecord(Struct, frozen=True):
    """What one rank has recorded."""

    rank: int
    host: str
    state: RankState
    pid: int
    """The process that answered, or the rank's own."""
    waited: float = 0.0
    """Seconds for which its main thread has waited for a CPU since its start."""
    transferred: int = 0
    """Bytes that it has read and written since its start, but for what collectives send."""
    compiled: float | None = None
    """Seconds of CPU time of all its processes, if it compiles (`node/own_work.py`); None: it does
    not."""
    initialized: bool = False
    """Whether it has a default process group."""
    transfers: int = 0
    """Transfers between two ranks that it has completed or begun; 0 without a recorder."""
    groups: tuple[Group, ...] = ()
    entries: tuple[Collective, ...] = ()
    """The oldest first."""
    transfer: Transfer | None = None
    """None: it waits in none, or that is not known."""
    forming: Forming | None = None
    """None: it forms none, or that is not known."""
    lock: FileLock | None = None
    """None: it waits for none, or that is not known."""
    error: str | None = None
    """Why it has no record, such as a PyTorch without a recorder."""

    @property
    def current(self) -> Collective | None:
        """Return the collective that it entered last and has not completed; None: unknown, or it
        is in none."""
        waiting = [entry for entry in self.entries if not entry.completed]
        return max(waiting, key=lambda entry: entry.entered, default=None)


def with_collectives(
    stacks: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    found: Mapping[int, RankRecord],
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return stacks (host -> rank -> processes) with `collective` in the first process of each
    rank: the one that it is in, or has completed last; without it where none is recorded."""
    return {
        host: {
            key: [
                {**process, **(_recorded(found.get(int(key))) if index == 0 else {})}
                for index, process in enumerate(processes)
            ]
            for key, processes in ranks.items()
        }
        for host, ranks in stacks.items()
    }


def _recorded(record: RankRecord | None) -> dict[str, Any]:
    if record is None or not record.entries:
        return {}
    shown = record.current or max(record.entries, key=lambda entry: entry.entered)
    names = {group.name: group.description for group in record.groups}
    told = to_builtins(shown)
    del told["frames"]
    return {"collective": {**told, "group": names.get(shown.group) or shown.group}}


AskedRecords = Asked[Mapping[str, RankAnswer]]


def ask_for_collectives(
    sessions: Sequence[Session], question: Question, timeout: float
) -> AskedRecords:
    """Ask nodes for the records of their ranks. `timeout`: seconds that a node has for them."""
    what = question.value
    return Asked(
        (session, session.request("collectives", COLLECTIVES, what=what, timeout=timeout))
        for session in sessions
    )


def arrived_collectives(asked: AskedRecords) -> dict[int, RankRecord]:
    """Return the records that have arrived, by rank, without ranks that a node does not have."""
    found: dict[int, RankRecord] = {}
    for session, answers in asked.arrived():
        own = {key: each for key, each in answers.items() if int(key) in session.ranks}
        found.update(records(session.host, own, session.offset))
    return dict(sorted(found.items()))


def gather_collectives(
    sessions: Sequence[Session], question: Question, timeout: float = 5.0
) -> dict[int, RankRecord]:
    """Return the record of every rank, by its number, of the nodes that answer in `timeout`
    seconds. Never raises."""
    asked = ask_for_collectives(sessions, question, timeout * OF_NODE)
    asked.wait(timeout)
    return arrived_collectives(asked)


def records(host: str, answers: Mapping[str, RankAnswer], offset: float) -> dict[int, RankRecord]:
    """Return the records of a node's ranks. `offset`: seconds by which its clock is ahead."""
    return {int(key): _record(host, int(key), each, offset) for key, each in answers.items()}


def _record(host: str, rank: int, answer: RankAnswer, offset: float) -> RankRecord:
    told = answer.told
    record = RankRecord(
        rank=rank,
        host=host,
        state=RankState(answer.state),
        pid=answer.pid,
        waited=answer.waited,
        transferred=answer.transferred,
        compiled=answer.compiled,
        lock=_lock(answer.lock),
    )
    if told is None:
        return record
    return replace(
        record,
        initialized=told.initialized,
        transfers=told.transfers,
        groups=tuple(map(_group, told.groups)),
        entries=tuple(_collective(entry, offset) for entry in told.entries),
        transfer=Transfer(told.transfer.kind, told.transfer.peer) if told.transfer else None,
        forming=Forming(told.forming.name, told.forming.ranks) if told.forming else None,
        error=told.error,
    )


def _lock(sent: SentLock | None) -> FileLock | None:
    if sent is None:
        return None
    return FileLock(file=sent.file, pid=sent.pid, command=sent.command, rank=sent.rank)


def _group(sent: SentGroup) -> Group:
    return Group(
        id=sent.id,
        name=sent.name,
        description=sent.description,
        backend=sent.backend,
        ranks=sent.ranks,
        enqueued=sent.enqueued,
        started=sent.started,
        completed=sent.completed,
    )


def _collective(sent: SentCollective, offset: float) -> Collective:
    return Collective(
        group=sent.group,
        seq=sent.seq,
        operation=_FUNCTIONS.get(sent.operation, sent.operation),
        backend=sent.backend,
        entered=sent.entered - offset,
        completed=sent.completed,
        started=sent.started,
        sizes=sent.sizes,
        tensors=sent.tensors,
        dtypes=sent.dtypes,
        p2p=sent.p2p,
        root=sent.root,
        timeout=sent.timeout,
        frames=tuple(Frame(frame.file, frame.line, frame.function) for frame in sent.frames),
    )
