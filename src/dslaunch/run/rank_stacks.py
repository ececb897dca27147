"""The stacks of the ranks of a run, asked of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dslaunch.protocol.queries import STACKS, Stacks
from dslaunch.run.asked import Asked
from dslaunch.run.session import Session
from dslaunch.transport.future import Future

OF_NODE = 2 / 3
"""The part of a timeout that a node has for its ranks; the rest is for the way back."""
AskedStacks = Asked[Stacks]
JobNumbers = Mapping[str, Sequence[str]]
"""Of SLURM jobs: host -> the numbers that the ranks there may have in their environment."""


def ask_for_stacks(
    sessions: Sequence[Session], timeout: float, jobs: JobNumbers | None = None
) -> AskedStacks:
    """Ask nodes for the stacks of their ranks. `timeout`: seconds that a node has for them."""
    numbers = jobs or {}

    def ask(session: Session) -> Future[Stacks]:
        own = list(numbers.get(session.host, ()))
        return session.request("stacks", STACKS, timeout=timeout, jobs=own)

    return Asked((session, ask(session)) for session in sessions)


def arrived_stacks(asked: AskedStacks) -> dict[str, Any]:
    """Return the stacks that have arrived: host -> rank -> stacks, without ranks that a node does
    not have."""
    return {
        session.host: {rank: each for rank, each in stacks.items() if int(rank) in session.ranks}
        for session, stacks in asked.arrived()
    }


def gather_stacks(
    sessions: Sequence[Session], timeout: float = 15.0, jobs: JobNumbers | None = None
) -> dict[str, Any]:
    """Return the stacks of every rank, host -> rank -> stacks, of the nodes that answer in
    `timeout` seconds. Never raises."""
    asked = ask_for_stacks(sessions, timeout * OF_NODE, jobs)
    asked.wait(timeout)
    return arrived_stacks(asked)
