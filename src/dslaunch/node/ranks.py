"""The processes of one node: the ranks themselves, or a launcher that starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time

from dslaunch.node import cgroup, frames, paths, processes
from dslaunch.node.joining import INTERVAL as JOIN_INTERVAL
from dslaunch.node.joining import Joining
from dslaunch.node.launched_ranks import SWEEP_INTERVAL, LaunchedRanks
from dslaunch.node.postmortem import Postmortem
from dslaunch.node.rank_output import RankOutput
from dslaunch.node.streams import STDERR, STDOUT, Pipe, make_rank_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set

    from dslaunch.node.agent import Agent

LOOK = 1.0
"""Seconds between two looks at ranks that have joined: an event announces what happens then."""


class Ranks:
    """The processes of a `start` message, from the first start to the last end."""

    def __init__(
        self,
        message: frames.Message,
        environment: Dict[str, str],
        agent: Agent,
        group: Optional[str],
    ) -> None:
        """`group`: the control group that all processes are started in, if there is one."""
        self.specs: List[Dict[str, Any]] = message["processes"]
        self.expected = range(message["first_rank"], message["first_rank"] + message["slots"])
        self.environment = environment
        self.group = group
        self.agent = agent
        self.children: Dict[int, "subprocess.Popen[bytes]"] = {}
        self.rank_of: Dict[int, int] = {}
        self.has_launcher = any(spec["rank"] is None for spec in self.specs)
        """Whether a launcher starts the ranks."""
        self.launched = LaunchedRanks(agent, self.expected, self.children, self.report)
        """Without a launcher there are none."""
        self.output = RankOutput(agent, self.launched.born)
        self.joining = Joining(message["master_port"], len(self.expected))
        self.postmortem = Postmortem()
        self.cwd = "/"
        self.launcher_waits_for: Set[int] = set()
        """Ranks that were asked to end; the launcher is asked when they have ended."""

    # ------------------------------------------------------------ start

    def start(self, cwd: str) -> None:
        """Start every process; those that cannot be started are reported. Raises OSError if the
        pipes for the ranks of a launcher cannot be created."""
        self.cwd = cwd
        if self.has_launcher:
            for pipe in make_rank_pipes(self.environment["DSLAUNCH_LOGS"], self.expected):
                self.output.add(pipe)
        for spec in self.specs:
            rank = frames.NO_RANK if spec["rank"] is None else spec["rank"]
            try:
                self.spawn(spec, rank, cwd)
            except OSError as error:
                what = cwd if error.filename == cwd else _program(spec)
                self.say("unstarted", rank, error=f"{what}: {error.strerror}")
            except ValueError as error:  # a NUL in a word or in the environment
                self.say("unstarted", rank, error=f"{_program(spec)}: {error}")

    def spawn(self, spec: Dict[str, Any], rank: int, cwd: str) -> None:
        """Start one process in its own session. Raises OSError, ValueError."""
        environment = {**self.environment, **spec["env"]}
        words = [paths.expanded(word, environment) for word in spec["argv"]]
        entrance = cgroup.entrance(self.group) if self.group is not None else None
        try:
            child = self.popen(words, environment, cwd, entrance)
        finally:
            if entrance is not None:
                os.close(entrance)
        self.children[child.pid] = child
        self.rank_of[child.pid] = rank
        for stream, pipe in ((STDOUT, child.stdout), (STDERR, child.stderr)):
            assert pipe is not None
            self.output.add(Pipe(os.dup(pipe.fileno()), rank, stream))
            pipe.close()
        self.say("started", rank, pid=child.pid)

    def popen(
        self, words: List[str], environment: Dict[str, str], cwd: str, entrance: Optional[int]
    ) -> "subprocess.Popen[bytes]":
        """Start a program, in the control group if there is one."""

        def enter() -> None:
            assert entrance is not None
            os.write(entrance, b"0")

        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            # between fork and exec: no descendant can be outside of the group
            preexec_fn=enter if entrance is not None else None,
        )

    def say(self, event: str, rank: int, **more: Any) -> None:
        """Report an event of one rank, or of the launcher."""
        self.agent.say({"event": event, "rank": rank, **more})

    # ------------------------------------------------------------ watching

    def pids(self) -> Dict[int, int]:
        """Return the processes of the ranks that have not ended: rank -> process."""
        own = {rank: pid for pid, rank in self.rank_of.items() if pid in self.children}
        every = {**own, **self.launched.running()}
        return {rank: pid for rank, pid in every.items() if rank != frames.NO_RANK}

    def running(self) -> bool:
        """Return whether a started process has not ended."""
        return bool(self.children)

    def wait_timeout(self) -> float:
        """Return the seconds until `watch` must look again, as no event announces it: often while
        a launcher starts ranks, else rarely, for the rendezvous; the ranks' CPUs pay for it."""
        if not self.children:
            return 0
        if self.has_launcher and (not self.launched.complete() or self.launched.polled):
            return SWEEP_INTERVAL
        return LOOK if self.joining.is_over else JOIN_INTERVAL

    def watch(self) -> None:
        """Collect processes that ended, and find those that the launcher started."""
        self.reap()
        now = time.monotonic()
        if self.has_launcher:
            self.launched.watch(now)
        self.end_launcher()
        if self.joining.look(self.pids().values(), now):
            self.say("joined", frames.NO_RANK)

    def reap(self) -> None:
        """Collect children and adopted orphans that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                child.returncode = status
                self.report(self.rank_of[pid], status)

    def report(self, rank: int, status: Optional[int]) -> None:
        """Report how a process ended, after its last output."""
        self.output.take_all(rank)
        code, number = processes.ending(status) if status is not None else (None, None)
        bad = bool(code) or number is not None
        more = {"evidence": self.evidence(rank, number)} if bad else {}
        # an end after the request to end is no root cause, whatever its status and time
        self.say("exit", rank, code=code, signal=number, asked=self.agent.is_ending, **more)

    def evidence(self, rank: int, number: Optional[int]) -> Dict[str, Any]:
        """Return the node's evidence about a rank that failed."""
        own = (pid for pid, other in self.rank_of.items() if other == rank)
        pid = self.launched.found.get(rank) or next(own, 0)
        found = self.postmortem.examine(pid, number, [self.cwd, tempfile.gettempdir()])
        error = self.output.take_error(rank)
        if error:
            found["error_file"] = error
        return found

    # ------------------------------------------------------------ ending

    def ask_to_end(self) -> None:
        """Send TERM to every rank, and to a launcher when its ranks have ended.

        A launcher that got it before would send a second TERM to ranks that are saving, and kill
        them after 30 seconds whatever the grace period is. One whose ranks are not all running
        gets it at once: it may be starting them.
        """
        ranks = set(self.pids().values())
        waits = self.has_launcher and self.launched.complete()
        self.launcher_waits_for = ranks if waits else set()
        self.send_term(self.launcher_waits_for or {*self.children, *ranks})

    def end_launcher(self) -> None:
        """Send TERM to a launcher whose ranks got it and have ended."""
        if self.launcher_waits_for and not processes.alive(self.launcher_waits_for):
            self.launcher_waits_for = set()
            self.send_term(set(self.children))

    def send_term(self, targets: Set[int]) -> None:
        """Send TERM to processes, also to stopped ones."""
        processes.send(targets, signal.SIGTERM)
        processes.resume(targets)

    def finish(self) -> None:
        """Send the last output and close all pipes."""
        self.output.finish()


def _program(spec: Dict[str, Any]) -> str:
    """Return the program of a process, without the values of variables in it."""
    return paths.expanded(spec["argv"][0], {})
