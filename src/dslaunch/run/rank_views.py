"""What nodes have told about each rank of a run that makes no progress. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.run.collectives import Collective, RankRecord
from dslaunch.run.hang_verdict import Place
from dslaunch.run.reasons import RankSource
from dslaunch.run.waits import OTHERS, Frame, Wait, wait

MOST_WORKERS = 64
"""Processes below a rank that are inspected."""
LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3\.\d+t?|python\.zip)/|^<")
"""Also the hooks of dslaunch, which a node has in `python.zip`."""

_JOIN = re.compile(r"(?:^|/)threading\.py:(?:Thread\.)?(?:join|_wait_for_tstate_lock)$")
"""Where a thread waits for the end of another one. py-spy writes the class of a method."""


class Process(Struct, frozen=True):
    """One process of a rank, as its node saw it."""

    pid: int
    state: str = ""
    """A letter of /proc/PID/stat; "": unknown."""
    frames: tuple[Frame, ...] = ()
    """Of the thread that runs the program, the innermost first; empty: unknown."""
    syscall: str = ""
    on: str = ""
    """The file that the system call waits for."""
    command: str = ""

    @property
    def wait(self) -> Wait | None:
        """Return what the thread that runs the program waits for."""
        return wait(self.frames, self.state, self.syscall)


class RankView(Struct, frozen=True):
    """All that is known of one rank."""

    rank: int
    host: str
    record: RankRecord | None = None
    """None: its node has not answered."""
    process: Process | None = None
    """None: unknown, or it has ended."""
    children: tuple[Process, ...] = ()
    """Processes below it, such as workers of its data loader."""
    exit_code: int | None = None
    """It has ended with this code."""
    signal: int | None = None
    """It was ended by this signal."""
    ended: bool = False

    @property
    def source(self) -> tuple[str, int]:
        """Return its host and number."""
        return self.host, self.rank


def rank_views(
    stacks: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    records: Mapping[int, RankRecord],
    ended: Mapping[RankSource, tuple[int | None, int | None]],
) -> dict[int, RankView]:
    """Return the view of every rank. `stacks`: host -> rank -> processes, as of
    `node.stacks.collect`; `ended`: exit code and signal of ranks that have ended."""
    found = {
        record.rank: RankView(rank=record.rank, host=record.host, record=record)
        for record in records.values()
    }
    for host, ranks in stacks.items():
        for key, processes in ranks.items():
            rank = int(key)
            seen = [_process(each) for each in processes[: MOST_WORKERS + 1]]
            found[rank] = RankView(
                rank=rank,
                host=host,
                record=records.get(rank),
                process=seen[0] if seen else None,
                children=tuple(seen[1:]),
            )
    for (host, number), (code, signal) in ended.items():
        if number is not None:
            found[number] = RankView(
                rank=number, host=host, exit_code=code, signal=signal, ended=True
            )
    return _with_unreturned_calls(dict(sorted(found.items())))


def _with_unreturned_calls(views: Mapping[int, RankView]) -> dict[int, RankView]:
    """Return the views with collectives whose calls have not returned as not completed.

    A call of NCCL returns when the GPU has been told what to do, so that one which is seen inside
    still connects the ranks of its group. PyTorch takes it for completed then: it asks an event
    which has not been recorded yet (torch 2.11, FlightRecorder::update_state).
    """
    inside = {rank: call for rank, view in views.items() if (call := _seen_call(view)) is not None}
    if not inside:
        return dict(views)
    calls = {_identity(call) for call in inside.values()}
    # where another rank has returned from it, the call is a later one, which PyTorch records only
    # once it has a communicator (torch 2.11, ProcessGroupNCCL::collective)
    earlier = {
        _identity(entry)
        for view in views.values()
        for entry in _completed(view)
        if _identity(entry) in calls and _is_outside(view)
    }
    unreturned = {rank: call for rank, call in inside.items() if _identity(call) not in earlier}
    changed = {rank: _not_completed(views[rank], call) for rank, call in unreturned.items()}
    return {**views, **changed}


def _seen_call(view: RankView) -> Collective | None:
    """Return the last collective of a rank if it is completed, and the rank in such a call."""
    entries = view.record.entries if view.record is not None else ()
    last = max(entries, key=lambda entry: entry.entered, default=None)
    if last is None or not last.completed or last.backend != "nccl" or view.process is None:
        return None
    innermost = view.process.frames[0] if view.process.frames else None
    return last if innermost is not None and innermost.function == last.operation else None


def _completed(view: RankView) -> tuple[Collective, ...]:
    """Return the collectives that a rank has completed, by its record."""
    entries = view.record.entries if view.record is not None else ()
    return tuple(entry for entry in entries if entry.completed)


def _is_outside(view: RankView) -> bool:
    """Return whether a rank is seen outside of calls that wait for other ranks."""
    if view.process is None or not view.process.frames:
        return False
    seen = view.process.wait
    return seen is None or seen.kind not in OTHERS


def _identity(entry: Collective) -> tuple[str, bool, int]:
    """Return what is equal for a collective in all ranks of its group."""
    return entry.group, entry.p2p, entry.seq


def _not_completed(view: RankView, call: Collective) -> RankView:
    """Return a view with one of its collectives as not completed."""
    assert view.record is not None
    entries = tuple(
        replace(each, completed=False) if each is call else each for each in view.record.entries
    )
    return replace(view, record=replace(view.record, entries=entries))


def _process(told: Mapping[str, Any]) -> Process:
    threads = told.get("threads") or []
    main = next((_frames(thread) for thread in threads if thread.get("main")), ())
    process = Process(
        pid=told["pid"],
        state=str(told.get("state", "")),
        frames=main,
        syscall=str(told.get("syscall", "")),
        on=str(told.get("on", "")),
        command=str(told.get("command", "")),
    )
    joined = _joined([_frames(thread) for thread in threads if not thread.get("main")], main)
    if joined is None:
        return process
    # what the node tells of the process itself is about the main thread, unless it is stopped
    is_stopped = process.state in ("T", "t")
    of_thread = "R" if told.get("computes") else ""
    state = process.state if is_stopped else of_thread
    return replace(process, frames=joined, state=state, syscall="", on="")


def _frames(thread: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(Frame(f["file"], f["line"], f["function"]) for f in thread["frames"])


def _joined(others: Sequence[tuple[Frame, ...]], main: Sequence[Frame]) -> tuple[Frame, ...] | None:
    """Return the frames of the thread whose end the main thread waits for: a program may train, or
    save, in one. None: it waits for none, or which one is not known."""
    if not any(_JOIN.search(f"{frame.file}:{frame.function}") for frame in main[:2]):
        return None
    own = [frames for frames in others if own_place(frames) is not None]
    return own[0] if len(own) == 1 else None


def place(frames: Sequence[Frame]) -> Place | None:
    """Return the innermost line of the user's program; of a library if there is none."""
    found = own_place(frames)
    if found is not None or not frames:
        return found
    return Place(*frames[0])


def own_place(frames: Sequence[Frame]) -> Place | None:
    """Return the innermost line of the user's program; None: there is none."""
    own = (frame for frame in frames if not LIBRARY.search(frame.file))
    return next((Place(*frame) for frame in own), None)


def place_in(view: RankView, entry: Collective) -> Place | None:
    """Return where a rank has entered a collective.

    In a backward pass, a thread of PyTorch may have entered it, with no line of the user's program
    in its stack: then that is where the main thread waits for it.
    """
    seen = view.process.frames if view.process is not None else ()
    return own_place(entry.frames) or own_place(seen) or place(entry.frames or seen)


def place_of(view: RankView) -> Place | None:
    """Return where the main thread of a rank is; None: unknown."""
    return place(view.process.frames) if view.process is not None else None
