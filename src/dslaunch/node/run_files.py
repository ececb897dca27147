"""The files that a node keeps of each run, for later commands.

All are opened by `private`: files of other users under the same names are neither read nor removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from dslaunch.node import cgroup, directories, paths, private, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    Answer = Dict[str, Any]

ABOUT, EVENTS, JOURNAL, LOCK = "run.json", "events.jsonl", "journal", "lock"
AGENT, GUARDIAN = "agent", "guardian"
"""Key in ABOUT: the processes of the run's agent and its guardian."""
GROUP = "group"
"""Key in ABOUT: the control group of its processes, if there is one."""
HANG = "hang.json"
"""What the ranks of a detached run did when it made no progress."""
GONE = "gone.json"
"""How an agent ended that was killed or failed: written by its guardian, for the launcher."""
END_TIMEOUT, LOOK = 5.0, 0.02
"""Seconds for killed processes to end, and between two checks."""
YOUNG = 120.0
"""Seconds after the last change in a directory in which its run may be starting or ending."""
MOST_ABOUT, MOST_HANG = 1 << 20, 15 << 20
"""Bytes; a message has at most 16 MiB."""
MOST_EVENTS = 1 << 20
"""Bytes that are read from the beginning of the events, and as many from their end."""


def hold(directory: str) -> int:
    """Lock a run's directory for as long as this process or a child of it lives."""
    with private.opened(directory) as within:
        fd = private.open_file(LOCK, os.O_RDWR | os.O_CREAT, within)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def held(directory: str) -> bool:
    """Return whether a process holds the lock of a run's directory."""
    try:
        with private.opened(directory) as within:
            fd = private.open_file(LOCK, os.O_RDWR, within)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class EventFile:
    """The events of a run in its directory. On a full disk they are written later."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._appender = private.Appender(self._append)

    def add(self, event: Answer) -> None:
        """Append an event."""
        with contextlib.suppress(OSError):
            self._appender.add(json.dumps(event).encode() + b"\n")

    def retry(self) -> None:
        """Append the events for which there was no space."""
        with contextlib.suppress(OSError):
            self._appender.retry()

    def _append(self, lines: bytes) -> None:
        with private.opened(self._directory) as within:
            private.append(EVENTS, lines, within)


def write(directory: str, name: str, value: Answer) -> None:
    """Write one JSON file; on a full disk only the file is lost."""
    with contextlib.suppress(OSError), private.opened(directory) as within:
        private.write(name, json.dumps(value), within)


def these_processes(guardian: int) -> Answer:
    """Return which processes the agent, this one, and its guardian are, for ABOUT: their numbers,
    and when they started after which boot."""
    return {AGENT: _process(os.getpid()), GUARDIAN: _process(guardian)}


def guardian_lives(directory: str, host: str) -> bool:
    """Return whether the guardian lives that is noted in a run's directory."""
    return _is_alive((_about(directory, host) or {}).get(GUARDIAN))


def gone(directory: str) -> Optional[Answer]:
    """Return how the agent ended whose directory it is; None if that was not noted."""
    try:
        with private.opened(directory) as within:
            value = json.loads(private.read(GONE, within, MOST_ABOUT))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def runs(home: str, host: str) -> List[Answer]:
    """Return all runs of a node of that name that left a directory, the living and the ended."""
    found = []
    guardians: Dict[str, int] = {}
    groups: Dict[str, str] = {}
    for directory in directories.find(home, host):
        about = _about(directory, host)
        if about is not None:
            agent, guardian = about.pop(AGENT, None), about.pop(GUARDIAN, None)
            group = about.pop(GROUP, None)
            living = held(directory) or _is_alive(agent)
            if not living and cgroup.is_ours(group, about["run"]):
                groups[about["run"]] = group
            if not living and _is_alive(guardian):
                guardians[about["run"]] = guardian["pid"]
            found.append({**about, "directory": directory, "living": living})
    living_runs = {run["run"] for run in found if run["living"]}
    for run in found:
        # a copy of a living run's directory has no lock that is held
        over = run["run"] not in living_runs
        run["events"] = _events(run["directory"])
        run["left"] = sorted(processes.tagged(run["run"], host)) if over else []
        if over and run["run"] in groups:
            inside = processes.alive(cgroup.members(groups[run["run"]]))
            run["left"] = sorted({*run["left"], *inside})
        if over and run["run"] in guardians:  # whose agent is dead: all it did is done by `clean`
            run["left"].append(guardians[run["run"]])
    return found


def read_journal(home: str, host: str, run: str, position: int, most: int) -> Tuple[bytes, int]:
    """Return a piece of what a detached run has kept, and how large all of it is. A negative
    position counts from the end. Raises OSError."""
    for directory in directories.find(home, host, run):
        about = _about(directory, host)
        if about is not None and about["run"] == run:
            with private.opened(directory) as within:
                fd = private.open_file(JOURNAL, os.O_RDONLY, within)
            with os.fdopen(fd, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(position if position >= 0 else max(0, size + position))
                return file.read(most), size
    raise FileNotFoundError(2, "this run has no journal on this node")


def hang(home: str, host: str, run: str) -> Optional[Answer]:
    """Return what the ranks of a detached run did when it made no progress; None: it did, or that
    is not known."""
    for directory in directories.find(home, host, run):
        about = _about(directory, host)
        if about is not None and about["run"] == run:
            return _read_json(directory, HANG, MOST_HANG)
    return None


def clean(home: str, host: str, run: Optional[str], ended: bool) -> Answer:
    """End the processes of dead agents and remove their directories, only of `run` if given.

    With `ended`, the records of detached runs that have ended are removed too.
    """
    processes.resume_programs()
    killed: List[int] = []
    removed: List[str] = []
    all_runs = runs(home, host)
    living = {found["run"] for found in all_runs if found["living"]}
    for found in all_runs:
        if found["run"] in living or run not in (None, found["run"]):
            continue
        directory = found["directory"]
        processes.send(found["left"], 9, _left_of(directory, found["run"], host))
        end_group(directory, host)
        killed += found["left"]
        if ended or found["left"] or not found.get("detached"):
            directories.remove(directory)
            removed.append(found["run"])
    return {"killed": killed, "removed": removed}


def _left_of(directory: str, run: str, host: str) -> Callable[[int], bool]:
    """Return a check whether a process is left of a run whose agent is dead."""
    about = _about(directory, host) or {}
    group: Any = about.get(GROUP)
    guardian: Any = about.get(GUARDIAN)

    def is_left(pid: int) -> bool:
        if processes.is_tagged(pid, run, host):
            return True
        if cgroup.is_ours(group, run) and pid in cgroup.members(group):
            return True
        return _is_alive(guardian) and pid == guardian["pid"]

    return is_left


def sweep(home: str, host: str) -> List[str]:
    """Remove the temporary directories of runs that have certainly ended, and resume dslaunch's
    stopped programs; every new run on a node does that. Returns what was removed.

    Ended: no process holds the lock, agent and guardian are dead, no process has the run's id, and
    nothing has changed in the directory for a while, in which a launcher may ask how the agent
    ended.
    """
    processes.resume_programs()
    removed = []
    for directory in directories.find(home, host):
        if directories.is_lasting(directory, home) or held(directory) or _is_young(directory):
            continue
        about = _about(directory, host) or {}
        if _is_alive(about.get(AGENT)) or _is_alive(about.get(GUARDIAN)):
            continue
        run = directories.run_of(directory, host)
        if processes.tagged(run, host):
            continue
        end_group(directory, host)
        directories.remove(directory)
        removed.append(directory)
    return removed


def _is_young(directory: str) -> bool:
    try:
        return time.time() - os.stat(directory).st_mtime < YOUNG
    except OSError:
        return True


def end_group(directory: str, host: str) -> None:
    """Kill all processes in the control group of a run whose agent is dead, and remove the
    group."""
    about = _about(directory, host) or {}
    group = about.get(GROUP)
    if group is None or not cgroup.is_ours(group, str(about.get("run"))):
        return
    cgroup.kill(group)
    deadline = time.monotonic() + END_TIMEOUT
    while processes.alive(cgroup.members(group)) and time.monotonic() < deadline:
        time.sleep(LOOK)
    cgroup.remove(group)


def remove_run(run: str, host: str, home: str, keep: Tuple[str, ...] = ()) -> None:
    """Remove this run's directories with all that is in them but the files that `keep` names.

    In the lasting place, the records of a detached run stay.
    """
    kept = (ABOUT, EVENTS, JOURNAL, LOCK, GONE, HANG)
    for path in directories.find(home, host, run):
        directories.remove(path, keep=kept if directories.is_lasting(path, home) else keep)


# ------------------------------------------------------------ reading


def _about(directory: str, host: str) -> Optional[Answer]:
    """Return the record of the run of a directory; None without one that fits the name."""
    value = _read_json(directory, ABOUT, MOST_ABOUT)
    if value is None or not isinstance(value.get("run"), str):
        return None
    fits = os.path.basename(directory).startswith(f"{value['run']}.{host}.")
    return value if fits else None


def _read_json(directory: str, name: str, most: int) -> Optional[Answer]:
    """Return the object in a file of at most so many bytes; None if there is no such object."""
    try:
        with private.opened(directory) as within:
            value = json.loads(private.read(name, within, most))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _events(directory: str) -> List[Answer]:
    found = []
    for line in _event_lines(directory):
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                found.append(event)
    return found


def _event_lines(directory: str) -> Iterator[bytes]:
    """Yield the lines of the events; of very many the first and the last."""
    try:
        with private.opened(directory) as within:
            fd = private.open_file(EVENTS, os.O_RDONLY, within)
        with os.fdopen(fd, "rb") as file:
            yield from file.read(MOST_EVENTS).splitlines()
            rest = os.fstat(fd).st_size - MOST_EVENTS
            if rest > 0:
                file.seek(-min(rest, MOST_EVENTS), os.SEEK_END)
                yield from file.read(MOST_EVENTS).splitlines()
    except OSError:
        return


# ------------------------------------------------------------ processes


def _process(pid: int) -> Optional[Answer]:
    fields = processes.stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    boot = paths.text_of("/proc/sys/kernel/random/boot_id")
    return {"pid": pid, "started": fields[19], "boot": boot, "namespace": _namespace()}


def _namespace() -> str:
    """Return the PID namespace: process numbers of another one mean other processes."""
    return os.readlink("/proc/self/ns/pid")


def _is_alive(agent: Any) -> bool:
    """Return whether the process that wrote ABOUT lives, also where its lock cannot show it."""
    if not isinstance(agent, dict) or not isinstance(agent.get("pid"), int):
        return False
    return _process(agent["pid"]) == agent
