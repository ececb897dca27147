"""Run a short program as the agent starts a rank: with the same command line, variables and working
directory. Processes that it started are ended with it."""

from __future__ import annotations

import errno
import os
import select
import time

from dslaunch.node import installed, paths, processes, same_python

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import signal
    from typing import Any, Dict, List

    Answer = Dict[str, Any]
else:
    import _signal as signal  # why not `signal`: see paths.py

REPORT = "DSLAUNCH_REPORT"
"""The variable that stands in a command's words for the file that the program reports into."""
INSTALLED = "DSLAUNCH_INSTALLED"
"""The variable that stands in a command's words for the text of `installed.py`."""
HALF = paths.MOST_TEXT // 4
"""Bytes that are kept of the beginning and of the end of each stream."""
LOOK = 0.05
"""Seconds between two checks whether the program has ended while its children still write."""
LAST_OUTPUT = 2.0
"""Seconds in which the last output of a program is read, while its remaining processes write on."""
FAREWELL = 0.5
"""Seconds for the remaining processes to end after TERM."""


def run(told: Answer, home: str) -> Answer:
    """Run `argv` with `env` in `cwd` for at most `seconds`.

    Returns `code` (None: it exceeded the time and was killed), `out`, `err`, and `report`: what was
    written to the file that REPORT names. `tidy` also ends processes that detached themselves. A
    missing working directory would be created by the run, empty; `/` replaces it. `python_at`: the
    word of `argv` with the interpreter that runs `installed`, if what stands before it only starts
    it. Raises OSError if the program cannot be started; its `filename` is the program.
    """
    environment = {**os.environ, **told["env"]}
    cwd = os.path.join(home, told["cwd"])
    cwd = cwd if os.path.isdir(cwd) else "/"
    report, ours = os.pipe()
    out, outs = os.pipe()
    err, errs = os.pipe()
    os.set_inheritable(ours, True)
    words = {**environment, REPORT: f"/dev/fd/{ours}", INSTALLED: _text_of_installed()}
    pipes = {report: b"", out: b"", err: b""}
    argv = [paths.expanded(word, words) for word in told["argv"]]
    python = argv[told["python_at"] :] if "python_at" in told else []
    here = os.open(".", os.O_PATH)
    try:
        os.chdir(cwd)
        if python and same_python.is_same(python[0], environment):
            child = Program(same_python.start(python, environment, outs, errs, report=ours))
        else:
            child = Program.spawned(argv, environment, out=outs, err=errs)
    except OSError:
        _close(*pipes)
        raise
    finally:
        os.fchdir(here)
        _close(ours, outs, errs, here)
    late = not _listen(child, pipes, time.monotonic() + told["seconds"])
    code = child.end()
    if told.get("tidy"):
        _end_tagged(told["env"])
    _close(*pipes)
    said, printed, errors = (data.decode(errors="replace") for data in pipes.values())
    return {"code": None if late else code, "out": printed, "err": errors, "report": said}


def _text_of_installed() -> str:
    """Return the program, of which the node has the text: to send it in each question would take
    the launcher more time and memory than all else that it asks thousands of nodes."""
    loader: Any = installed.__loader__
    text: str = loader.get_source(installed.__name__)
    return text


def _close(*pipes: int) -> None:
    for pipe in pipes:
        os.close(pipe)


class Program:
    """A program in its own process group. `subprocess` could start it too, and would take a node
    longer to import than the program to run."""

    def __init__(self, pid: int) -> None:
        """`pid`: the process, a child of this one."""
        self.pid = pid

    @classmethod
    def spawned(cls, argv: List[str], environment: Dict[str, str], out: int, err: int) -> Program:
        """Start a program. `out`, `err`: where it writes to. Raises OSError if it cannot be
        started."""
        pid = os.posix_spawn(
            _executable(argv[0], environment),
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setpgroup=0,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these
        )
        return cls(pid)

    def has_ended(self) -> bool:
        """Return whether it has ended. Its status is left where it is: until `end` takes it, no
        other process or group can get its number."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> int:
        """Kill what runs of its process group; return its exit code, or the negative number of the
        signal that ended it."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # all its processes have ended
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return -os.WTERMSIG(status)
        return os.WEXITSTATUS(status)


def _executable(name: str, environment: Dict[str, str]) -> str:
    """Return the path of a program. Raises FileNotFoundError."""
    if "/" in name:
        return name
    found = paths.program(name, environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return found


def _listen(child: Program, pipes: Dict[int, bytes], deadline: float) -> bool:
    """Read all pipes until the program has ended; return whether it did in time. Its remaining
    processes may hold the pipes open or write on, and are not waited for."""
    open_ones = set(pipes)
    ended = False
    while time.monotonic() < deadline:
        if not ended and child.has_ended():
            ended, deadline = True, time.monotonic() + LAST_OUTPUT
        wait = 0 if ended else min(LOOK, max(0.0, deadline - time.monotonic()))
        ready, _, _ = select.select([*open_ones], [], [], wait)
        for pipe in ready:
            piece = os.read(pipe, 65536)
            pipes[pipe] = _shortened(pipes[pipe] + piece)
            open_ones -= set() if piece else {pipe}
        if ended and not ready:
            return True
    return ended


def _shortened(data: bytes) -> bytes:
    """Return the beginning and the end of what was written."""
    return data if len(data) <= 2 * HALF else data[:HALF] + data[-HALF:]


def _end_tagged(env: Dict[str, str]) -> None:
    """Send TERM, then KILL, to processes of this node: others may be emulated on the machine."""
    deadline = time.monotonic() + FAREWELL
    run, host = env[processes.RUN_ID], env[processes.HOST]

    def is_tagged(pid: int) -> bool:
        return processes.is_tagged(pid, run, host)

    while left := processes.tagged(run, host):
        late = time.monotonic() >= deadline
        processes.send(left, signal.SIGKILL if late else signal.SIGTERM, is_tagged)
        if late:
            return
        time.sleep(LOOK)
