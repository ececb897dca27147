"""What the ranks of a run are doing, equal stacks as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Frame = tuple[str, int, str]
"""File, line, function."""
HIDDEN = ("/runpy.py", "<frozen runpy>", "/threading.py")
"""Frames that every Python program has at its outer end."""
IDLE = ("wait", "_wait_for_tstate_lock", "accept", "select", "poll")
"""Functions in which a helper thread only waits for work."""
MARKS = {
    "all_reduce": "collective", "all_gather": "collective", "barrier": "collective",
    "broadcast": "collective", "reduce_scatter": "collective", "wait": "wait",
    "_store_based_barrier": "store", "acquire": "lock", "__enter__": "lock", "sleep": "sleep",
    "recv": "network", "recv_into": "network", "read": "input", "poll": "wait", "select": "wait",
}  # fmt: skip
"""What waiting in a function of that name usually means."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks whose main threads do the same."""

    members: tuple[tuple[str, int], ...]
    """Host and rank."""
    frames: tuple[Frame, ...]
    """The innermost first; empty: no stack could be had."""
    note: str = ""
    """The process's state where there is no stack."""


def fold(stacks: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> list[Group]:
    """Group ranks by what their first process's main thread does; the odd ones out first.

    `stacks` is host -> rank -> processes, as `dslaunch.node.stacks.collect` gives them.
    """
    groups: dict[tuple[tuple[Frame, ...], str], list[tuple[str, int]]] = {}
    for host, ranks in stacks.items():
        for rank, processes in ranks.items():
            groups.setdefault(_doing(processes), []).append((host, int(rank)))
    found = [
        Group(tuple(sorted(members, key=lambda m: m[1])), frames, note)
        for (frames, note), members in groups.items()
    ]
    return sorted(found, key=lambda group: (len(group.members), group.members[0][1]))


def _doing(processes: list[dict[str, Any]]) -> tuple[tuple[Frame, ...], str]:
    process = processes[0] if processes else {}
    threads = process.get("threads", ())
    if threads:
        # faulthandler and py-spy put the main thread last and first; it is the longest one
        # that does not come from a thread's start
        main = max(threads, key=lambda t: (not _is_helper(t["frames"]), len(t["frames"])))
        frames = [(str(f), int(n), str(name)) for f, n, name in main["frames"]]
        return tuple(f for f in frames if not f[0].endswith(HIDDEN)), ""
    state, where = process.get("state", ""), process.get("waits_in", "")
    words = {"D": "in the kernel, cannot be interrupted", "T": "stopped", "R": "running"}
    note = words.get(state, f"state {state}" if state else "gone")
    return (), f"{note}{f', in {where}' if where else ''}"


def _is_helper(frames: list[list[Any]]) -> bool:
    return bool(frames) and str(frames[-1][2]) in ("_bootstrap", "_bootstrap_inner")


def page(groups: list[Group], width: int | None = None) -> str:
    """The groups as text: who, then the frames, the innermost first."""
    if not groups:
        return "no rank is running"
    return "\n\n".join(_section(group, width) for group in groups)


def _section(group: Group, width: int | None) -> str:
    lines = [f"{who(group.members)}: {group.note}".rstrip(": ")]
    for depth, (file, line, name) in enumerate(group.frames):
        mark = f"  <- {MARKS[name]}" if depth < 3 and name in MARKS else ""
        place = f"{_short(file, width)}:{line}"
        lines.append(f"  {name}  {place}{mark}")
    return "\n".join(lines)


def _short(file: str, width: int | None) -> str:
    """A path less what comes before the package it is in, and not longer than half a line."""
    for marker in ("/site-packages/", "/dist-packages/"):
        file = file.rpartition(marker)[2]
    room = max((width or 200) // 2, 30)
    return file if len(file) <= room else f"...{file[3 - room :]}"


def who(members: tuple[tuple[str, int], ...]) -> str:
    """`ranks 0-5,7 on node[1-3]`."""
    from dslaunch.cluster.nodeset import fold as fold_names

    ranks = [rank for _, rank in members]
    hosts = fold_names(list(dict.fromkeys(host for host, _ in members)))
    return f"rank{'s' if len(ranks) > 1 else ''} {_spans(ranks)} on {hosts}"


def _spans(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
