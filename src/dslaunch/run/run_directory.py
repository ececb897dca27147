"""The run directory: plan, facts, events, a log per rank, the result. Private to this user."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dslaunch.errors import UsageError
from dslaunch.json_text import json_text
from dslaunch.launch.command import quote
from dslaunch.node import private
from dslaunch.transport.transports.local import EMULATED

if TYPE_CHECKING:
    from dslaunch.run.events import Event

CLUSTER, EVENTS, RESULT, LOCK = "cluster.json", "events.jsonl", "result.json", "lock"
RUNS = "runs"
"""The directory of the records in the state directory."""
LOGS, SOURCES, ORDER = "logs", "sources", "order"
"""The logs of ranks and launchers; whose they are; in which order their pieces arrived."""
SUBMISSION = "DSLAUNCH_SUBMISSION"
"""The environment variable with the token of the SLURM job in whose script a run was started."""
ARRIVAL = struct.Struct("<dHBI")
"""One piece of output: seconds since the epoch, the low bits of its log (a line of `sources`), its
stream (1 or 2) with the other bits above it, how many bytes. In the order of arrival."""
STREAM_BITS, LOW_BITS = 2, 16
MOST_LOGS = 1 << (8 - STREAM_BITS + LOW_BITS)
"""Logs of one run that `ARRIVAL` can number."""
OPEN_LOGS = 128
"""Logs that may be open at a time, at least; with more ranks the longest unused is closed."""
WORTH_A_WRITE = 64 * 1024
"""Characters of a text that are written at a time, at least."""


def numbered(name: str, count: int) -> str:
    """Return the name of a file of one attempt: `plan.json`, `plan-1.json`."""
    return f"{name}-{count}.json" if count else f"{name}.json"


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of all records: `$DSLAUNCH_STATE`, else the XDG state directory."""
    if environ.get("DSLAUNCH_STATE"):
        return Path(environ["DSLAUNCH_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "dslaunch"


def own_directories(environ: Mapping[str, str]) -> frozenset[Path]:
    """Return where dslaunch writes on this machine, without links: the state directory, and its
    parts, since it may be the directory of a script too."""
    state = Path(os.path.realpath(state_directory(environ)))
    return frozenset((state, state / RUNS, state / EMULATED))


def runs_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory with the records of runs that were started from this machine.

    Raises UsageError if others own the state directory or can write to it.
    """
    state = state_directory(environ)
    try:
        about = state.stat()
    except OSError:  # not there yet, or reported when it is used
        return state / RUNS
    if about.st_uid != os.geteuid():
        raise UsageError(
            f"state directory {state}: user {about.st_uid} owns it",
            hint="set $DSLAUNCH_STATE to a directory that you own",
        )
    if about.st_mode & 0o022 and environ.get("DSLAUNCH_STATE"):
        raise UsageError(
            f"state directory {state}: other users can write to it",
            hint=f"run: chmod go-w {quote(str(state))}",
        )
    if about.st_mode & 0o022:  # made under a permissive umask; no other user owns it
        private.make_directory(str(state.resolve()))
    return state / RUNS


class RunDirectory:
    """Writes a run's directory. A full disk loses the record, never the run."""

    def __init__(self, directory: Path, open_logs: int = OPEN_LOGS) -> None:
        """`open_logs`: that are kept open at a time; with more ranks the longest unused is
        closed, and to open it again takes as long as to write 30 pieces."""
        self.directory = directory
        self._open_logs = max(open_logs, OPEN_LOGS)
        self.failure: OSError | None = None
        self._logs: OrderedDict[str, FileIO] = OrderedDict()
        private.make_directory(str(directory.parent.resolve()))
        directory.mkdir(mode=0o700)
        # held for as long as this process lives, so that others can tell that it does
        self._lock = _private(directory / LOCK)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._numbers: dict[str, int] = {}
        self._log_directory = str(directory / LOGS)
        self._events = _private(directory / EVENTS)
        self._event_appender = private.Appender(
            partial(private.append_whole, self._events.fileno())
        )
        self._sources = _private(directory / SOURCES)
        self._order = _private(directory / ORDER)

    def write(self, name: str, text: str) -> None:
        """Write one whole file; it replaces that of an earlier attempt."""
        self.write_pieces(name, (text,))

    def write_pieces(self, name: str, pieces: Iterable[str]) -> None:
        """Write one whole file, as `write` does, of a text in pieces."""
        try:
            write_private_pieces(self.directory / name, pieces)
        except OSError as error:
            self.failure = error

    def event(self, event: Event) -> None:
        """Append an event; on a full disk it is written later."""
        try:
            self._event_appender.add(json_text(event.as_data()).encode() + b"\n")
        except OSError as error:
            self.failure = error

    def output(self, host: str, rank: int | None, data: bytes, when: float, stream: int) -> None:
        """Append to the log of a rank, or of the node's launcher, and note when it was written."""
        name = log_name(host, rank)
        try:
            log = self._log(name)
            if name not in self._numbers:
                private.append_whole(self._sources.fileno(), name.encode() + b"\n")
                self._numbers[name] = len(self._numbers)
            entry = arrival(when, self._numbers[name], stream, len(data))
            private.append_whole(log.fileno(), data)
            try:
                private.append_whole(self._order.fileno(), entry)
            except OSError:
                private.take_back(log.fileno(), len(data))
                raise
        except OSError as error:
            self.failure = error

    def close(self, result: Mapping[str, Any]) -> None:
        """Write the result and close all files."""
        self.write(RESULT, json_text(result, indent=2) + "\n")
        self.let_go()

    def let_go(self) -> None:
        """Close all files; what is recorded stays."""
        try:
            self._event_appender.retry()
        except OSError as error:
            self.failure = error
        for file in (self._lock, self._events, self._sources, self._order, *self._logs.values()):
            try:
                file.close()
            except OSError as error:
                self.failure = error

    def _log(self, name: str) -> FileIO:
        if name not in self._logs:
            if len(self._logs) >= self._open_logs:
                self._logs.popitem(last=False)[1].close()
            if not self._numbers:  # the first log
                (self.directory / LOGS).mkdir(mode=0o700, exist_ok=True)
            self._logs[name] = _private(f"{self._log_directory}/{name}")
        self._logs.move_to_end(name)
        return self._logs[name]


def arrival(when: float, log: int, stream: int, size: int) -> bytes:
    """Return the entry of one piece of output in `order`. Raises OSError for too many logs."""
    if log >= MOST_LOGS:
        raise OSError(errno.EOVERFLOW, f"more than {MOST_LOGS} logs")
    low, high = log & ((1 << LOW_BITS) - 1), log >> LOW_BITS
    return ARRIVAL.pack(when, low, stream | high << STREAM_BITS, size)


def arrivals(entries: bytes) -> Iterator[tuple[float, int, int, int]]:
    """Yield time, log, stream and size of each of several entries of `order`."""
    for when, low, stream_and_high, size in ARRIVAL.iter_unpack(entries):
        log = low | stream_and_high >> STREAM_BITS << LOW_BITS
        yield when, log, stream_and_high & ((1 << STREAM_BITS) - 1), size


def log_name(host: str, rank: int | None) -> str:
    """Return the name of the log of a rank, or of a node's launcher."""
    return f"{host}.log" if rank is None else f"{host}.{rank}.log"


LONGEST_RANK = 7
"""Digits."""


def log_source(name: str) -> tuple[str, int | None]:
    """Return whose log it is: host, and rank or None."""
    stem = name.removesuffix(".log")
    host, dot, rank = stem.rpartition(".")
    is_rank = dot and rank.isascii() and rank.isdecimal() and len(rank) <= LONGEST_RANK
    return (host, int(rank)) if is_rank else (stem, None)


def is_held(directory: Path) -> bool:
    """Return whether the launcher that records there is running."""
    try:
        fd = private.open_file(str(directory / LOCK), os.O_RDONLY)
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
    """Write a whole private file; it replaces an existing one. Raises OSError."""
    write_private_pieces(path, (text,))


def write_private_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a whole private file, as `write_private` does, of a text in pieces."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    try:
        with _private(new) as file:
            for text in _gathered(pieces):
                private.append_whole(file.fileno(), text.encode())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)  # a full disk needs the space of the first pieces
        raise


def _gathered(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a text in pieces that are worth a write."""
    gathered: list[str] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= WORTH_A_WRITE:
            yield "".join(gathered)
            gathered, size = [], 0
    yield "".join(gathered)


def read_private(path: Path, most: int) -> bytes:
    """Return the content of a file that only this user can have written.

    Raises OSError, also for a file that others own or can write, and for a larger one.
    """
    fd = private.open_file(str(path), os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if about.st_mode & 0o022:
            raise PermissionError(1, "other users can write it", str(path))
        if about.st_size > most:
            raise OSError(27, f"it has more than {most} bytes", str(path))
        return file.read(most)


def read_begin(path: Path, most: int) -> bytes:
    """Return the first bytes of a file of this user; see `open_recorded`. Raises OSError."""
    with open_recorded(path) as file:
        return file.read(most)


def open_recorded(path: Path) -> BinaryIO:
    """Open a file of this user, which others may read and write, for reading.

    Raises OSError, also for a link and for what is not a regular file: to open a named pipe would
    wait for its writer.
    """
    return os.fdopen(private.open_file(str(path), os.O_RDONLY), "rb")


def _private(path: Path | str) -> FileIO:
    """Open a private file for appending, without a buffer."""
    fd = private.open_file(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return os.fdopen(fd, "wb", buffering=0)
