"""What a node keeps on disk of each run, for those who ask about it later: files of this user."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil

from dslaunch.node import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

    Answer = Dict[str, Any]

ABOUT, EVENTS, JOURNAL, LOCK, CRASH = "run.json", "events.jsonl", "journal", "lock", "crash.json"
DETACHED = ".local/state/dslaunch/nodes"
"""Below the home: where runs that nobody watches keep what they say."""


def hold(directory: str) -> int:
    """Lock a run's directory for as long as this process or a child of it lives."""
    fd = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def held(directory: str) -> bool:
    """Whether the agent of a run's directory is alive."""
    try:
        fd = os.open(os.path.join(directory, LOCK), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def append_event(directory: str, event: Answer) -> None:
    """Note an event; a full disk costs the note only."""
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(directory, EVENTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, json.dumps(event).encode() + b"\n")
        finally:
            os.close(fd)


def write(directory: str, name: str, value: Answer) -> None:
    """Write one JSON file; a full disk costs the file only."""
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)


def runs(above: List[str], host: str) -> List[Answer]:
    """All runs of a node of that name that left a directory, the living and the ended."""
    found = []
    for directory in directories(above, host):
        about = _json(os.path.join(directory, ABOUT))
        if about is not None:
            events = _events(os.path.join(directory, EVENTS))
            living = held(directory)
            left = [] if living else sorted(processes.tagged(about["run"], host))
            found.append(
                {**about, "directory": directory, "living": living, "events": events, "left": left}
            )
    return found


def directories(above: List[str], host: str) -> List[str]:
    """The directories of a node's runs: `<run>.<host>.<anything>` in each of `above`."""
    pattern = f"*.{glob.escape(host)}.*"
    return sorted(
        path for place in above for path in glob.glob(os.path.join(glob.escape(place), pattern))
    )


def clean(above: List[str], host: str, run: Optional[str], ended: bool) -> Answer:
    """End what dead agents left behind, and remove their directories.

    Only of `run` if given. With `ended`, what detached runs that are over have kept goes too.
    """
    killed: List[int] = []
    removed: List[str] = []
    for found in runs(above, host):
        if found["living"] or run not in (None, found["run"]):
            continue
        processes.send(found["left"], 9)
        killed += found["left"]
        if ended or found["left"] or not found.get("detached"):
            shutil.rmtree(found["directory"], ignore_errors=True)
            removed.append(found["run"])
    return {"killed": killed, "removed": removed}


def _json(path: str) -> Optional[Answer]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _events(path: str) -> List[Answer]:
    found = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
    except OSError:
        pass
    return found
