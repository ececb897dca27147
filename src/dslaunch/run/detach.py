"""Start a run in the background: its nodes coordinate among themselves."""

from __future__ import annotations

import secrets as randomness
import time
from ipaddress import ip_address
from queue import Empty
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.cluster.model import Network
from dslaunch.cluster.names import is_loopback
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.launch.facts import Facts
from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.node.frames import Output
from dslaunch.protocol.messages import NodeEvent
from dslaunch.protocol.queries import DETACHED
from dslaunch.run.arrivals import Lost
from dslaunch.run.events import Event
from dslaunch.run.hang_evidence import QUESTIONS
from dslaunch.run.inbox import Inbox
from dslaunch.run.node_pairs import CONNECT
from dslaunch.run.outcome import Outcome, failed
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.secret import Secret
from dslaunch.run.session import Session
from dslaunch.run.start_message import start_messages
from dslaunch.run.timeouts import Timeouts
from dslaunch.run.watch import Watch

SETTLE = 3.0
"""Seconds after the last node has started its processes in which a failure is still reported."""
START_TIMEOUT = 60.0
"""Seconds for all nodes to start their processes."""
POLL = 0.1
"""Seconds between two looks at the time."""


class Control(Struct, frozen=True):
    """Where the first node listens for the others, and which addresses may connect."""

    address: str
    """Its address on the route to the others; empty: all its addresses."""
    ports: tuple[int, int]
    """The first and the last port that it may use; (0, 0): any free one."""
    members: tuple[str, ...]
    """The addresses that the other nodes have."""


def control(network: Network, facts: Facts, rendezvous: Rendezvous) -> Control:
    """Decide where the first node listens. Pure.

    A member's connection may leave by any of its interfaces; addresses of loopback are only
    valid for nodes that are emulated on one machine.
    """
    first, *others = facts.nodes
    routes = [rendezvous.address_of.get(node.host, "") for node in others]
    interfaces = [i.address for node in others for i in node.interfaces if not i.loopback]
    address = rendezvous.address_of.get(first.host, "")
    apart = any(not is_loopback(route) for route in routes)
    if not _is_address(address) or (apart and is_loopback(address)):
        # the first node has the rendezvous name at a loopback address (Debian's /etc/hosts)
        address = ""
    known = filter(_is_address, [*routes, *interfaces])
    members = dict.fromkeys(str(ip_address(text)) for text in known)
    return Control(address, network.control_port or (0, 0), tuple(members))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def detach(
    sessions: list[Session],
    inbox: Inbox,
    watch: Watch,
    plan: Plan,
    secrets: dict[str, Secret],
    timeouts: Timeouts,
    *,
    control: Control,
) -> Outcome:
    """Start the plan, let the nodes coordinate among themselves, and leave. Raises NodeError.

    The outcome is `EndCode.RUNNING` once all nodes have started, or how a job ended that failed or
    ended within SETTLE seconds.
    """
    port = prepare(sessions, plan, timeouts, control)
    link = {"address": plan.rendezvous.address, "port": port}
    starts = start_messages(plan, secrets, {"link": link})
    for session, node, start in zip(sessions, plan.nodes, starts, strict=True):
        session.expect(node.ranks)
        session.follow(hold=False)
        session.start_ranks(start)
    return settle(sessions, inbox, watch)


def prepare(sessions: list[Session], plan: Plan, timeouts: Timeouts, control: Control) -> int:
    """Make this a detached run on all nodes; return the port on which the first one listens.

    Raises NodeError for nodes that do not confirm it.
    """
    first, *others = sessions
    keys = {session.host: randomness.token_hex(32) for session in others}
    link = {
        "grace": timeouts.grace,
        "exit_timeout": timeouts.exit_timeout,
        "hang": hang_watch(timeouts.hang_timeout, plan),
        # every node dials all others when the run hangs
        "hosts": [node.host for node in plan.nodes],
    }
    coordinator = {
        **link,
        "first": True,
        "keys": keys,
        "listen": to_builtins(control),
    }
    asked = [first.request("detach", DETACHED, link=coordinator)]
    for session in others:
        own = {session.host: keys[session.host]}
        member = {**link, "first": False, "keys": own}
        asked.append(session.request("detach", DETACHED, link=member))
    failures, port = [], 0
    for session, future in zip(sessions, asked, strict=True):
        try:
            reply = future.result(START_TIMEOUT)
            port = port or reply.port or 0
        except Exception as error:  # noqa: BLE001 - a timeout or a LostError: the error names the node
            failures.append(NodeFailure(session.host, "lost", str(error) or "no answer"))
    if failures:
        raise NodeError(tuple(failures))
    return port


def hang_watch(timeout: float | None, plan: Plan) -> dict[str, Any] | None:
    """Return when a hang ends the run, and what the nodes find out about it before. Pure."""
    if timeout is None:
        return None
    rendezvous = plan.rendezvous
    addresses = {
        node.host: rendezvous.address_of.get(node.host, rendezvous.address) for node in plan.nodes
    }
    return {
        "timeout": timeout,
        "hosts": [node.host for node in plan.nodes],
        "questions": {query.name: argument for query, argument in QUESTIONS.items()},
        "addresses": {host: text for host, text in addresses.items() if _is_address(text)},
        "connect": CONNECT,
    }


def settle(sessions: list[Session], inbox: Inbox, watch: Watch) -> Outcome:
    """Stay until all nodes have started their processes and none has failed at once.

    Raises NodeError for a node that is lost meanwhile.
    """
    not_started = {session.host for session in sessions}
    running = set(not_started)
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        event = _next_event(inbox, watch)
        if event is None:
            continue
        if event.kind == "ended":
            running.discard(event.host or "")
        if failed(event) or not running:
            return watch.outcome()
        if event.kind == "started" and event.host in not_started:
            not_started.discard(event.host)
            if not not_started:
                deadline = time.monotonic() + SETTLE
    return replace(watch.outcome(), reason=EndReason(EndCode.RUNNING))


def _next_event(inbox: Inbox, watch: Watch) -> Event | None:
    """Take what arrives next, and return it if it is an event. Raises NodeError."""
    try:
        session, arrival = inbox.get(timeout=POLL)
    except Empty:
        return None
    if isinstance(arrival, Lost):
        raise NodeError((arrival.failure,))
    if isinstance(arrival, Output | NodeEvent):
        return watch.take(session.host, arrival, session.offset)
    return None
