"""The processes of one node: the ranks themselves, or a launcher that starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections import defaultdict

from dslaunch.node import cgroup, frames, network, paths, processes
from dslaunch.node.postmortem import Postmortem
from dslaunch.node.streams import BORN, ERROR, STDERR, STDOUT, Pipe, make_rank_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.redact import Redactor

SWEEP_INTERVAL = 0.1
"""Seconds between two searches for the ranks of a launcher."""
JOIN_INTERVAL = 1.5
"""Rare: each time the kernel walks its whole table of connections, which takes milliseconds."""
LONGEST_PID = 10
"""Digits of a process number."""
MOST_OF_ERROR = 64 * 1024
"""Bytes that are kept of what torch's `record` writes about an exception."""


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
        self.port: int = message["master_port"]
        self.environment = environment
        self.group = group
        self.agent = agent
        self.children: Dict[int, "subprocess.Popen[bytes]"] = {}
        self.rank_of: Dict[int, int] = {}
        self.pipes: List[Pipe] = []
        self.redactors: Dict[Tuple[int, int], Redactor] = defaultdict(agent.secrets.stream)
        self.errors: Dict[int, bytes] = {}
        """What torch's `record` wrote, by rank."""
        self.postmortem = Postmortem()
        self.cwd = "/"
        self.paused = False
        self.found: Dict[int, int] = {}
        self.ended: Dict[int, bool] = {}
        self.polled: Set[int] = set()
        """Ranks of `found` whose end must be polled: there is no pidfd for them."""
        self.families: Dict[int, processes.Descendants] = {}
        self.joined = False
        self.searched = self.asked_joined = 0.0
        self.below: Optional[processes.Descendants] = None
        self.launcher_waits_for: Set[int] = set()
        """Ranks that were asked to end; the launcher is asked when they have ended."""
        self.launcher = any(spec["rank"] is None for spec in self.specs)
        """Whether a launcher starts the ranks."""

    # ------------------------------------------------------------ start

    def start(self, cwd: str) -> None:
        """Start every process; those that cannot be started are reported. Raises OSError if the
        pipes for the ranks of a launcher cannot be created."""
        self.cwd = cwd
        if self.launcher:
            self.pipes = make_rank_pipes(self.environment["DSLAUNCH_LOGS"], self.expected)
            for pipe in self.pipes:
                self.listen(pipe)
        for spec in self.specs:
            rank = frames.NO_RANK if spec["rank"] is None else spec["rank"]
            try:
                self.spawn(spec, rank, cwd)
            except OSError as error:
                what = (
                    error.filename if error.filename == cwd else paths.expanded(spec["argv"][0], {})
                )
                self.say("unstarted", rank, error=f"{what}: {error.strerror}")
            except ValueError as error:  # a NUL in a word or in the environment
                self.say("unstarted", rank, error=f"{paths.expanded(spec['argv'][0], {})}: {error}")

    def spawn(self, spec: Dict[str, Any], rank: int, cwd: str) -> None:
        """Start one process in its own session. Raises OSError."""
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
            self.pipes.append(Pipe(os.dup(pipe.fileno()), rank, stream))
            pipe.close()
            self.listen(self.pipes[-1])
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

    def listen(self, pipe: Pipe) -> None:
        """Read the pipe whenever it is readable."""
        self.agent.loop.watch(pipe.fd, lambda: self.read(pipe))

    def say(self, event: str, rank: int, **more: Any) -> None:
        """Report an event of one rank, or of the launcher."""
        self.agent.say({"event": event, "rank": rank, **more})

    # ------------------------------------------------------------ output

    def read(self, pipe: Pipe) -> None:
        """Send what the pipe has now."""
        data = pipe.read()
        if data == b"":
            self.drop(pipe)
        elif data:
            self.output(pipe.rank, pipe.stream, data)

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """Send a piece of output with its secrets masked."""
        if stream == BORN:
            self.born(rank, data)
            return
        self.pass_on(rank, stream, self.redactors[rank, stream].feed(data))

    def pass_on(self, rank: int, stream: int, data: bytes) -> None:
        """Send output without secrets; keep what torch wrote about an exception."""
        if stream == ERROR:
            self.errors[rank] = (self.errors.get(rank, b"") + data)[:MOST_OF_ERROR]
        elif data:
            self.agent.output(rank, stream, data)

    def drop(self, pipe: Pipe) -> None:
        """Close a pipe that is at its end."""
        self.agent.loop.ignore(pipe.fd)
        self.pipes.remove(pipe)
        pipe.close()

    def drain(self, rank: int) -> None:
        """Send all that a rank has written so far."""
        for pipe in self.pipes:
            if pipe.rank == rank and pipe.stream != BORN:
                for data in pipe.drain():
                    self.output(pipe.rank, pipe.stream, data)

    def release(self, rank: int) -> None:
        """Send what was held back as the possible beginning of a secret."""
        for stream in (STDOUT, STDERR, ERROR):
            self.pass_on(rank, stream, self.redactors[rank, stream].rest())

    def pause(self) -> None:
        """Stop reading while the launcher is behind. The ranks' writes block, nothing is lost."""
        if not self.paused:
            self.paused = True
            for pipe in self.pipes:
                self.agent.loop.ignore(pipe.fd)

    def resume(self) -> None:
        """Continue reading."""
        if self.paused:
            self.paused = False
            for pipe in self.pipes:
                self.listen(pipe)

    # ------------------------------------------------------------ watching

    def pids(self) -> Dict[int, int]:
        """Return the processes of the ranks that have not ended: rank -> process."""
        own = {rank: pid for pid, rank in self.rank_of.items() if pid in self.children}
        found = {rank: pid for rank, pid in self.found.items() if rank not in self.ended}
        return {rank: pid for rank, pid in {**own, **found}.items() if rank != frames.NO_RANK}

    def running(self) -> bool:
        """Return whether a started process has not ended."""
        return bool(self.children)

    def wait_timeout(self) -> float:
        """Return the seconds until `watch` must look again, as no event announces it: often while
        a launcher starts ranks, else rarely, for the rendezvous; the ranks' CPUs pay for it."""
        if not self.children:
            return 0
        if self.launcher and (not self.complete() or self.polled):
            return SWEEP_INTERVAL
        return 1.0 if self.joined else JOIN_INTERVAL

    def watch(self) -> None:
        """Collect processes that ended, and find those that the launcher started."""
        self.reap()
        now = time.monotonic()
        if self.launcher and now - self.searched > SWEEP_INTERVAL:
            self.searched = now
            self.search()
        for rank in self.polled:
            self.look_at(rank)
        self.end_launcher()
        if not self.joined and now - self.asked_joined > JOIN_INTERVAL:
            self.asked_joined = now
            self.joined = self.have_joined()
            if self.joined:
                self.families.clear()
                self.say("joined", frames.NO_RANK)

    def have_joined(self) -> bool:
        """Return whether there is a connection to the rendezvous for every rank.

        Connections are not counted while a rank has no socket, as while it imports torch.
        """
        ranks = self.pids().values()
        if len(ranks) < len(self.expected) or not all(map(self.has_socket, ranks)):
            return False
        return network.established(self.port) >= len(self.expected)

    def has_socket(self, pid: int) -> bool:
        """Return whether a rank has a socket; called repeatedly."""
        family = self.families.setdefault(pid, processes.Descendants(pid))
        return processes.has_socket(family)

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

    def complete(self) -> bool:
        """Return whether all ranks of the launcher are known and running."""
        return len(self.found) == len(self.expected) and not self.ended

    def search(self) -> None:
        """Find the rank processes below the launcher, until all are known."""
        if self.complete() or not self.children:
            return
        launcher = next(iter(self.children))
        if self.below is None or self.below.roots != (launcher,):
            self.below = processes.Descendants(launcher)
        for local_rank, pid in processes.ranks_among(self.below.find()).items():
            rank = self.expected[0] + local_rank
            if rank in self.expected and (rank not in self.found or self.replaced(rank, pid)):
                self.find(rank, pid)

    def born(self, rank: int, data: bytes) -> None:
        """Handle a launcher's rank that reports its process, also after it was started again."""
        for word in data.split():
            # it may have ended
            is_number = len(word) <= LONGEST_PID and word.isdigit()
            if is_number and processes.is_below(int(word), self.children):
                self.find(rank, int(word))

    def find(self, rank: int, pid: int) -> None:
        """Record a new rank of a launcher. One that was started again replaces the first, whose end
        is reported before."""
        if rank in self.found and self.found[rank] == pid:
            return
        if rank in self.found:
            self.look_at(rank)
            if rank not in self.ended:
                return
        self.found[rank] = pid
        self.ended.pop(rank, None)
        self.say("started", rank, pid=pid)
        if not self.watch_end(rank, pid):
            self.polled.add(rank)
        self.look_at(rank)

    def replaced(self, rank: int, pid: int) -> bool:
        """Return whether a launcher has started this rank again."""
        return rank in self.ended and self.found[rank] != pid

    def watch_end(self, rank: int, pid: int) -> bool:
        """Watch for the end of a launcher's rank, to see it before its parent collects the status.
        Return whether the kernel supports that."""
        if not hasattr(os, "pidfd_open"):  # Python < 3.9
            return False
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # it has ended already, or Linux < 5.3
            return False
        self.agent.loop.watch(fd, lambda: self.told(rank, fd))
        return True

    def told(self, rank: int, fd: int) -> None:
        """Handle a readable pidfd: the rank has ended."""
        self.agent.loop.ignore(fd)
        os.close(fd)
        self.look_at(rank)
        if rank not in self.ended:
            self.polled.add(rank)

    def look_at(self, rank: int) -> None:
        """Report a launcher's rank once it has ended, from its status while it is not collected
        yet."""
        if rank in self.ended:
            return
        status = processes.wait_status(self.found[rank])
        if status is not None or processes.stat(self.found[rank]) is None:
            self.ended[rank] = True
            self.report(rank, status)

    def report(self, rank: int, status: Optional[int]) -> None:
        """Report how a process ended, after its last output."""
        self.drain(rank)
        self.release(rank)
        code, number = processes.ending(status) if status is not None else (None, None)
        bad = bool(code) or number is not None
        more = {"evidence": self.evidence(rank, number)} if bad else {}
        # an end after the request to end is no root cause, whatever its status and time
        asked = self.agent.is_ending
        self.say("exit", rank, code=code, signal=number, asked=asked, **more)

    def evidence(self, rank: int, number: Optional[int]) -> Dict[str, Any]:
        """Return the node's evidence about a rank that failed."""
        pid = self.found.get(rank) or next((p for p, r in self.rank_of.items() if r == rank), 0)
        found = self.postmortem.examine(pid, number, [self.cwd, tempfile.gettempdir()])
        error = self.errors.pop(rank, b"")
        if error:
            found["error_file"] = error.decode("utf-8", "replace")
        return found

    # ------------------------------------------------------------ ending

    def ask_to_end(self) -> None:
        """Send TERM to every rank, and to a launcher when its ranks have ended.

        A launcher that got it before would send a second TERM to ranks that are saving, and kill
        them after 30 seconds whatever the grace period is. One whose ranks are not all running
        gets it at once: it may be starting them.
        """
        ranks = set(self.pids().values())
        self.launcher_waits_for = ranks if self.launcher and self.complete() else set()
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
        for rank in {pipe.rank for pipe in self.pipes}:
            self.drain(rank)
        for pipe in list(self.pipes):
            self.drop(pipe)
        for rank in {rank for rank, _ in self.redactors}:
            self.release(rank)
