"""Which nodes of a run can connect to which, asked of their agents while the run is running."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from dslaunch.protocol import queries
from dslaunch.protocol.queries import Answers
from dslaunch.run.asked import Asked
from dslaunch.run.session import Session

CONNECT = 3.0
"""Seconds for a connection."""
ANSWER = 8.0
"""Seconds for each of the two rounds of questions."""
MOST_ADDRESSES = 16
"""Addresses of a node that the others connect to: it says itself which it has."""


class NodePairs:
    """Lets every node listen at a port and connect to all others. Never waits."""

    def __init__(self, sessions: Sequence[Session], near: str | None) -> None:
        """`near`: an address in the network that the ranks use, such as the rendezvous address."""
        self._sessions, self._near = list(sessions), near
        self._token = secrets.token_hex(8)
        self._began = time.monotonic()
        # an ephemeral port, as collectives use them: a firewall may let only these pass;
        # instead: a hang before this one may have passed
        listen = {"ports": [queries.ANY_PORT], "token": self._token, "instead": True}
        questions: queries.Questions = {queries.INTERFACES: None, queries.LISTEN: listen}
        self._first = Asked((each, each.ask(questions)) for each in self._sessions)
        self._second: Asked[Answers] | None = None

    def result(self) -> tuple[tuple[str, str], ...] | None:
        """Return the pairs of which the first could not connect to the second; None: not known
        yet."""
        late = time.monotonic() - self._began > ANSWER
        if self._second is None:
            if not late and not self._first.complete:
                return None
            self._second = self._dial()
            self._began = time.monotonic()
            return None
        if not late and not self._second.complete:
            return None
        return tuple(
            (session.host, other)
            for session, answers in self._second.arrived()
            for other in _not_reached(answers)
        )

    def _dial(self) -> Asked[Answers]:
        targets: dict[str, dict[str, list[str | int]]] = {}
        first = self._first.arrived()
        name = next(filter(None, (_interface_of(self._near, each) for _, each in first)), None)
        for session, answers in first:
            listening = answers.get(queries.LISTEN)
            port = listening["port"] if listening is not None else None
            if port is not None:
                targets[session.host] = {
                    f"{session.host} {address}": [address, port]
                    for address in _addresses(answers, name, self._near)
                }
        asked: Asked[Answers] = Asked()
        for session in self._sessions:
            others = {
                key: where
                for host, several in targets.items()
                if host != session.host
                for key, where in several.items()
            }
            if others:
                dial = {"targets": others, "token": self._token, "timeout": CONNECT}
                asked.add(session, session.ask({queries.DIAL: dial}))
        return asked


def _interface_of(address: str | None, answers: Answers) -> str | None:
    held = answers.get(queries.INTERFACES) or ()
    return next((each["name"] for each in held if each["address"] == address), None)


def _addresses(answers: Answers, name: str | None, near: str | None) -> list[str]:
    """Return the addresses of a node on the interface of this name; without it, the first ones."""
    version = ":" in (near or "")
    usable = [
        each
        for each in answers.get(queries.INTERFACES) or ()
        if each["up"] and not each["loopback"] and (":" in each["address"]) == version
    ]
    same = [each for each in usable if each["name"] == name]
    return [each["address"] for each in (same or usable)[:MOST_ADDRESSES]]


def _not_reached(answers: Answers) -> list[str]:
    """Return the nodes of which no address was reached."""
    by_host: dict[str, list[bool]] = {}
    for key, dialed in (answers.get(queries.DIAL) or {}).items():
        by_host.setdefault(key.partition(" ")[0], []).append(not dialed.get("error"))
    return [host for host, reached in by_host.items() if not any(reached)]
