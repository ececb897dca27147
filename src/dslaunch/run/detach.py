"""Start a run that nobody watches: its nodes hold together by themselves."""

from __future__ import annotations

import secrets as randomness
import time
from dataclasses import replace
from queue import Empty

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.launch.plan import Plan
from dslaunch.node.frames import Output
from dslaunch.run.outcome import GOES_ON, Outcome, failed
from dslaunch.run.patience import Patience
from dslaunch.run.session import Inbox, Lost, Session
from dslaunch.run.supervisor import start_message
from dslaunch.run.watch import Watch, read_event

SETTLE = 3.0
"""Seconds after the last node has started its processes in which a failure is still reported."""
START_TIMEOUT = 60.0


def detach(
    sessions: list[Session],
    inbox: Inbox,
    watch: Watch,
    plan: Plan,
    secrets: dict[str, str],
    patience: Patience,
) -> Outcome:
    """Start the plan, let the nodes hold each other, and leave. Raises NodeError.

    The outcome says GOES_ON once all nodes have started; a job that fails or ends at once is told
    as that.
    """
    port = prepare(sessions, plan, patience)
    link = {"address": plan.rendezvous.address, "port": port}
    for session, node in zip(sessions, plan.nodes, strict=True):
        session.follow(hold=False)
        session.send(**start_message(plan, node, secrets), link=link)
    return settle(sessions, inbox, watch)


def prepare(sessions: list[Session], plan: Plan, patience: Patience) -> int:
    """Tell all nodes that this run is detached; give the port on which the first one listens."""
    link = {
        "token": randomness.token_hex(32),
        "hosts": [node.host for node in plan.nodes],
        "grace": patience.grace,
        "exit_timeout": patience.exit_timeout,
        "hang_timeout": patience.hang_timeout,
    }
    asked = [
        session.request("detach", link={**link, "first": session is sessions[0]})
        for session in sessions
    ]
    failures, port = [], 0
    for session, future in zip(sessions, asked, strict=True):
        try:
            reply = future.result(START_TIMEOUT)
            port = port or reply["port"]
        except Exception as error:  # noqa: BLE001 - a timeout or a LostError: the node is to be named
            failures.append(NodeFailure(session.host, "lost", str(error) or "no answer"))
    if failures:
        raise NodeError(tuple(failures))
    return port


def settle(sessions: list[Session], inbox: Inbox, watch: Watch) -> Outcome:
    """Stay until all nodes have started their processes and none has failed at once."""
    waiting, running = ({session.host for session in sessions} for _ in range(2))
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        try:
            session, arrival = inbox.get(timeout=0.1)
        except Empty:
            continue
        if isinstance(arrival, Output):
            watch.output(session.host, arrival, session.offset)
        elif isinstance(arrival, Lost):
            raise NodeError((arrival.failure,))
        elif isinstance(arrival, dict):
            event = read_event(session.host, arrival, session.offset)
            watch.happened(event)
            if event.kind == "ended":
                running.discard(session.host)
            if failed(event) or not running:
                return watch.outcome()
            if event.kind == "started" and session.host in waiting:
                waiting.discard(session.host)
                deadline = deadline if waiting else time.monotonic() + SETTLE
    return replace(watch.outcome(), message=GOES_ON)
