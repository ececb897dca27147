"""Collect what this machine knows about a host that could not be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.transport.classify import Scene
from dslaunch.transport.ssh.keys import keys_for
from dslaunch.transport.ssh.known_hosts import recorded

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node, Ssh
    from dslaunch.transport.ssh.files import KnownHosts
    from dslaunch.transport.ssh.route import Client, Hop


def scene_at(hop: Hop | None, *, node: Node, ssh: Ssh, client: Client, known: KnownHosts) -> Scene:
    """Return the keys for a host: the user's, and its own in known_hosts files."""
    if hop is None:
        return Scene(node, config_file=ssh.config_file, timeout=ssh.connect_timeout)
    environ = dict(client.environ)
    agent = hop.options.first("identityagent")
    if agent is not None and agent != "SSH_AUTH_SOCK":
        environ["SSH_AUTH_SOCK"] = "" if agent == "none" else agent
    keys = keys_for(
        hop.identity_files, only_these=hop.only_these_keys, home=client.home, environ=environ
    )
    entries = recorded(known.about(hop.known_hosts, hop.known_as), hop.known_as)
    return Scene(
        node=node,
        hop=hop,
        keys=keys,
        recorded=entries,
        config_file=ssh.config_file,
        timeout=ssh.connect_timeout,
    )
