"""That a rank waits for others, as its stack shows it. Pure."""

from __future__ import annotations

import re

from dslaunch.run.rank_views import LIBRARY, RankView
from dslaunch.run.waits import NEAR, WaitKind, wait

JOINING = frozenset({"init_process_group", "new_group", "split_group"})
"""Functions that return when all ranks of the group have called them."""
BETWEEN_TWO = re.compile(r"(?:batch_)?i?(?:send|recv)(?:_\w+)?")
"""Transfers: ranks that are all in one do not wait for the same."""


def is_seen_waiting(view: RankView) -> bool:
    """Return whether only the stack of a rank shows that it waits for others: it has no recorder,
    or is in an operation that is not compared, such as `monitored_barrier` and `recv`."""
    compared = [] if view.record is None else [e for e in view.record.entries if not e.p2p]
    if view.process is None or any(not entry.completed for entry in compared):
        return False
    seen = view.process.wait
    return seen is not None and seen.kind in (WaitKind.COLLECTIVE, WaitKind.STORE)


def seen_operation(view: RankView) -> str | None:
    """Return the function in which a rank waits for others, by its stack."""
    process = view.process
    seen = process.wait if process is not None else None
    if process is None or seen is None or seen.frame is None:
        return None
    joining = [frame.function for frame in process.frames if frame.function in JOINING]
    if joining:
        return joining[0]
    # torch wraps its functions; the outermost is the one that the program calls
    last = seen.frame
    for index, frame in enumerate(process.frames[: seen.frame + NEAR]):
        if LIBRARY.search(frame.file) and wait([frame]) is not None:
            last = index
    return process.frames[last].function


def is_blocked(view: RankView) -> bool:
    """Return whether the main thread of a rank is seen in a collective."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.COLLECTIVE


def is_idle(view: RankView) -> bool:
    """Return whether the main thread of a rank waits for something."""
    return view.process is not None and view.process.wait is not None


def is_joining(view: RankView) -> bool:
    """Return whether a rank waits until others have joined a process group."""
    seen = view.process.wait if view.process is not None else None
    return seen is not None and seen.kind is WaitKind.STORE
