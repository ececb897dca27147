"""How nodes log in to other nodes: to whom, and with which options of ssh.

See `node/ssh_login.py` for the node's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from dslaunch.transport.ssh import strict
from dslaunch.transport.ssh.route import login_user

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.ssh.route import Client

LOGIN_OPTIONS = {
    **strict.STRICT,
    # it reports the login, see `LOGGED_IN` in node/ssh_login.py
    "PermitLocalCommand": "yes",
    "LocalCommand": "echo",
    # the options do not reach the ssh that a jump host would need
    "ProxyJump": "none",
    "ProxyCommand": "none",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
}
"""Options of ssh on a node. Its own configuration holds for all others."""


class Child(Struct, frozen=True):
    """A node as another one logs in to it. That one checks all of it before it uses it."""

    host: str
    user: str | None = None
    port: int | None = None

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields: dict[str, Any] = to_builtins(self)
        return fields


def child_of(client: Client, node: Node) -> Child:
    """Return a node as others log in to it: by its name and the port of the cluster file, for the
    configuration and the name service of the other node hold there; as the user that we are."""
    return Child(node.host, login_user(client, node), node.port)


def login_options(timeout: float) -> dict[str, str]:
    """Return the options for a login. `timeout`: seconds to connect."""
    return LOGIN_OPTIONS | {"ConnectTimeout": str(max(1, round(timeout)))}
