"""The run directory: plan, facts, events, a log per rank, the result. For this user alone."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from dslaunch.run.events import Event

OPEN_LOGS = 128
"""Logs kept open at a time; with more ranks the longest unused is closed."""


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where dslaunch keeps what outlives a command: `$DSLAUNCH_STATE`, else as XDG says."""
    if environ.get("DSLAUNCH_STATE"):
        return Path(environ["DSLAUNCH_STATE"])
    base = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "dslaunch"


class Record:
    """Writes a run's directory. A full disk costs the record, never the run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failure: OSError | None = None
        self._logs: OrderedDict[str, IO[bytes]] = OrderedDict()
        directory.mkdir(mode=0o700, parents=True)
        self._events = _private(directory / "events.jsonl")

    def write(self, name: str, text: str) -> None:
        """Write one whole file."""
        try:
            with _private(self.directory / name) as file:
                file.write(text.encode())
        except OSError as error:
            self.failure = error

    def event(self, event: Event) -> None:
        """Append an event; it can be read at once."""
        try:
            self._events.write(json.dumps(event.as_dict()).encode() + b"\n")
        except OSError as error:
            self.failure = error

    def output(self, host: str, rank: int | None, data: bytes) -> None:
        """Append to the log of a rank, or of the node's launcher."""
        name = f"{host}.log" if rank is None else f"{host}.{rank}.log"
        try:
            self._log(name).write(data)
        except OSError as error:
            self.failure = error

    def close(self, result: Mapping[str, Any]) -> None:
        """Write the result and let go of all files."""
        self.write("result.json", json.dumps(result, indent=2) + "\n")
        for file in (self._events, *self._logs.values()):
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


def _private(path: Path) -> IO[bytes]:
    """Open a file of this user alone for appending; what is written is at once there to read."""
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0
    )
