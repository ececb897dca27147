"""Writes the records of a rank in a rehearsal, and replaces functions by ones that note something.

A part of `hook_rehearsal.py`. A note is a function that gets the recorder, and then what there is
to note: most often the arguments of a call, and its result.
"""

import contextlib
import functools
import json
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, List, Optional, Set

MASK = "***"
SHORTEST = 4
"""Characters of a secret at the end of a text that was cut from which on they are masked."""
MOST_RECORDS, MOST_BYTES, LONGEST = 2000, 2 << 20, 120_000
"""Records and bytes of one rank; characters of one record."""
MOST_TEXT = 1000
MOST_ERROR = 300
"""Characters of the error of a note that failed."""
LONGEST_PATH, LONGEST_NAME = 4096, 200


class Recorder:
    """What this process has recorded."""

    def __init__(self, path: str, steps: int, world: "Optional[int]", secrets: "List[str]") -> None:
        """Raises OSError if the working directory is gone."""
        self.path = path
        self.steps = steps
        """Optimizer steps after which the rank is held."""
        self.world = world
        """Ranks of the real run, if these are more; None: as many as here."""
        self.secrets = [form for secret in secrets for form in _spellings(secret)]
        """Spellings of values that no record may have."""
        self.pid = os.getpid()
        self.cwd = os.getcwd()
        """Where the script was started, which may change its working directory."""
        self.records = self.bytes = 0
        self.noting: Set[int] = set()
        """Threads that make a note, which must not be noted itself."""

    def write(self, kind: str, **values: "Any") -> None:
        """Append a record, as a whole or not at all. Raises OSError, TypeError, ValueError."""
        if os.getpid() != self.pid or self.records >= MOST_RECORDS:
            return
        line = _line({"kind": kind, **_masked(values, self.secrets)})
        if len(line) > LONGEST or self.bytes + len(line) > MOST_BYTES:
            line = _line({"kind": "unrecorded", "what": kind, "error": "too long"})
        self.records += 1
        self.bytes += len(line)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            written = os.write(fd, line)
            if written < len(line):  # the next record must not be taken for the rest of this one
                os.ftruncate(fd, os.fstat(fd).st_size - written)
                raise OSError("no space left for a record")
        finally:
            os.close(fd)


def _line(record: "Any") -> bytes:
    return json.dumps(record, default=text).encode() + b"\n"


_current: "Optional[Recorder]" = None
_compiling: "List[Callable[[], bool]]" = []
"""`torch.compiler.is_compiling`, once it is there."""


def current() -> "Optional[Recorder]":
    """Return the recorder of this process; None: nothing is recorded."""
    return _current


def record_with(recorder: "Optional[Recorder]") -> None:
    """Make notes with this recorder from now on; None: make no more."""
    global _current
    _current = recorder


def leave_out_compiling(is_compiling: "Callable[[], bool]") -> None:
    """Note no call during which a function of torch says that it is compiling."""
    _compiling.append(is_compiling)


# ------------------------------------------------------------ noting


def note(work: "Callable[..., None]", *args: "Any") -> None:
    """Make a note; what fails there is noted instead."""
    recorder, thread = _current, get_ident()
    if recorder is None or thread in recorder.noting or _is_capturing():
        return
    recorder.noting.add(thread)
    try:
        work(recorder, *args)
    except Exception as error:  # noqa: BLE001 - it must not become an error of the job
        _note_failure(recorder, work, error)
    finally:
        recorder.noting.discard(thread)


def _note_failure(recorder: Recorder, work: "Callable[..., None]", error: Exception) -> None:
    function = getattr(work, "func", work)
    what = getattr(function, "__name__", "?").strip("_")
    reason = f"{type(error).__name__}: {error}"[:MOST_ERROR]
    # a full disk, a directory that is gone
    with contextlib.suppress(Exception):
        recorder.write("unrecorded", what=what, error=reason)


def _is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, which reading a value would break."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # not imported completely
    if cuda is None or not hasattr(cuda, "is_current_stream_capturing"):
        return False
    in_use = cuda.is_available() and cuda.is_initialized()
    return bool(in_use and cuda.is_current_stream_capturing())


def watch(
    owner: "Any",
    name: str,
    *,
    before: "Optional[Callable[..., None]]" = None,
    after: "Optional[Callable[..., None]]" = None,
) -> None:
    """Replace a function, so that `before` gets its arguments and `after` also its result.

    Where torch.compile traces it, nothing is noted: the graph would break. Until then it may use no
    global name, since torch would import this module to look it up.
    """
    function = getattr(owner, name, None)
    if function is None:
        return
    compiling = _compiling

    @functools.wraps(function)
    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        if compiling and compiling[0]():
            return function(*args, **kwargs)
        if before is not None:
            note(before, args, kwargs)
        result = function(*args, **kwargs)
        if after is not None:
            note(after, args, kwargs, result)
        return result

    setattr(owner, name, watched)


def argument(args: "Any", kwargs: "Any", place: int, name: str) -> "Any":
    """Return an argument of a call, by its place or by its name; None: it was left out."""
    return args[place] if len(args) > place else kwargs.get(name)


# ------------------------------------------------------------ secrets


def _spellings(secret: str) -> "List[str]":
    """Return a secret as it is, in JSON, and in representations of both."""
    in_json = json.dumps(secret)[1:-1]
    forms = (secret, in_json, repr(secret)[1:-1], repr(in_json)[1:-1])
    return list(dict.fromkeys(forms))


def _masked(value: "Any", secrets: "List[str]") -> "Any":
    """Return a value of a record with the secrets in its texts masked. The agent masks more
    spellings before a record leaves the node; here they are kept from its disk."""
    if isinstance(value, dict):
        return {key: _masked(each, secrets) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, secrets) for each in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    masked = value if isinstance(value, str) else text(value)
    for secret in secrets:
        masked = _without_beginning(masked.replace(secret, MASK), secret)
    return masked


def _without_beginning(cut: str, secret: str) -> str:
    """Return a text that may have been cut within a secret, without the part that is left."""
    for count in range(min(len(secret) - 1, len(cut)), SHORTEST - 1, -1):
        if cut.endswith(secret[:count]):
            return cut[:-count] + MASK
    return cut


# ------------------------------------------------------------ values of records


def text(value: "Any") -> str:
    """Return what JSON cannot hold as a short text."""
    return str(value)[:MOST_TEXT]


def setting(value: "Any") -> "Any":
    """Return a setting as a number, a switch or a short text; of an enumeration, its value."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return text(getattr(value, "value", value))


def variable(name: str) -> "Optional[int]":
    """Return a number in a variable of the environment; None: it has none."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


def integer(value: "Any") -> "Optional[int]":
    """Return a number that the launcher takes; None: another value."""
    return value if isinstance(value, int) and abs(value) < 2**62 else None


def class_name(value: "Any") -> str:
    """Return the name of a value's class."""
    return type(value).__name__[:LONGEST_NAME]


def path_of(file: "Any") -> str:
    """Return a path as an absolute one without links. Raises TypeError, ValueError."""
    return os.path.realpath(os.fsdecode(os.fspath(file)))[:LONGEST_PATH]
