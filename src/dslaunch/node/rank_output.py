"""The output of a node's ranks: read from their pipes, its secrets masked, and passed on."""

from __future__ import annotations

from collections import defaultdict

from dslaunch.node.streams import BORN, ERROR, STDERR, STDOUT, Pipe

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, Dict, List, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.redact import Redactor

MOST_OF_ERROR = 64 * 1024
"""Bytes that are kept of what torch's `record` writes about an exception."""


class RankOutput:
    """The pipes of all ranks, and of a launcher that starts them."""

    def __init__(self, agent: Agent, on_born: Callable[[int, bytes], object]) -> None:
        """`on_born`: called with a rank and what it has written about its own process."""
        self._agent, self._on_born = agent, on_born
        self._pipes: List[Pipe] = []
        self._redactors: Dict[Tuple[int, int], Redactor] = defaultdict(agent.secrets.stream)
        self._errors: Dict[int, bytes] = {}
        """What torch's `record` wrote, by rank."""
        self._is_paused = False

    def add(self, pipe: Pipe) -> None:
        """Read a pipe whenever it is readable."""
        self._pipes.append(pipe)
        if not self._is_paused:
            self._listen(pipe)

    def pause(self) -> None:
        """Stop reading while the launcher is behind. The ranks' writes block, nothing is lost."""
        if not self._is_paused:
            self._is_paused = True
            for pipe in self._pipes:
                self._agent.loop.ignore(pipe.fd)

    def resume(self) -> None:
        """Continue reading."""
        if self._is_paused:
            self._is_paused = False
            for pipe in self._pipes:
                self._listen(pipe)

    def take_all(self, rank: int) -> None:
        """Pass on all that a rank has written so far, also what was held back as the possible
        beginning of a secret: it has ended."""
        self._drain(rank)
        self._release(rank)

    def take_error(self, rank: int) -> str:
        """Return what torch's `record` wrote about the exception of a rank, and forget it."""
        return self._errors.pop(rank, b"").decode("utf-8", "replace")

    def finish(self) -> None:
        """Pass on the last output and close all pipes."""
        for rank in {pipe.rank for pipe in self._pipes}:
            self._drain(rank)
        for pipe in list(self._pipes):
            self._drop(pipe)
        for rank in {rank for rank, _ in self._redactors}:
            self._release(rank)

    def _listen(self, pipe: Pipe) -> None:
        self._agent.loop.watch(pipe.fd, lambda: self._read(pipe))

    def _read(self, pipe: Pipe) -> None:
        """Pass on what the pipe has now."""
        data = pipe.read()
        if data == b"":
            self._drop(pipe)
        elif data:
            self._take(pipe, data)

    def _take(self, pipe: Pipe, data: bytes) -> None:
        """Pass on a piece of output with its secrets masked."""
        if pipe.stream == BORN:
            self._on_born(pipe.rank, data)
            return
        redacted = self._redactors[pipe.rank, pipe.stream].feed(data)
        self._pass_on(pipe.rank, pipe.stream, redacted)

    def _pass_on(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on output without secrets; keep what torch wrote about an exception."""
        if stream == ERROR:
            self._errors[rank] = (self._errors.get(rank, b"") + data)[:MOST_OF_ERROR]
        elif data:
            self._agent.output(rank, stream, data)

    def _drop(self, pipe: Pipe) -> None:
        """Close a pipe that is at its end."""
        self._agent.loop.ignore(pipe.fd)
        self._pipes.remove(pipe)
        pipe.close()

    def _drain(self, rank: int) -> None:
        """Pass on all that a rank has written so far."""
        for pipe in self._pipes:
            if pipe.rank == rank and pipe.stream != BORN:
                for data in pipe.drain():
                    self._take(pipe, data)

    def _release(self, rank: int) -> None:
        """Pass on what was held back as the possible beginning of a secret."""
        for stream in (STDOUT, STDERR, ERROR):
            self._pass_on(rank, stream, self._redactors[rank, stream].rest())
