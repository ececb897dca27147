"""Ship the files of a job: an archive that the launcher sends, and that nodes hand on.

The launcher announces the SHA-256 of all pieces to every node itself, so it does not matter who
sends them. What a node does not hand on, the launcher sends.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.cluster.nodeset import fold
from dslaunch.run.events import Event
from dslaunch.run.evidence import ask_all
from dslaunch.run.job_files import archive
from dslaunch.run.shipping_route import PIECE, senders
from dslaunch.run.view import ignore
from dslaunch.transport import program
from dslaunch.transport.classify import from_words
from dslaunch.transport.node_login import child_of, login_options
from dslaunch.transport.ssh.files import client_of
from dslaunch.transport.wire import LostError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.errors import FailureKind
    from dslaunch.protocol.queries import HandedOn
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.job_files import JobFiles, Shipment
    from dslaunch.run.session import Session
    from dslaunch.transport.future import Future

SHIP_TIMEOUT = 600.0
"""Seconds for a node to unpack the job's files."""
LATE = 60.0
"""Seconds after which the launcher sends what a node has not got from another one, in addition to
as long as its own sending took."""
LOOK = 0.2
"""Seconds between two looks at what the nodes hand on."""
_KINDS: Mapping[str, FailureKind] = {"no-ssh": "no-ssh", "stalled": "timeout", "done": "broken"}
"""Why an archive is not whole, by how a node says that it has handed it on."""
ANSWER_TIMEOUT = 30.0
"""Seconds for a node to say how much of an archive has arrived."""


class NodeLogins:
    """How the nodes of a run log in to each other, to hand files on."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        """`run`: the name of the agents."""
        self._client, self._options = (
            client_of(cluster.ssh),
            login_options(cluster.ssh.connect_timeout),
        )
        self._run = run

    def to(self, node: Node) -> dict[str, Any]:
        """Return what another node needs to send to this one; see `node/handover.py`."""
        text = program.text("delivery", {"run": self._run, "host": node.host})
        return {
            "child": child_of(self._client, node).as_data(),
            "options": self._options,
            "line": program.line(node),
            "text": [base64.b64encode(piece).decode() for piece in text],
        }


class PackedFiles:
    """An archive on this machine, in pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digests = [hashlib.sha256(piece).hexdigest() for piece in self.pieces(0)]
        """SHA-256 of every piece."""
        self.size = file.tell()

    def pieces(self, first: int) -> Iterator[bytes]:
        """Yield the pieces from number `first` on."""
        self._file.seek(first * PIECE)
        while piece := self._file.read(PIECE):
            yield piece


class Delivery(Struct):
    """An archive on its way to one node."""

    session: Session
    files: PackedFiles
    number: int
    """The number of the archive on the node."""
    unpacked: Future[int]
    sender: str | None
    """The node that sends it; None: the launcher."""
    handed_on: Future[HandedOn] | None = None
    """How that has ended on the sender."""


def ship(
    source: JobFiles | None,
    shipments: Sequence[Shipment],
    sessions: Sequence[Session],
    interrupts: Interrupts,
    *,
    logins: NodeLogins | None,
    notify: Callable[[tuple[str, ...]], object] = ignore,
) -> list[Event]:
    """Send the files, and return what nodes could not hand on.

    `logins`: how nodes log in to each other; None: they do not. `notify` is called with the nodes
    that have not unpacked the files. Raises NodeError for nodes that could not, Interrupted.
    """
    if source is None or not shipments:
        return []
    by_host = {session.host: session for session in sessions}
    with contextlib.ExitStack() as opened:
        deliveries: list[Delivery] = []
        for alike in _by_content(shipments):
            interrupts.check()
            file = opened.enter_context(archive(source, alike[0].paths, alike[0].changed))
            receivers = [by_host[shipment.host] for shipment in alike]
            files = PackedFiles(file)
            deliveries += _announce(source.remote, files, receivers, logins, interrupts)

        def tell_late() -> None:
            notify(tuple(d.session.host for d in deliveries if not d.unpacked.done()))

        began = time.monotonic()
        for delivery in deliveries:
            if delivery.sender is None:
                tell_late()
                _send(delivery, 0, interrupts)
        until = time.monotonic() + (time.monotonic() - began) + LATE
        failed = _complete(deliveries, until, interrupts, tell_late)
        ask_all(
            [delivery.unpacked for delivery in deliveries],
            [delivery.session for delivery in deliveries],
            interrupts,
            timeout=SHIP_TIMEOUT,
            notify=notify,
        )
    return _not_handed_on(failed)


def _by_content(shipments: Sequence[Shipment]) -> list[list[Shipment]]:
    """Return the shipments in groups of the same files with the same texts."""
    groups: dict[tuple[Any, ...], list[Shipment]] = {}
    for shipment in shipments:
        content = (shipment.paths, tuple(sorted(shipment.changed.items())))
        groups.setdefault(content, []).append(shipment)
    return list(groups.values())


def _announce(
    root: str,
    files: PackedFiles,
    receivers: Sequence[Session],
    logins: NodeLogins | None,
    interrupts: Interrupts,
) -> list[Delivery]:
    """Announce an archive to nodes, and have them log in to those that they hand it on to.

    Raises Interrupted.
    """
    hosts = [session.host for session in receivers]
    by_host = senders(hosts, files.size) if logins is not None else dict.fromkeys(hosts)
    deliveries: dict[str, Delivery] = {}
    for session in receivers:
        sender = by_host[session.host]
        number, unpacked = session.put(root, files.digests, from_node=sender is not None)
        deliveries[session.host] = Delivery(session, files, number, unpacked, sender)
    handed_on = [delivery for delivery in deliveries.values() if delivery.sender is not None]
    # a node takes nothing before it knows of the archive, and its sender may know of it earlier
    expecting = [delivery.session.received(delivery.number) for delivery in handed_on]
    interrupts.wait(expecting, ANSWER_TIMEOUT)
    for delivery in handed_on:
        assert logins is not None and delivery.sender is not None
        sender_of = deliveries[delivery.sender]
        about = {**logins.to(delivery.session.node), "as": delivery.number}
        delivery.handed_on = sender_of.session.hand_on(sender_of.number, about)
    return list(deliveries.values())


def _send(delivery: Delivery, first: int, interrupts: Interrupts) -> None:
    """Send the pieces from number `first` on. Raises Interrupted."""
    for piece in delivery.files.pieces(first):
        interrupts.check()
        if delivery.session.over:
            return
        delivery.session.send_piece(delivery.number, piece)


def _complete(
    deliveries: Sequence[Delivery], until: float, interrupts: Interrupts, tell: Callable[[], None]
) -> list[tuple[Delivery, FailureKind]]:
    """Send what nodes have not handed on; return these deliveries, and why.

    `until`: when nodes that are still handing it on are late, on the monotonic clock.
    """
    failed = []
    waiting = [delivery for delivery in deliveries if delivery.handed_on is not None]
    while waiting:
        pending = [delivery.unpacked for delivery in waiting]
        interrupts.wait(pending, LOOK, tell)
        is_late = time.monotonic() > until
        for delivery in list(waiting):
            assert delivery.handed_on is not None
            if not (delivery.handed_on.done() or delivery.unpacked.done() or is_late):
                continue
            waiting.remove(delivery)
            missing = _missing_from(delivery, interrupts)
            if missing is not None:
                failed.append((delivery, _why_not_handed_on(delivery)))
                _send(delivery, missing, interrupts)
                # the nodes behind it have got nothing meanwhile
                until = max(until, time.monotonic() + LATE)
    return failed


def _missing_from(delivery: Delivery, interrupts: Interrupts) -> int | None:
    """Return the first piece that has not arrived; None: all have, or the node is lost."""
    if delivery.unpacked.done():
        return None
    asked = delivery.session.received(delivery.number)
    interrupts.wait([asked], ANSWER_TIMEOUT)
    if not asked.done() or asked.exception() is not None:
        return None
    return None if asked.result() >= len(delivery.files.digests) else asked.result()


def _why_not_handed_on(delivery: Delivery) -> FailureKind:
    handed_on = delivery.handed_on
    if handed_on is None or not handed_on.done():
        return "timeout"
    error = handed_on.exception()
    if isinstance(error, LostError):
        return error.failure.kind
    ended = handed_on.result()
    if ended.how == "failed":
        return from_words(delivery.session.node, ended.words).kind
    return _KINDS[ended.how]


def _not_handed_on(failed: Sequence[tuple[Delivery, FailureKind]]) -> list[Event]:
    """Return one event for each reason, with all nodes that it holds for."""
    by_kind: dict[FailureKind, list[Delivery]] = {}
    for delivery, kind in failed:
        by_kind.setdefault(kind, []).append(delivery)
    return [
        Event(
            time.time(),
            "resent",
            failure=kind,
            receivers=fold(delivery.session.host for delivery in several),
            senders=fold(delivery.sender for delivery in several if delivery.sender is not None),
        )
        for kind, several in by_kind.items()
    ]
