"""Runs a short program as the agent starts a rank: the same command line, variables and working
directory. What it has started is ended with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from dslaunch.node import paths, processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict

    Answer = Dict[str, Any]

REPORT = "DSLAUNCH_REPORT"
"""The variable that stands in a command's words for the file into which the program reports."""
HALF = paths.MOST_TEXT // 4
"""Bytes that are kept of the beginning, and of the end, of what is written to each stream."""
LOOK = 0.05
"""Seconds between two looks whether the program has ended, though what it left still writes."""
FAREWELL = 0.5
"""Seconds that what it left has to end by itself."""


def run(told: Answer, home: str) -> Answer:
    """Run `argv` with `env` in `cwd` for at most `seconds`.

    Gives `code` (None: it was late, and ended), `out`, `err`, and `report`: what was written to
    the file that REPORT names. `tidy` also ends what detached itself from the program. A working
    directory that is not there yet is made by the run and empty; `/` stands for it. Raises OSError
    where the program cannot be started; its `filename` is the program.
    """
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
    """Read all pipes until the program has ended; False: it did not in time. What is left of it
    may hold the pipes open, and is not waited for."""
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
    """The beginning and the end of what was written."""
    return data if len(data) <= 2 * HALF else data[:HALF] + data[-HALF:]


def _end(child: "subprocess.Popen[bytes]", told: Answer) -> None:
    """End the program's session, and with `tidy` all that carries its run's id."""
    with contextlib.suppress(OSError):  # nothing may be left of it
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if told.get("tidy"):
        _end_tagged(told["env"])


def _end_tagged(env: Dict[str, str]) -> None:
    """TERM, then KILL. Other nodes may be emulated on this machine."""
    deadline = time.monotonic() + FAREWELL
    while left := processes.tagged(env[processes.RUN_ID], env[processes.HOST]):
        late = time.monotonic() >= deadline
        processes.send(left, signal.SIGKILL if late else signal.SIGTERM)
        if late:
            return
        time.sleep(LOOK)
