"""Where the program on a node begins: an agent under its guardian, or the way to one that is there.

The guardian is the agent's parent and does nothing but wait for it. Should the agent be killed, the
guardian ends all that it started, and notes for the launcher how the agent ended. An agent that is
stopped it wakes. Both leave the connection's session at once: they are no children of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from dslaunch.node import bridge, directories, frames, peer, processes, run_files, survey
from dslaunch.node.agent import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict

LOOK = 0.05
NOTE_TIMEOUT = 8.0
"""Seconds for a guardian to end what a dead agent has left."""
NO_AGENT, STOPPED = 3, 4
"""Exit codes for a launcher that wants to join an agent: there is none; it was stopped."""


def guard(agent: int, run: str, host: str) -> None:
    """Wait for the agent; if it was killed, end all that it started. Never returns."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = wait_for(agent)
    while status:
        living = processes.descendants(os.getpid()) | processes.tagged(run, host)
        if not living:
            break
        processes.send(living, signal.SIGKILL)
        time.sleep(LOOK)
    if status:
        home = os.path.expanduser("~")
        for directory in directories.find(home, host, run):
            run_files.end_group(directory, host)
        run_files.remove_run(run, host, home, keep=(run_files.ABOUT, run_files.GONE))
        if os.WIFSIGNALED(status):
            killed = {"how": "killed", "signal": os.WTERMSIG(status)}
            note = {"event": "gone", "time": time.time(), **killed}
            for directory in directories.find(home, host, run):
                run_files.write(directory, run_files.GONE, note)
    os._exit(1 if status else 0)


def wait_for(agent: int) -> int:
    """Wait until the agent has ended, and wake it whenever it is stopped; its wait status."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            if pid == agent:
                processes.resume([agent])
        elif pid == agent:
            return status


def be_guardian(
    run: str,
    host: str,
    times: Dict[str, float],
    first: socket.socket,
    surveyor: survey.Surveyor,
) -> None:
    """Become the guardian of a new agent, in a session of our own. Never returns."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    processes.become_subreaper()
    guardian = os.getpid()
    agent = os.fork()
    if agent:
        first.close()
        surveyor.leave()
        os.dup2(null, 2)
        guard(agent, run, host)
    processes.become_subreaper()
    served = Agent(run, host, times, guardian, surveyor)
    try:
        served.serve(first)
    except Exception as error:  # noqa: BLE001 - its trace may hold a secret: it is masked
        import traceback

        served.crashed(error, traceback.format_exc())
        os._exit(1)
    processes.resume([guardian])  # if it is stopped, it would stay
    os._exit(0)


def main(arguments: Dict[str, Any]) -> None:
    """Start the agent of a run, or find one that is there, and join our streams with it."""
    run, host = arguments["run"], arguments["host"]
    if arguments["join"]:
        connection = find(run, host)
        if arguments["hold"]:
            connection.sendall(frames.pack_message({"op": "coming", "ssh": peer.connection()}))
    else:
        surveyor = survey.Surveyor()
        connection, other = socket.socketpair()
        if os.fork() == 0:
            connection.close()
            be_guardian(run, host, arguments["times"], other, surveyor)
        other.close()
        surveyor.leave()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # neither of them is waited for
    bridge.bridge(connection)
    os._exit(0)


def find(run: str, host: str) -> socket.socket:
    """Connect to the agent of a run.

    Leaves with exit code NO_AGENT if there is none, after saying how it ended if that is known;
    with STOPPED if it was stopped, and wakes it.
    """
    home = os.path.expanduser("~")
    for directory in directories.find(home, host, run):
        if processes.resume_programs() and run_files.held(directory):
            os._exit(STOPPED)
        with contextlib.suppress(OSError):
            return bridge.dial(directory)
        say_how_it_ended(directory, host)
    run_files.clean(home, host, run, ended=False)  # where the guardian was killed as well
    os.write(2, b"no agent of this run\n")
    os._exit(NO_AGENT)


def say_how_it_ended(directory: str, host: str) -> None:
    """Tell the launcher what the guardian of an agent has noted, once that is done with its work;
    what remains is removed."""
    deadline = time.monotonic() + NOTE_TIMEOUT
    while run_files.guardian_lives(directory, host) and time.monotonic() < deadline:
        time.sleep(LOOK)
    note = run_files.gone(directory)
    if note is not None:
        note["over"] = not run_files.guardian_lives(directory, host)
        os.write(1, frames.GREETING + frames.pack_message(note))
        os.close(1)
        directories.remove(directory)
