"""Stacks of the ranks of a run, equal stacks grouped. Pure.

The innermost frame comes first: it shows what a rank waits for. The outer frames are the same in
most groups.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from dslaunch.cluster.nodeset import fold as fold_names
from dslaunch.plural import counted
from dslaunch.run.outcome import Outcome
from dslaunch.run.waits import IDLE, OTHERS, Frame, Wait, WaitKind, wait
from dslaunch.terminal import one_line

Member = tuple[str, int]
"""Host and rank."""
Told = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""Host -> rank -> processes, as `dslaunch.node.stacks.collect` gives them."""

_STATES = {"D": "uninterruptible sleep", "T": "stopped", "t": "stopped by a debugger"}
_HIDDEN = re.compile(
    r"<frozen (?:runpy|importlib\b[^<>]*)>|(?:^|/)runpy\.py|torch/utils/_contextlib\.py"
    r"|torch/distributed/c10d_logger\.py|multiprocessing/(?:process|spawn|forkserver)\.py"
)
"""Files whose frames only start programs or decorate functions; not shown."""
_THREAD_START = ("_bootstrap", "_bootstrap_inner", "run")
_PYTORCH = re.compile(r"(?:^|/)torch/\w+/")
_LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+t?)/")


class Thread(Struct, frozen=True):
    """A thread of a process."""

    name: str
    frames: tuple[Frame, ...]
    """The innermost first; empty: no stack is available."""
    wait: Wait | None = None


class Others(Struct, frozen=True):
    """A further thread with the same stack in some or all ranks of a group."""

    thread: Thread
    members: tuple[Member, ...]


class StackGroup(Struct, frozen=True):
    """Ranks, or child processes of ranks, whose main threads have the same stack."""

    members: tuple[Member, ...]
    main: Thread
    lines: tuple[int, ...] = ()
    """The line numbers seen in the innermost frame, where `fold` ignored them."""
    others: tuple[Others, ...] = ()
    command: str = ""
    """The program of child processes, such as data loader workers; empty: these are ranks."""
    count: int = 0
    """Number of processes; more than members where a rank has several such children."""
    note: str = ""
    """Why no stack is available, and what else is known."""
    collectives: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The collectives that the ranks are in, or were in last, with these ranks."""


class _Process(Struct, frozen=True):
    member: Member
    command: str
    main: Thread
    others: tuple[Thread, ...]
    note: str
    collective: str


def fold(stacks: Told, *, exact: bool = True, first: Collection[Member] = ()) -> list[StackGroup]:
    """Group ranks by the stacks of their main threads: smallest group first, children last.

    Of groups of equal size, those that wait for other ranks come last. Groups of the ranks in
    `first` come before all others. Without `exact`, the line numbers of the innermost frame are
    ignored: ranks in the same loop are one group.
    """
    groups: dict[object, list[_Process]] = {}
    for process in _processes(stacks):
        groups.setdefault(_key(process, exact), []).append(process)
    folded = [_group(each) for each in groups.values()]
    return sorted(
        folded, key=lambda group: (not set(first).intersection(group.members), _order(group))
    )


def _order(group: StackGroup) -> tuple[bool, int, bool, Member]:
    waits = group.main.wait is not None and group.main.wait.kind in OTHERS
    host, rank = group.members[0]
    return bool(group.command), len(group.members), waits, (f"{rank:09}{host}", rank)


def _key(process: _Process, exact: bool) -> object:
    main = process.main
    frames = [frame._replace(function=_plain(frame.function)) for frame in main.frames]
    if frames and not exact:
        frames[0] = frames[0]._replace(line=0)
    # the kind of wait is left out: a rank that wakes up for a moment to poll is in the same group
    return process.command, tuple(frames), process.note


def _plain(function: str) -> str:
    """Return a function's name without its class: py-spy writes `Class.method`."""
    return function.rpartition(".")[2]


def _group(processes: list[_Process]) -> StackGroup:
    processes = sorted(processes, key=lambda p: (p.member[1], p.member[0]))
    first = processes[0]
    waiting = next((p.main for p in processes if p.main.wait), first.main)
    lines = {p.main.frames[0].line for p in processes if p.main.frames}
    return StackGroup(
        members=_members(processes),
        main=waiting,
        lines=tuple(sorted(lines)),
        others=_others(processes),
        command=first.command,
        count=len(processes),
        note=first.note,
        collectives=_collectives(processes),
    )


def _collectives(processes: Iterable[_Process]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    ranks: dict[str, list[int]] = {}
    for process in processes:
        if process.collective:
            ranks.setdefault(process.collective, []).append(process.member[1])
    return tuple((text, tuple(several)) for text, several in ranks.items())


def _members(processes: Iterable[_Process]) -> tuple[Member, ...]:
    return tuple(dict.fromkeys(process.member for process in processes))


def _others(processes: list[_Process]) -> tuple[Others, ...]:
    found: dict[tuple[Frame, ...], tuple[Thread, list[_Process]]] = {}
    for process in processes:
        for thread in process.others:
            found.setdefault(thread.frames, (thread, []))[1].append(process)
    return tuple(Others(thread, _members(those)) for thread, those in found.values())


# ------------------------------------------------------------ reading the nodes' answers


def _processes(stacks: Told) -> Iterable[_Process]:
    for host, ranks in stacks.items():
        for rank, processes in ranks.items():
            for index, process in enumerate(processes):
                command = process.get("command") or "child process"
                yield _process((host, int(rank)), command if index else "", process)


def _process(member: Member, command: str, told: Mapping[str, Any]) -> _Process:
    state, call = str(told.get("state", "")), str(told.get("syscall", ""))
    threads = told.get("threads") or []
    mains = [thread for thread in threads if thread.get("main")]
    others = tuple(_thread(each) for each in threads if not each.get("main"))
    if mains:
        main, note = _in_collective(_thread(mains[0], state, call), told.get("collective")), ""
    else:
        main, note = Thread("", (), wait((), state, call)), _note(told)
    return _Process(
        member=member,
        command=command,
        main=main,
        others=others,
        note=note,
        collective=_collective(told.get("collective")),
    )


def _in_collective(main: Thread, collective: Mapping[str, Any] | None) -> Thread:
    """Return the main thread; one that waits inside of PyTorch, for what no frame shows, waits for
    the collective that it is in: a backward pass waits so for those of its threads."""
    if collective is None or collective["completed"] or main.wait is None or not main.frames:
        return main
    in_native_code = wait(main.frames) is None
    if not in_native_code or not _PYTORCH.search(main.frames[0].file):
        return main
    return replace(main, wait=Wait(WaitKind.COLLECTIVE, frame=0))


def _collective(told: Mapping[str, Any] | None) -> str:
    """Return the text of a collective as `run.collectives.with_collectives` tells it."""
    if not told:
        return ""
    verb = "last completed" if told["completed"] else "in"
    return one_line(f"{verb} {told['operation']}, number {told['seq']} of group {told['group']}")


def _thread(told: Mapping[str, Any], state: str = "", call: str = "") -> Thread:
    frames = tuple(Frame(str(f["file"]), int(f["line"]), f["function"]) for f in told["frames"])
    shown = _shown(frames)
    return Thread(str(told.get("name", "")), shown, wait(shown, state, call))


def _shown(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames without those that start a program, a thread or a child process.

    Frames outside the start of a forked child are its parent's.
    """
    for index, frame in enumerate(frames):
        start = frame.file.endswith("multiprocessing/process.py")
        if start and _plain(frame.function) == "_bootstrap":
            frames = frames[:index]
            break
    # `run` is hidden only at the start of a thread: a user's class may have a method of this name
    while frames and _starts_thread(frames[-1]):
        frames = frames[:-1]
    shown = tuple(frame for frame in frames if not _HIDDEN.search(frame.file))
    return shown or frames


def _starts_thread(frame: Frame) -> bool:
    return frame.file.endswith("threading.py") and _plain(frame.function) in _THREAD_START


def _note(told: Mapping[str, Any]) -> str:
    """Return what is known of a process without a stack."""
    state = str(told.get("state", ""))
    call, on = told.get("syscall", ""), told.get("on", "")
    where = f"{call} of {on}" if call and on else call or told.get("wchan", "")
    unknown = f"state {state}" if state else ""
    doing = [_STATES.get(state, unknown), f"in {where}" if where else ""]
    known = ", ".join(filter(None, doing))
    return "; ".join(filter(None, [known, str(told.get("error", ""))])) or "no information"


# ------------------------------------------------------------ for programs


def as_data(groups: Sequence[StackGroup]) -> list[dict[str, Any]]:
    """The groups as plain values, in the same order, with the ranks folded too."""
    return [{"who": who(group.members), **_plain_values(group)} for group in groups]


def _plain_values(value: Any) -> Any:
    """Return Structs and named tuples as objects, and other tuples as arrays."""
    if isinstance(value, Frame | Wait):
        return value._asdict()
    if isinstance(value, Struct):
        return _plain_values(asdict(value))
    if isinstance(value, dict):
        return {name: _plain_values(each) for name, each in value.items()}
    return [_plain_values(each) for each in value] if isinstance(value, tuple) else value


# ------------------------------------------------------------ text


def outcome_page(outcome: Outcome, width: int) -> str:
    """Return the stacks of a run that hung: those of the ranks that the others wait for first."""
    hang = outcome.reason.hang
    return page(fold(outcome.stacks, first=hang.ranks if hang is not None else ()), width)


def page(groups: Sequence[StackGroup], width: int | None = None) -> str:
    """Return the groups as text of at most `width` columns (None: 200), innermost frame first."""
    if not groups:
        return "no rank is running"
    return "\n\n".join("\n".join(_section(group, width or 200)) for group in groups)


def _section(group: StackGroup, width: int) -> list[str]:
    rows = textwrap.wrap(_head(group), width, subsequent_indent="    ")
    for text in _collective_rows(group):
        rows += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    rows += _rows(group.main, group.lines, width)
    waits = [other.thread.wait for other in group.others]
    idle = [wait.kind for wait in waits if wait is not None and wait.kind in IDLE]
    for other in group.others:
        if other.thread.wait is None or other.thread.wait.kind not in IDLE:
            rows += _other(other, group, width)
    if idle:
        kinds = ", ".join(dict.fromkeys(idle))
        rows.append(f"  and {counted(len(idle), 'idle thread')}: {kinds}")
    return rows


def _collective_rows(group: StackGroup) -> list[str]:
    """Return for example `in all_reduce, number 4 of group default_pg`, per collective."""
    if len(group.collectives) == 1:
        text, ranks = group.collectives[0]
        if len(ranks) == len(group.members):
            return [text]
    return [f"{_numbered(ranks)}: {text}" for text, ranks in group.collectives]


def _numbered(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_spans(ranks)}"


def _other(other: Others, group: StackGroup, width: int) -> list[str]:
    where = "" if other.members == group.members else f" of {who(other.members)}"
    title = f"  thread {one_line(other.thread.name) or 'unnamed'}{where}:"
    rows = textwrap.wrap(title, width, subsequent_indent="    ")
    return [*rows, *(f"  {row}" for row in _rows(other.thread, (), width - 2))]


def _head(group: StackGroup) -> str:
    """Return for example `ranks 0-5,7 on node[1-3] wait: collective`."""
    whose = f"{group.count} x {one_line(group.command)}, child of " if group.command else ""
    what = f": {one_line(group.note)}" if group.note else ""
    if not what and group.main.wait is not None:
        one = max(len(group.members), group.count) == 1
        what = f" {'waits' if one else 'wait'}: {group.main.wait.kind}"
    return f"{whose}{who(group.members)}{what}"


def _rows(thread: Thread, lines: tuple[int, ...], width: int) -> list[str]:
    """Return a row per frame: function, place, and at the frame that waits, what it waits for."""
    names = [one_line(frame.function) for frame in thread.frames]
    column = min(max(map(len, names), default=0), max(width // 3, 12))
    rows = []
    for index, (frame, name) in enumerate(zip(thread.frames, names, strict=True)):
        seen = lines if index == 0 and len(lines) > 1 else (frame.line,)
        mark = thread.wait.kind if thread.wait and thread.wait.frame == index else ""
        tail = f":{_spans(seen)}" if any(seen) else ""
        end = f"{tail}  <- {mark}" if mark else tail
        room = width - 6 - column - len(end)
        place = _from_the_end(one_line(_short(frame.file)), room)
        sign = ">" if mark else " "
        rows.append(f"  {sign} {_cut(name, column):<{column}}  {place}{end}")
    return rows


def _short(file: str) -> str:
    """Return a path without the directories above its package."""
    return _LIBRARY.sub("", file)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _from_the_end(text: str, room: int) -> str:
    room = max(room, 12)
    return text if len(text) <= room else f"...{text[3 - room :]}"


def who(members: Sequence[Member]) -> str:
    """Return for example `ranks 0-5,7 on node[1-3]`."""
    ranks = sorted({rank for _, rank in members})
    hosts = fold_names(host for host, _ in members)
    return f"{_numbered(ranks)} on {hosts}"


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
