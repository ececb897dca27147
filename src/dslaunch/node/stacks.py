"""The stacks of all threads of the ranks' Python processes.

py-spy reads them where it is installed and permitted, without stopping the process. Elsewhere
Python's own faulthandler writes them: `hook_stacks.py` registers it in every Python process of a
run. It writes on a signal, into memory that only that process and the agent can open. The state of
/proc is read in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time

from dslaunch.node import paths, processes, procfs
from dslaunch.node.hook_stacks import NOTE, SIGNAL
from dslaunch.node.rank_hooks import ARCHIVE

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set

    Process = Dict[str, Any]

ANSWER = 1.0
"""Seconds for a process to begin writing after the signal."""
SHORTEST = 0.1
"""Seconds that a tool has at least, however little time is left."""
LOOK = 0.01
GONE = "it has ended"
MOST_FRAMES = 100
"""Of one thread; faulthandler has the same limit."""
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent")
_FRAME = re.compile(r'^  File "(.*)", line ([0-9]{1,9}|\?\?\?) in (.*)')
_OF_HOOKS = f"/{ARCHIVE}/"
_turn = threading.Lock()
_spies = threading.BoundedSemaphore(os.cpu_count() or 1)


class _NoStacksError(Exception):
    """The stacks of a process cannot be read in one of the ways; says why."""


# ------------------------------------------------------------ on request


def collect(pids: Dict[int, int], timeout: float) -> Dict[str, List[Process]]:
    """Return the processes of every rank, its own first, within `timeout` seconds. Never raises.

    `pids` is rank -> process. Of each process:
    `pid`, `command` in short, `state` (a letter of /proc/PID/stat), `wchan`, `syscall`, `on` (the
    file that it waits for), `stack` (the kernel's; for root only), of which what cannot be read
    is "", `tool` ("py-spy", "faulthandler" or "proc"), `threads` with `name`, `main` and `frames`
    (`file`, `line`, `function`, the innermost first), and where these are missing `error`.
    `computes`: a thread of it ran before and after these were read.
    """
    deadline = time.monotonic() + timeout
    families = _families(pids)
    told: Dict[int, Process] = {}
    if _turn.acquire(timeout=timeout / 2):
        try:
            _look_at_all([pid for family in families.values() for pid in family], told, deadline)
        finally:
            _turn.release()
    silent = {"state": "", "tool": "", "threads": [], "error": f"no answer in {timeout:g} s"}
    found = {r: [told.get(p, {"pid": p, **silent}) for p in f] for r, f in families.items()}
    return {
        str(rank): [each for each in every if each["pid"] == pids[rank] or not _gone(each)]
        for rank, every in found.items()
    }


def _gone(process: Process) -> bool:
    return bool(process.get("error") == GONE)


def _families(pids: Dict[int, int]) -> Dict[int, List[int]]:
    """Return the processes of each rank: its own, then those below it that are no other rank's."""
    children: Dict[int, List[int]] = {}
    for pid in sorted(processes.pids()):
        fields = processes.stat(pid)
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found = {rank: [pid] for rank, pid in sorted(pids.items())}
    for family in found.values():
        for pid in family:
            family += [child for child in children.get(pid, ()) if child not in pids.values()]
    return found


def _look_at_all(pids: List[int], told: Dict[int, Process], deadline: float) -> None:
    """Fill `told`. A thread that hangs, on /proc or a file, is left behind."""
    threads = [
        threading.Thread(target=_look, args=(pid, told, deadline), daemon=True) for pid in pids
    ]
    with contextlib.suppress(RuntimeError):  # no more threads can be started
        for thread in threads:
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(deadline - time.monotonic(), 0))


def _look(pid: int, told: Dict[int, Process], deadline: float) -> None:
    """Record the state in /proc, then the stacks."""
    base: Process = {"pid": pid, "state": "", "tool": "proc", "threads": []}
    try:
        base.update(procfs.tell(pid))
    except OSError:
        told[pid] = {**base, "error": GONE}
        return
    told[pid] = {**base, "error": "no stacks within the timeout"}
    running = procfs.running_threads(pid)
    python = procfs.PYTHON.match(os.path.basename(procfs.link(f"/proc/{pid}/exe")))
    if not python and _note_of(pid) is None:
        told[pid] = {**base, "error": "not a Python program"}
        return
    reasons = []
    for tool, ask in (("py-spy", _by_py_spy), ("faulthandler", _by_faulthandler)):
        try:
            threads = _from_here(pid, ask(pid, deadline))
            # not one that ran for a moment, such as that of our hooks which answers
            base["computes"] = bool(running & procfs.running_threads(pid))
            told[pid] = {**base, "tool": tool, "threads": threads}
            return
        except _NoStacksError as error:
            reasons.append(f"{tool}: {error}")
        except OSError as error:
            reasons.append(f"{tool}: {error.strerror or error}")
    told[pid] = {**base, "error": "; ".join(reasons)}


def _from_here(pid: int, threads: List[Process]) -> List[Process]:
    """Return the threads with paths as the process itself would write them: equal on all nodes.

    Threads and functions of our hooks (`rank_hooks.py`) are left out.
    """
    start = f"{procfs.link(f'/proc/{pid}/cwd')}/"
    threads = [thread for thread in threads if not _is_ours(thread["frames"][-1])]
    for thread in threads:
        # functions of ours around those of the program
        thread["frames"] = [frame for frame in thread["frames"] if not _is_ours(frame)]
        for frame in thread["frames"]:
            if len(start) > 1 and frame["file"].startswith(start):
                frame["file"] = frame["file"][len(start) :]
    return threads


def _is_ours(frame: Process) -> bool:
    return _OF_HOOKS in str(frame["file"])


# ------------------------------------------------------------ py-spy


def _by_py_spy(pid: int, deadline: float) -> List[Process]:
    """Return the stacks as py-spy reads them. Raises _NoStacksError, OSError.

    The process is not stopped (`--nonblocking`): if py-spy were killed while it stops a process
    that waits in the kernel, that process would stay stopped.
    """
    program = _find_py_spy(pid)
    if program is None:
        raise _NoStacksError("not installed")
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    # half of the time: the other way needs the rest
    limit = (deadline - time.monotonic()) / 2
    if not _spies.acquire(timeout=max(limit, 0)):
        raise _NoStacksError("no time")
    try:
        out, err = _output(command, limit)
    finally:
        _spies.release()
    try:
        # not the exit code: the agent collects every child that ends, and may be the first
        return _main_first([_spied(thread, pid) for thread in json.loads(out)])
    except (ValueError, LookupError, TypeError):
        lines = err.decode("utf-8", "replace").splitlines()
        raise _NoStacksError(lines[0][:200] if lines else "it failed") from None


def _find_py_spy(pid: int) -> Optional[str]:
    """Return the path of py-spy: on PATH, else beside the interpreter of the process."""
    first = procfs.read(f"/proc/{pid}/cmdline").partition("\0")[0]
    beside = [os.path.dirname(first), os.path.dirname(procfs.link(f"/proc/{pid}/exe"))]
    # a relative directory would mean our working directory
    places = [place for place in beside if place.startswith("/")]
    return paths.program("py-spy") or paths.program("py-spy", os.pathsep.join(places))


def _output(command: List[str], limit: float) -> "tuple[bytes, bytes]":
    """Return what a command writes within `limit` seconds. Raises _NoStacksError, OSError."""
    limit = max(limit, SHORTEST)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=pipe)
    try:
        return child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        # not `communicate` again: reading memory that waits for a disk does not end at once
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(ANSWER)
        raise _NoStacksError(f"no answer in {limit:.1f} s") from None
    finally:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _spied(thread: Any, pid: int) -> Process:
    frames = [
        {"file": str(f["filename"]), "line": int(f["line"]), "function": str(f["name"])}
        for f in thread["frames"][:MOST_FRAMES]
    ]
    name = str(thread.get("thread_name") or "")
    return {"name": name, "main": thread.get("os_thread_id") == pid, "frames": frames}


def _main_first(threads: List[Process]) -> List[Process]:
    threads = [thread for thread in threads if thread["frames"]]
    if not threads:
        raise _NoStacksError("no thread runs Python code")
    return sorted(threads, key=lambda thread: not thread["main"])


# ------------------------------------------------------------ faulthandler


def _by_faulthandler(pid: int, deadline: float) -> List[Process]:
    """Return the stacks as the process itself writes them. Raises _NoStacksError, OSError.

    It is sent the signal only if it has a handler for it and still holds the memory for the output:
    otherwise the signal would kill it, or the output would reach one of its own files.
    """
    note = _note_of(pid)
    if note is None:
        raise _NoStacksError("not armed")
    if not procfs.includes(procfs.status(str(pid))["SigCgt"], SIGNAL):
        raise _NoStacksError(f"the process removed the handler of signal {SIGNAL}")
    deaf = procfs.not_accepting(pid, SIGNAL)
    listener = _listener(pid, deaf)
    with open(note, "r+b") as file:
        file.truncate()
        # kill(2) prefers the thread that it is given: one that waits for a dead disk cannot answer
        os.kill(listener, SIGNAL)
        try:
            _wait_for_answer(pid, file.fileno(), deaf, deadline)
            return _main_first(parse(file.read().decode("utf-8", "replace")))
        finally:
            file.truncate(0)


def _note_of(pid: int) -> Optional[str]:
    """Return the descriptor that this very process writes its stacks into; None if it has none."""
    try:
        # its own number: the last one, if it has a PID namespace
        own = procfs.status(str(pid))["NSpid"].split()[-1]
        name = f"/memfd:{NOTE}:{own} (deleted)"
        opened = (f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))
        return next((path for path in opened if procfs.link(path) == name), None)
    except (OSError, LookupError):
        return None


def _listener(pid: int, deaf: Set[int]) -> int:
    """Return a thread that can answer, the main one if possible. Raises _NoStacksError, OSError."""
    tids = sorted({int(tid) for tid in os.listdir(f"/proc/{pid}/task")} - deaf)
    states = {tid: (processes.stat(tid) or "X")[0] for tid in tids}
    able = [tid for tid in tids if states[tid] in "RS"]
    if not able:
        seen = ", ".join(sorted(set(states.values()))) or "blocked"
        raise _NoStacksError(f"no thread can answer (state {seen})")
    return pid if pid in able else able[0]


def _wait_for_answer(pid: int, fd: int, deaf: Set[int], deadline: float) -> None:
    """Wait until the handler has finished writing: it blocks its signal until it returns."""
    answer_by = time.monotonic() + ANSWER
    while True:
        time.sleep(LOOK)
        written = os.fstat(fd).st_size
        busy = procfs.not_accepting(pid, SIGNAL) - deaf
        if written and not busy:
            return
        now = time.monotonic()
        if now > deadline:
            raise _NoStacksError("no answer in time")
        if not written and not busy and now > answer_by:
            raise _NoStacksError(f"the process handles signal {SIGNAL} in another way")


def parse(text: str) -> List[Process]:
    """Return the threads that faulthandler wrote, with frames, the innermost first."""
    found: List[Process] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            found.append({"name": thread[1] or "", "main": False, "frames": []})
        elif frame and found:
            number = int(frame[2]) if frame[2].isdigit() else 0
            place = {"file": frame[1], "line": number, "function": frame[3]}
            found[-1]["frames"].append(place)
    # the newest thread is written first, so the main one last, unless it has ended
    if found and found[-1]["frames"] and found[-1]["frames"][-1]["function"] != "_bootstrap":
        found[-1].update(main=True, name=found[-1]["name"] or "MainThread")
    return [thread for thread in found if thread["frames"]]
