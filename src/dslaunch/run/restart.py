"""Choose the nodes of the next attempt of a run: healthy ones, and spares for the others."""

from __future__ import annotations

import time
from queue import Empty
from typing import TYPE_CHECKING

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.replacement import Replacement, enough_without, without
from dslaunch.protocol.messages import NodeEvent
from dslaunch.run.arrivals import Lost
from dslaunch.run.faulty import faulty_nodes
from dslaunch.run.reach import ReachedNodes, reach
from dslaunch.run.request import agent_run

if TYPE_CHECKING:
    from dslaunch.run.launch import RunController

END_TIMEOUT = 15.0
"""Seconds beyond the grace period for a node to confirm the cleanup."""
POLL = 0.2
"""Seconds between two looks at the time."""


def choose_again(
    controller: RunController, count: int
) -> tuple[Allocation, tuple[Replacement, ...]]:
    """Return the nodes of the next attempt, and the replacements.

    Every node is asked again, and processes of the last attempt on it are ended. Nodes that do not
    answer are replaced by spares, or excluded; so are faulty nodes, unless too few would be left.
    Raises PlanError if too few are left, Interrupted.
    """
    allocation = controller.allocation
    nodes = [placement.node for placement in allocation.placements]
    bad = unfit(controller, nodes, count)
    wanted = controller.request.min_nodes or len(controller.request.allocation.placements)
    faulty = faulty_nodes(controller.outcomes)
    if enough_without(controller.request.cluster, controller.allocation, {*bad, *faulty}, wanted):
        bad = {*bad, *faulty}
    while True:
        allocation, replaced = without(
            controller.request.cluster, controller.allocation, bad, wanted
        )
        fresh = [p.node for p in allocation.placements if p.node not in nodes]
        worse = unfit(controller, fresh, count)
        if not worse:
            return allocation, replaced
        bad = {*bad, *worse}


def unfit(controller: RunController, nodes: list[Node], count: int) -> set[str]:
    """Return the nodes that are unreachable, or on which the last attempt does not end."""
    if not nodes:
        return set()
    with reach(
        controller.request.cluster,
        nodes,
        agent_run(controller.run, count - 1),
        until=lambda: controller.interrupts.count > 0,
    ) as reached:
        bad = {h for h, failure in reached.failures.items() if failure.kind != "no-agent"}
        return bad | set(end_all(reached, 0))


def end_all(reached: ReachedNodes, grace: float, by: str | None = None) -> list[str]:
    """Stop the run on all nodes that were reached; return those that did not confirm it."""
    unconfirmed = set(reached.sessions)
    lost: set[str] = set()
    for session in reached.sessions.values():
        # not all output of the run: the last frame, if its part has ended, and what follows
        session.skip(session.hello.result().last - 1)
        session.follow(hold=False)
        session.send(op="stop", grace=grace, by=by)
    deadline = time.monotonic() + grace + END_TIMEOUT
    while unconfirmed - lost and time.monotonic() < deadline:
        try:
            session, arrival = reached.inbox.get(timeout=POLL)
        except Empty:
            continue
        if isinstance(arrival, Lost):
            lost.add(session.host)
        elif isinstance(arrival, NodeEvent) and arrival.event == "done" and not arrival.left:
            unconfirmed.discard(session.host)
    return sorted(unconfirmed)
