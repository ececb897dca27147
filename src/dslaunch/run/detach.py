"""Start a run that nobody watches: its nodes hold together by themselves."""

from __future__ import annotations

import secrets as randomness
import time
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from queue import Empty

from dslaunch.cluster.model import Network
from dslaunch.cluster.names import is_loopback
from dslaunch.errors import NodeError, NodeFailure
from dslaunch.launch.facts import Facts
from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.node.frames import Output
from dslaunch.protocol.messages import NodeEvent
from dslaunch.protocol.queries import DETACHED
from dslaunch.run.outcome import Outcome, failed
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.secret import Secret
from dslaunch.run.session import Inbox, Lost, Session
from dslaunch.run.supervisor import ranks_of, start_message
from dslaunch.run.timeouts import Timeouts
from dslaunch.run.watch import Watch, read_event

SETTLE = 3.0
"""Seconds after the last node has started its processes in which a failure is still reported."""
START_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Control:
    """Where the first node listens for the other ones, and who may connect."""

    address: str
    """Its own address on the way to the others; empty: all its addresses."""
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
    """Start the plan, let the nodes hold each other, and leave. Raises NodeError.

    The outcome is `EndCode.RUNNING` once all nodes have started, or how a job ended that failed or
    ended at once.
    """
    port = prepare(sessions, plan, timeouts, control)
    link = {"address": plan.rendezvous.address, "port": port}
    for session, node in zip(sessions, plan.nodes, strict=True):
        session.expect(ranks_of(node))
        session.follow(hold=False)
        session.send(**start_message(plan, node, secrets), link=link)
    return settle(sessions, inbox, watch)


def prepare(sessions: list[Session], plan: Plan, timeouts: Timeouts, control: Control) -> int:
    """Tell all nodes that this run is detached; give the port on which the first one listens."""
    first, *others = sessions
    keys = {session.host: randomness.token_hex(32) for session in others}
    link = {
        "hosts": [node.host for node in plan.nodes],
        "grace": timeouts.grace,
        "exit_timeout": timeouts.exit_timeout,
        "hang_timeout": timeouts.hang_timeout,
    }
    coordinator = {**link, "first": True, "keys": keys, "listen": asdict(control)}
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
        elif isinstance(arrival, NodeEvent):
            event = read_event(session.host, arrival, session.offset)
            watch.happened(event)
            if event.kind == "ended":
                running.discard(session.host)
            if failed(event) or not running:
                return watch.outcome()
            if event.kind == "started" and session.host in waiting:
                waiting.discard(session.host)
                deadline = deadline if waiting else time.monotonic() + SETTLE
    return replace(watch.outcome(), reason=EndReason(EndCode.RUNNING))
