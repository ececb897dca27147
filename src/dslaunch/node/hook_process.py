"""Notes hosts, files and the end of a rank's process: a part of `hook_rehearsal.py`."""

import atexit
import linecache
import os
import sys

from .hook_recorder import LONGEST_NAME, LONGEST_PATH, MOST_TEXT, note, path_of
from .hook_training import training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Set

    from .hook_recorder import Recorder

MOST_HOSTS = MOST_DIRECTORIES = 64
LONGEST_HOST = 253
"""Characters of a name in the DNS."""
_hosts: "Set[str]" = set()
_directories: "Set[str]" = set()
"""In which a file was opened for writing."""


def watch_process() -> None:
    """Note the hosts and files of this process from now on, and its end."""
    sys.addaudithook(_audited)
    atexit.register(note, _ended)


def _audited(event: str, args: "Any") -> None:
    """Note names that are resolved, files that are opened for writing, and the program that takes
    the place of this one."""
    if event == "socket.getaddrinfo":
        note(_resolved, args[0])
    elif event == "open" and _writes(args):
        note(_opened, args[0])
    elif event == "os.exec":
        note(_replaced, args[0])


def _writes(args: "Any") -> bool:
    mode, flags = args[1], args[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _resolved(recorder: "Recorder", host: "Any") -> None:
    name = os.fsdecode(host)[:LONGEST_HOST] if isinstance(host, (str, bytes)) else ""
    own = ("localhost", "", os.environ.get("MASTER_ADDR", ""), os.uname().nodename)
    if name in own or name in _hosts or len(_hosts) >= MOST_HOSTS:
        return
    _hosts.add(name)
    recorder.write("host", name=name)


def _opened(recorder: "Recorder", file: "Any") -> None:
    if not isinstance(file, (str, bytes, os.PathLike)):
        return
    path = path_of(file)
    directory = os.path.dirname(path)
    if path.startswith(("/dev/", "/proc/", "/sys/")) or "__pycache__" in path:
        return
    if directory in _directories or len(_directories) >= MOST_DIRECTORIES:
        return
    _directories.add(directory)
    recorder.write("written", path=path)


def _replaced(recorder: "Recorder", program: "Any") -> None:
    """Note that another program takes the place of this one, unless it cannot be started. If that
    starts this hook again, its records begin at its start."""
    recorder.write("replaced", program=path_of(program)[-LONGEST_NAME:])


def _ended(recorder: "Recorder") -> None:
    """Note that the script has ended, and the exception that ended it."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        recorder.write("exception", **_raised(error, sys.last_traceback, recorder.cwd))
    steps = max(training.counts.values(), default=0)
    recorder.write("ended", steps=steps, backwards=training.backwards)


def _raised(error: "Any", trace: "Any", cwd: str) -> "Dict[str, Any]":
    """Return an exception with the innermost line of the user's own code, which is below `cwd`."""
    found: Dict[str, Any] = {"file": None, "line": None}
    innermost = None
    while trace is not None:
        innermost = trace
        file = trace.tb_frame.f_code.co_filename
        path = os.path.join(cwd, file)
        own = path.startswith(cwd + os.sep) and "site-packages" not in path
        if own and not file.startswith("<"):
            found = {"file": os.path.relpath(path, cwd)[:LONGEST_PATH], "line": trace.tb_lineno}
        trace = trace.tb_next
    text = str(error) or _source_line(innermost)
    return {"error": type(error).__name__, "text": text[:MOST_TEXT], **found}


def _source_line(trace: "Any") -> str:
    """Return the line that raised an exception without a text, as many assertions of libraries do,
    with its place; empty: its source is not there."""
    if trace is None:
        return ""
    file = trace.tb_frame.f_code.co_filename
    line = linecache.getline(file, trace.tb_lineno).strip()
    return f"{line} ({os.path.basename(file)}:{trace.tb_lineno})" if line else ""
