"""Run a short program as the agent starts a rank: with the same command line, variables and working
directory. Processes that it started are ended with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from dslaunch.node import paths, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import subprocess
    from typing import Any, Dict

    Answer = Dict[str, Any]

REPORT = "DSLAUNCH_REPORT"
"""The variable that stands in a command's words for the file that the program reports into."""
HALF = paths.MOST_TEXT // 4
"""Bytes that are kept of the beginning and of the end of each stream."""
LOOK = 0.05
"""Seconds between two checks whether the program has ended while its children still write."""
FAREWELL = 0.5
"""Seconds for the remaining processes to end after TERM."""


def run(told: Answer, home: str) -> Answer:
    """Run `argv` with `env` in `cwd` for at most `seconds`.

    Returns `code` (None: it exceeded the time and was killed), `out`, `err`, and `report`: what was
    written to the file that REPORT names. `tidy` also ends processes that detached themselves. A
    missing working directory would be created by the run, empty; `/` replaces it. Raises OSError if
    the program cannot be started; its `filename` is the program.
    """
    import subprocess  # 3 ms

    environment = {**os.environ, **told["env"]}
    report, ours = os.pipe()
    words = {**environment, REPORT: f"/dev/fd/{ours}"}
    cwd = os.path.join(home, told["cwd"])
    try:
        child = subprocess.Popen(
            [paths.expanded(word, words) for word in told["argv"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd if os.path.isdir(cwd) else "/",
            env=environment,
            pass_fds=[ours],
            start_new_session=True,
        )
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(ours)
    assert child.stdout is not None
    assert child.stderr is not None
    pipes = {report: b"", child.stdout.fileno(): b"", child.stderr.fileno(): b""}
    late = not _listen(child, pipes, time.monotonic() + told["seconds"])
    _end(child, told)
    said, out, err = (data.decode(errors="replace") for data in pipes.values())
    os.close(report)
    child.stdout.close()
    child.stderr.close()
    return {"code": None if late else child.returncode, "out": out, "err": err, "report": said}


def _listen(child: "subprocess.Popen[bytes]", pipes: "Dict[int, bytes]", deadline: float) -> bool:
    """Read all pipes until the program has ended; return whether it did in time. Its remaining
    processes may hold the pipes open, and are not waited for."""
    open_ones = set(pipes)
    while time.monotonic() < deadline:
        ended = child.poll() is not None
        wait = 0 if ended else min(LOOK, max(0.0, deadline - time.monotonic()))
        ready, _, _ = select.select([*open_ones], [], [], wait)
        for pipe in ready:
            piece = os.read(pipe, 65536)
            pipes[pipe] = _shortened(pipes[pipe] + piece)
            open_ones -= set() if piece else {pipe}
        if ended and not ready:
            return True
    return False


def _shortened(data: bytes) -> bytes:
    """Return the beginning and the end of what was written."""
    return data if len(data) <= 2 * HALF else data[:HALF] + data[-HALF:]


def _end(child: "subprocess.Popen[bytes]", told: Answer) -> None:
    """Kill the program's session, and with `tidy` all processes with its run's id."""
    with contextlib.suppress(OSError):  # all its processes may have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if told.get("tidy"):
        _end_tagged(told["env"])


def _end_tagged(env: Dict[str, str]) -> None:
    """Send TERM, then KILL, to processes of this node: others may be emulated on the machine."""
    deadline = time.monotonic() + FAREWELL
    while left := processes.tagged(env[processes.RUN_ID], env[processes.HOST]):
        late = time.monotonic() >= deadline
        processes.send(left, signal.SIGKILL if late else signal.SIGTERM)
        if late:
            return
        time.sleep(LOOK)
