"""The run directory: plan, facts, events, a log per rank, the result. For this user alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from dslaunch.errors import UsageError
from dslaunch.launch.command import quote
from dslaunch.node import private
from dslaunch.run.events import Event

CLUSTER, RESULT, LOCK = "cluster.json", "result.json", "lock"
SUBMISSION = "DSLAUNCH_SUBMISSION"
"""The environment variable with the token of the SLURM job in whose script a run was started."""
ORDER = struct.Struct("<dHBI")
"""One piece of output: seconds since the epoch, which log (its line in `sources`), which stream
(1 or 2), how many bytes. In the order of arrival."""
Piece = tuple[float, int, int, int]
"""An unpacked ORDER."""
LOOK = 0.2
OPEN_LOGS = 128
"""Logs kept open at a time; with more ranks the longest unused is closed."""


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where dslaunch keeps what outlives a command: `$DSLAUNCH_STATE`, else as XDG says."""
    if environ.get("DSLAUNCH_STATE"):
        return Path(environ["DSLAUNCH_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "dslaunch"


def runs_directory(environ: Mapping[str, str]) -> Path:
    """Where the runs that were started from this machine are recorded.

    Raises UsageError if others own the state directory or can write to it.
    """
    state = state_directory(environ)
    try:
        about = state.stat()
    except OSError:  # not there yet, or reported when it is used
        return state / "runs"
    if about.st_uid != os.geteuid():
        raise UsageError(
            f"state directory {state}: user {about.st_uid} owns it",
            hint="set $DSLAUNCH_STATE to a directory of yours",
        )
    if about.st_mode & 0o022 and environ.get("DSLAUNCH_STATE"):
        raise UsageError(
            f"state directory {state}: other users can write to it",
            hint=f"run: chmod go-w {quote(str(state))}",
        )
    if about.st_mode & 0o022:  # made under a permissive umask; no other user owns it
        private.make_directory(str(state.resolve()))
    return state / "runs"


class RunDirectory:
    """Writes a run's directory. A full disk costs the record, never the run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failure: OSError | None = None
        self._logs: OrderedDict[str, IO[bytes]] = OrderedDict()
        private.make_directory(str(directory.parent.resolve()))
        directory.mkdir(mode=0o700)
        # held for as long as this process lives, so that others can tell that it does
        self._lock = _private(directory / LOCK)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._numbers: dict[str, int] = {}
        self._events = _private(directory / "events.jsonl")
        self._sources = _private(directory / "sources")
        self._order = _private(directory / "order")

    def write(self, name: str, text: str) -> None:
        """Write one whole file, in the place of that of an earlier attempt."""
        try:
            write_private(self.directory / name, text)
        except OSError as error:
            self.failure = error

    def event(self, event: Event) -> None:
        """Append an event; it can be read at once."""
        try:
            self._events.write(json.dumps(event.as_dict()).encode() + b"\n")
        except OSError as error:
            self.failure = error

    def output(self, host: str, rank: int | None, data: bytes, when: float, stream: int) -> None:
        """Append to the log of a rank, or of the node's launcher, and note when it was written."""
        name = f"{host}.log" if rank is None else f"{host}.{rank}.log"
        try:
            self._log(name).write(data)
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                self._sources.write(name.encode() + b"\n")
            self._order.write(ORDER.pack(when, self._numbers[name], stream, len(data)))
        except OSError as error:
            self.failure = error

    def close(self, result: Mapping[str, Any]) -> None:
        """Write the result and let go of all files."""
        self.write(RESULT, json.dumps(result, indent=2) + "\n")
        self.let_go()

    def let_go(self) -> None:
        """Close all files; what is recorded stays."""
        for file in (self._lock, self._events, self._sources, self._order, *self._logs.values()):
            try:
                file.close()
            except OSError as error:
                self.failure = error

    def _log(self, name: str) -> IO[bytes]:
        if name not in self._logs:
            if len(self._logs) >= OPEN_LOGS:
                self._logs.popitem(last=False)[1].close()
            logs = self.directory / "logs"
            logs.mkdir(mode=0o700, exist_ok=True)
            self._logs[name] = _private(logs / name)
        self._logs.move_to_end(name)
        return self._logs[name]


def read_output(
    directory: Path, *, follow: Callable[[], bool] | None = None
) -> Iterator[tuple[str, int | None, int, float, bytes]]:
    """All recorded output: host, rank, stream, time, bytes; in the order in which it was written.

    With `follow` in the order of arrival, and at the end it waits for more for as long as that
    says.
    """
    files: dict[int, IO[bytes]] = {}
    order = _order(directory, follow) if follow else _by_time(_order(directory, lambda: False))
    with contextlib.ExitStack() as stack:
        for when, number, stream, size in order:
            if number not in files:
                name = (directory / "sources").read_text().splitlines()[number]
                files[number] = stack.enter_context((directory / "logs" / name).open("rb"))
            yield *_source(directory, number), stream, when, files[number].read(size)


def _by_time(order: Iterable[Piece]) -> list[Piece]:
    """Sorted by time; within a log as it is, also where a clock was set back meanwhile."""
    latest: dict[int, float] = {}
    timed = []
    for piece in order:
        latest[piece[1]] = max(piece[0], latest.get(piece[1], 0.0))
        timed.append((latest[piece[1]], piece))
    return [piece for _, piece in sorted(timed, key=itemgetter(0))]


def _order(directory: Path, follow: Callable[[], bool]) -> Iterator[Piece]:
    with contextlib.suppress(FileNotFoundError), (directory / "order").open("rb") as file:
        while True:
            going = follow()
            while len(piece := file.read(ORDER.size)) == ORDER.size:
                yield ORDER.unpack(piece)
            if not going:
                return
            file.seek(-len(piece), os.SEEK_CUR)
            time.sleep(LOOK)


def _source(directory: Path, number: int) -> tuple[str, int | None]:
    name = (directory / "sources").read_text().splitlines()[number].removesuffix(".log")
    host, dot, rank = name.rpartition(".")
    return (host, int(rank)) if dot and rank.isdigit() else (name, None)


def is_held(directory: Path) -> bool:
    """Whether the launcher that records there is alive."""
    try:
        fd = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def write_private(path: Path, text: str) -> None:
    """Write a whole file of this user alone, in the place of one that is there. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with _private(new) as file:
        file.write(text.encode())
    new.replace(path)


def read_private(path: Path, most: int) -> bytes:
    """The content of a file that this user alone can have written.

    Raises OSError, also for a file of others or that they can write, and for one that is larger.
    """
    fd = private.open_file(str(path), os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if about.st_mode & 0o022:
            raise PermissionError(1, "others can write it", str(path))
        if about.st_size > most:
            raise OSError(27, f"it has more than {most} bytes", str(path))
        return file.read(most)


def _private(path: Path) -> IO[bytes]:
    """Open a file of this user alone for appending; what is written is at once there to read."""
    fd = private.open_file(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return os.fdopen(fd, "wb", buffering=0)
