"""The start of the program on a node: a new agent with its guardian, or a running agent.

The guardian is the agent's parent and only waits for it. If the agent is killed, the guardian ends
all that it started and records for the launcher how the agent ended. It resumes an agent that is
stopped. Both leave the connection's session at once, so that they outlive the connection.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from dslaunch.node import (
    agent_socket,
    bridge,
    directories,
    frames,
    gpu_meter,
    peer,
    processes,
    run_files,
)
from dslaunch.node.agent import Agent
from dslaunch.node.surveyor import Surveyor

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Optional

LOOK = 0.05
NOTE_TIMEOUT = 8.0
"""Seconds for a guardian to end the processes of a dead agent."""
NO_AGENT, STOPPED = 3, 4
"""Exit codes for a launcher that connects to a running agent: not found; it was stopped."""


def guard(agent: int, run: str, host: str) -> None:
    """Wait for the agent; if it was killed, end all that it started. Never returns."""
    signal.signal(signal.SIGTERM, lambda *_: processes.send([agent], signal.SIGTERM))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guardian = os.getpid()

    def is_of_run(pid: int) -> bool:
        return processes.is_below(pid, (guardian,)) or processes.is_tagged(pid, run, host)

    status = wait_for(agent)
    # there is no agent to pass it on to, and what follows must be completed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while status:
        living = processes.descendants(guardian) | processes.tagged(run, host)
        if not living:
            break
        processes.send(living, signal.SIGKILL, is_of_run)
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
    """Return the agent's wait status when it has ended; resume it whenever it is stopped."""
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
    timeouts: Dict[str, float],
    waits: bool,
    first: socket.socket,
    surveyor: Surveyor,
    gpus: Optional[gpu_meter.GpuMeter],
) -> None:
    """Become the guardian of a new agent, in a new session. Never returns."""
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
        if gpus is not None:
            gpus.leave()
        os.dup2(null, 2)
        guard(agent, run, host)
    processes.become_subreaper()
    served = Agent(
        run,
        host,
        timeouts=timeouts,
        guardian=guardian,
        waits=waits,
        surveyor=surveyor,
        gpus=gpus,
    )
    try:
        served.serve(first)
    except Exception as error:  # noqa: BLE001 - its trace may hold a secret: it is masked
        import traceback  # only where it is needed: 7 ms

        served.crashed(error, traceback.format_exc())
        os._exit(1)
    processes.resume([guardian])  # a stopped guardian would not notice the end
    os._exit(0)


def main(arguments: Dict[str, Any]) -> None:
    """Start the agent of a run, or find the running one, and copy between it and our streams."""
    run, host = arguments["run"], arguments["host"]
    if arguments["join"]:
        connection = find(run, host)
        if arguments["hold"]:
            connection.sendall(frames.pack_message({"op": "coming", "ssh": peer.connection()}))
    else:
        # the first: it must not hold the connection of another, whose end would not be noticed
        gpus = gpu_meter.GpuMeter() if gpu_meter.needed() else None
        surveyor = Surveyor()
        connection, other = socket.socketpair()
        if os.fork() == 0:
            connection.close()
            be_guardian(
                run,
                host,
                timeouts=arguments["timeouts"],
                waits=arguments["waits"],
                first=other,
                surveyor=surveyor,
                gpus=gpus,
            )
        other.close()
        surveyor.leave()
        if gpus is not None:
            gpus.leave()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no exit status of the two is collected
    bridge.bridge(connection)
    os._exit(0)


def find(run: str, host: str) -> socket.socket:
    """Connect to the agent of a run.

    Exits with code NO_AGENT if there is none, after reporting how it ended if that is known; with
    STOPPED if it was stopped, and resumes it.
    """
    home = os.path.expanduser("~")
    for directory in directories.find(home, host, run):
        if processes.resume_programs() and run_files.held(directory):
            os._exit(STOPPED)
        with contextlib.suppress(OSError):
            return agent_socket.dial(directory)
        say_how_it_ended(directory, host)
    run_files.clean(home, host, run, ended=False)  # where the guardian was killed as well
    os.write(2, b"no agent of this run\n")
    os._exit(NO_AGENT)


def say_how_it_ended(directory: str, host: str) -> None:
    """Send the launcher what the guardian of an agent has recorded, once the guardian has finished;
    remove the directory."""
    deadline = time.monotonic() + NOTE_TIMEOUT
    while run_files.guardian_lives(directory, host) and time.monotonic() < deadline:
        time.sleep(LOOK)
    note = run_files.gone(directory)
    if note is not None:
        note["over"] = not run_files.guardian_lives(directory, host)
        os.write(1, frames.GREETING + frames.pack_message(note))
        os.close(1)
        directories.remove(directory)
