"""A transport of a plugin: what it promises is checked, and nothing of it is hidden."""

from __future__ import annotations

import pytest

from dslaunch.cluster.model import Node
from dslaunch.transport.base import Connection, Detour, Transport
from dslaunch.transport.checked import CheckedTransport
from dslaunch.transport.logged import LoggedTransport

DETOUR = Detour("n2", parent="n1", kind="timeout")


class Direct:
    """A transport that knows one way to each node."""

    def connect(self, node: Node) -> Connection:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Tree(Direct):
    """A transport that has reached a node on another way."""

    def detours(self) -> tuple[Detour, ...]:
        return (DETOUR,)


@pytest.mark.parametrize(("made", "detours"), [(Direct(), ()), (Tree(), (DETOUR,))])
def test_detours_of_a_transport_are_passed_on(made: Transport, detours: tuple[Detour, ...]) -> None:
    assert LoggedTransport("mine", CheckedTransport("mine", made)).detours() == detours
