"""The texts of a hang's verdict, and what to do: the one place where its codes become text. Pure.

They are here and not in `report/`, since the run record holds the message of the end too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dslaunch.cluster.nodeset import fold, ranks_text
from dslaunch.plural import counted
from dslaunch.preflight.xid import xid_text
from dslaunch.run.exit_text import signal_name
from dslaunch.run.hang_verdict import GpuError, HangCode, HangVerdict, Place, Side
from dslaunch.run.waits import FileLock, WaitKind

MOST_SIDES = 8
"""Sides of a mismatch that are named: a node may report thousands."""
MOST_SIZES = 3
"""Sizes of tensors that are shown of one side of a mismatch."""
_ABOUT: Mapping[HangCode, str] = {
    HangCode.DEAD: "{who} {has} exited{ending}",
    HangCode.EXITING: "{who} {has} ended the program and {waits} for its threads or processes",
    HangCode.STOPPED: "{who} {is_} stopped by a signal or a debugger{where}",
    HangCode.FILESYSTEM: "{who} {has} not entered it and {waits} for a file{on}{where}",
    HangCode.LOCK: "{who} {has} not entered it and {waits} for {lock}{where}",
    HangCode.DATALOADER: "{who} {has} not entered it and {waits} for the data loader{workers}"
    "{where}",
    HangCode.BUSY: "{who} {has} not entered it and {computes}{where}",
    HangCode.NOT_ENTERED: "{who} {has} not entered it{meanwhile}{where}",
    HangCode.GPU: "{gpus}; {who} {is_}{inside}",
    HangCode.GPU_BUSY: "the GPU of {who} has not begun it{where}",
    HangCode.NETWORK: "all have entered it and it does not complete{pairs}",
    HangCode.ONE_WAY: "every rank is in it, and none in its counterpart",
    HangCode.RENDEZVOUS: "more ranks are expected, or ranks have different master addresses",
    HangCode.UNKNOWN: "all have entered it and it does not complete",
}
_WITHOUT_COLLECTIVE: Mapping[HangCode, str] = {
    HangCode.FILESYSTEM: "{who} {waits} for a file{on}{where}",
    HangCode.LOCK: "{who} {waits} for {lock}{where}",
    HangCode.DATALOADER: "{who} {waits} for the data loader{workers}{where}",
    HangCode.BUSY: "{who} {computes}{where}",
    HangCode.SLOW: "no rank waits for another one; {who} {is_}{inside}",
    HangCode.NOT_ENTERED: "{who} {is_}{inside}",
    HangCode.UNKNOWN: "it is not known what the ranks wait for",
}
_AFTER_SIDES: Mapping[HangCode, str] = {
    HangCode.NETWORK: "; the process group is not complete{pairs}",
    HangCode.ONE_WAY: "; they wait for each other",
}
_MEANWHILE: Mapping[WaitKind, str] = {
    WaitKind.NETWORK: " and {waits} for a network connection",
    WaitKind.CHILD_PROCESS: " and {waits} for a child process",
}
_HINTS: Mapping[HangCode, str] = {
    HangCode.DEAD: "let a rank exit with a code other than 0 if it cannot continue; look for "
    "`sys.exit` and `break` that depend on the rank",
    HangCode.EXITING: "all ranks must make the same number of steps; look for an exception in the "
    "output of the rank, and for `break`, `return` and `sys.exit` that depend on the rank",
    HangCode.STOPPED: "continue the process with `kill -CONT`, or look for what stops it: a "
    "debugger or a job control signal",
    HangCode.FILESYSTEM: "check the file system on the node: `timeout 5 stat PATH`, "
    "`dmesg | grep -i nfs`, `df`",
    HangCode.LOCK: "look for a lock that is never released, or that a killed process has left; of "
    "PyTorch's extension builds remove the file `lock` below ~/.cache/torch_extensions",
    HangCode.DATALOADER: "look at the data set and the workers: `dslaunch stacks` shows them; try "
    "`num_workers=0`, or a `timeout` of the DataLoader",
    HangCode.BUSY: "look for a loop that does not end, or work that only this rank does; raise "
    "--hang-timeout if it is to take so long",
    HangCode.NOT_ENTERED: "look for code that only some ranks run: the others wait for it; raise "
    "--hang-timeout if it is to take so long",
    HangCode.MISMATCH: "all ranks must call the same collectives in the same order with equal "
    "sizes; look for a condition that depends on the rank or its data, fewer batches, and an "
    "exception that is caught; DistributedDataParallel calls broadcast and all_reduce itself",
    HangCode.GPU_BUSY: "look for a kernel before it that does not end, or takes long: "
    "CUDA_LAUNCH_BLOCKING=1 makes the line that starts it wait",
    HangCode.NETWORK: "check the network between the nodes: `dslaunch preflight --tier deep`, "
    "firewalls, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; with --env TORCH_NCCL_ENABLE_TIMING=1, "
    "GPUs that have not begun it are named too",
    HangCode.GPU: "check the node with `nvidia-smi` and `dslaunch preflight`, drain it, and reset "
    "the GPU or reboot the node; look up the number in NVIDIA's Xid catalog",
    HangCode.ONE_WAY: "let one rank of each pair receive first while the other one sends, or use "
    "batch_isend_irecv, which does both at once",
    HangCode.RENDEZVOUS: "take rank, world size and master address from the environment, as "
    "`init_process_group()` without arguments does: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
    HangCode.SLOW: "raise --hang-timeout if a step is to take so long; `dslaunch stacks` shows "
    "what the ranks compute",
    HangCode.UNKNOWN: "`dslaunch stacks` shows what every rank does",
}


_WAIT_HINTS: Mapping[WaitKind, str] = {
    WaitKind.NETWORK: "check that the node reaches that service: proxy, firewall, offline mode; "
    "give the request a timeout",
    WaitKind.CHILD_PROCESS: "look at what the child process does; one whose output is not read "
    "blocks when the pipe is full: use `communicate`, or a `timeout`",
    WaitKind.QUEUE: "look for the thread or process at the other end of the queue, which may have "
    "failed or been killed; give `get` and `put` a `timeout`",
}
"""Of `not-entered` and `lock`, by what the rank waits for."""
_ALL_ENTERED = (HangCode.NETWORK, HangCode.UNKNOWN)
_ROOTED = {"broadcast": "src", "scatter": "src", "gather": "dst", "reduce": "dst"}
"""Operations of one rank, and the argument that names it."""


def hang_hint(verdict: HangVerdict) -> str:
    """Return what to do about a hang."""
    if verdict.code in _ALL_ENTERED and not verdict.unreachable and verdict.operation in _ROOTED:
        argument = _ROOTED[verdict.operation]
        same = f"check that all ranks give {verdict.operation} the same `{argument}`"
        return f"{same}; {_HINTS[verdict.code]}"
    if _is_about_groups(verdict):
        return (
            "all ranks must call new_group for the same groups in the same order, also for "
            "groups that they are no members of"
        )
    of_one_rank = verdict.code in (HangCode.NOT_ENTERED, HangCode.LOCK)
    if of_one_rank and verdict.wait is not None and verdict.wait in _WAIT_HINTS:
        return _WAIT_HINTS[verdict.wait]
    lock = verdict.lock
    if lock is not None and lock.rank in verdict.waiting:
        return "let the rank release the lock before a collective: it waits for the others there"
    if lock is not None and lock.pid is not None:
        process = f"process {lock.pid} on {verdict.hosts[0]}"
        return f"see what {process} does, for example with `ps` or `py-spy dump`: it has the lock"
    return _HINTS[verdict.code]


def hang_text(verdict: HangVerdict) -> str:
    """Return what the ranks wait for, in one line."""
    if verdict.sides or verdict.code is HangCode.MISMATCH:
        sides = [_side(side, verdict) for side in verdict.sides[:MOST_SIDES]]
        if _is_about_groups(verdict):
            sides.append(_waiting(verdict))
        more = len(verdict.sides) - MOST_SIDES
        if more > 0:
            sides.append(f"and {more} more")
        return "; ".join(sides) + _filled(_AFTER_SIDES.get(verdict.code, ""), verdict)
    waiting = _waiting(verdict)
    texts = _ABOUT if waiting and verdict.code in _ABOUT else {**_ABOUT, **_WITHOUT_COLLECTIVE}
    return "; ".join(part for part in (waiting, _filled(texts[verdict.code], verdict)) if part)


def _waiting(verdict: HangVerdict) -> str:
    if not verdict.waiting:
        return ""
    verb = "waits" if len(verdict.waiting) == 1 else "wait"
    operation = verdict.operation or "a collective"
    return (
        f"{ranks_text(verdict.waiting)} {verb} in {operation}{_in_brackets(verdict.waiting_place)}"
    )


def _filled(text: str, verdict: HangVerdict) -> str:
    several = len(verdict.ranks) > 1
    waits = "wait" if several else "waits"
    where = place_text(verdict.place)
    return text.format(
        who=_who(verdict.ranks),
        has="have" if several else "has",
        is_="are" if several else "is",
        waits=waits,
        meanwhile=_MEANWHILE.get(verdict.wait, "").format(waits=waits) if verdict.wait else "",
        computes="compute" if several else "computes",
        where=f": in {where}" if where else "",
        inside=f" in {where}" if where else " in unknown code",
        on=f" ({verdict.on})" if verdict.on else "",
        lock="a queue" if verdict.wait is WaitKind.QUEUE else f"a lock{_lock(verdict.lock)}",
        ending=_ending(verdict),
        workers=f" ({counted(verdict.workers, 'worker')} blocked)" if verdict.workers else "",
        pairs=_pairs(verdict.unreachable),
        gpus=_gpus(verdict.gpus),
    )


def _gpus(errors: Iterable[GpuError]) -> str:
    """Return which GPUs have reported which errors."""
    places: dict[tuple[str, str], list[int]] = {}
    for each in errors:
        places.setdefault((each.host, each.bus), []).append(each.xid)
    return "; ".join(
        f"the GPU at {bus} on {host} has reported "
        + ", ".join(xid_text(number) for number in dict.fromkeys(numbers))
        for (host, bus), numbers in places.items()
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return which nodes cannot connect to which; those with the same targets are one part."""
    targets: dict[str, list[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, []).append(target)
    sources: dict[str, list[str]] = {}
    for source, several in targets.items():
        sources.setdefault(fold(several), []).append(source)
    return "".join(f"; {fold(each)} cannot connect to {names}" for names, each in sources.items())


def _lock(lock: FileLock | None) -> str:
    """Return which lock it is, and who holds it."""
    if lock is None:
        return ""
    if lock.pid is None:
        return f" ({lock.file})"
    of = f" of rank {lock.rank}" if lock.rank is not None else ""
    return f" ({lock.file}, held by process {lock.pid}{of}: {lock.command})"


def _ending(verdict: HangVerdict) -> str:
    if verdict.signal is not None:
        return f" (killed by {signal_name(verdict.signal)})"
    return f" (exit code {verdict.exit_code})" if verdict.exit_code is not None else ""


def _is_about_groups(verdict: HangVerdict) -> bool:
    """Return whether the sides have made a process group of other ranks."""
    return any(side.members for side in verdict.sides)


def _side(side: Side, verdict: HangVerdict) -> str:
    verb = "is" if len(side.ranks) == 1 else "are"
    same = len({each.operation for each in verdict.sides}) < len(verdict.sides)
    groups = {each.group for each in verdict.sides if each.group}
    what = side.operation
    if side.peer is not None:
        direction = "from" if what.startswith("recv") else "to"
        what += f" {direction} rank {side.peer}"
    if len(groups) > 1 and side.group:
        what += f" of group {side.group}"
    elif side.root is not None and side.operation in _ROOTED:
        what += f" with {_ROOTED[side.operation]}={side.root}"
    elif same and side.sizes:
        what += f" of {_tensors(side)}"
    hosts = {rank: host for host, rank in verdict.ranks}
    on = fold(hosts[rank] for rank in side.ranks) if set(side.ranks) <= hosts.keys() else ""
    who = f"{ranks_text(side.ranks)} on {on}" if on else ranks_text(side.ranks)
    if side.members:
        has = "has" if len(side.ranks) == 1 else "have"
        return f"{who} {has} called {side.operation} with {ranks_text(side.members)}"
    return f"{who} {verb} in {what}{_in_brackets(side.place)}"


def _tensors(side: Side) -> str:
    dtypes = [*side.dtypes, *("?" for _ in side.sizes)]
    shown = [
        f"{dtype}[{', '.join(map(str, sizes))}]"
        for dtype, sizes in zip(dtypes, side.sizes[:MOST_SIZES], strict=False)
    ]
    more = ["..."] if len(side.sizes) > MOST_SIZES else []
    return ", ".join([*shown, *more])


def place_text(place: Place | None) -> str:
    """Return for example `save_checkpoint (train.py:41)`; outside of functions `train.py:41`."""
    if place is None:
        return ""
    name = place.function.partition(".<locals>")[0]
    return _line(place) if name == "<module>" else f"{name} ({_line(place)})"


def _in_brackets(place: Place | None) -> str:
    return f" ({_line(place)})" if place is not None else ""


def _line(place: Place) -> str:
    return f"{place.file}:{place.line}" if place.line else place.file


def _who(sources: Iterable[tuple[str, int]]) -> str:
    several = list(sources)
    if not several:
        return "no rank"
    return f"{ranks_text(rank for _, rank in several)} on {fold(host for host, _ in several)}"
