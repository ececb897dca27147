"""Choose between the transports `fabric` and `openssh` by what the SSH configuration needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.errors import ErrorCode, PlanError, ToolMissingError
from dslaunch.plural import counted
from dslaunch.transport.ssh import config, keys, known_hosts
from dslaunch.transport.ssh.files import KnownHosts, client_of
from dslaunch.transport.ssh.needs import Need, Surroundings, needs_of_keys, needs_of_options
from dslaunch.transport.ssh.route import Client, Hop, RouteError, route

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node, Ssh

AUTO = "auto"
FABRIC, OPENSSH = "fabric", "openssh"
AUTHORITY = Need(
    "@cert-authority in known_hosts", "Paramiko does not verify host certificates", weaker=False
)


class Choice(Struct, frozen=True):
    """A transport and the reason for it."""

    name: str
    why: str
    notable: bool
    """Whether to show it: the default case is not notable."""


class Inspection:
    """Finds what the nodes of a cluster need, from the files of this machine."""

    def __init__(self, ssh: Ssh, environ: Mapping[str, str] = os.environ) -> None:
        self._client = client_of(ssh, environ)
        self._around = _surroundings(self._client)
        self._known = KnownHosts()
        self._of_keys: dict[tuple[tuple[Path, ...], bool], tuple[Need, ...]] = {}

    def needs(self, nodes: Sequence[Node]) -> dict[Need, list[str]]:
        """Return every need with the nodes that have it."""
        found: dict[Need, list[str]] = {}
        for node in nodes:
            needs = (need for hop in self._route(node) for need in self._needs_of(hop))
            for need in dict.fromkeys(needs):
                found.setdefault(need, []).append(node.host)
        return found

    def _route(self, node: Node) -> tuple[Hop, ...]:
        try:
            return route(self._client, node)
        except RouteError:
            return ()  # reported for this node alone, when we connect to it

    def _needs_of(self, hop: Hop) -> Iterator[Need]:
        yield from needs_of_options(hop, self._around)
        yield from self._needs_of_keys(hop.identity_files, hop.only_these_keys)
        authorities = self._known.authorities(hop.known_hosts)
        if known_hosts.has_authority(authorities, hop.known_as):
            yield AUTHORITY

    def _needs_of_keys(self, files: tuple[Path, ...], only_these: bool) -> tuple[Need, ...]:
        """Return the needs of a set of keys. Most hosts share theirs: each set is examined once."""
        asked = (files, only_these)
        if asked not in self._of_keys:
            found = needs_of_keys(files, self._around, only_these=only_these)
            self._of_keys[asked] = tuple(found)
        return self._of_keys[asked]


def _surroundings(client: Client) -> Surroundings:
    directives = (directive for file in client.files for directive in _all(file))
    may_use_ticket = any(directive.keyword.startswith("gssapi") for directive in directives)
    return Surroundings(
        agent_key_types=keys.agent_key_types(client.environ),
        ticket=may_use_ticket and keys.has_ticket(client.environ),
        home=client.home,
    )


def _all(directives: config.Directives) -> Iterable[config.Directive]:
    for directive in directives:
        yield directive
        for included in directive.included:
            yield from _all(included)


def choose(name: str, cluster: Cluster) -> Choice:
    """Return the transport for a cluster: the named one, or for `auto` the suitable one.

    Raises PlanError if `fabric` is named and would be less strict than OpenSSH, ToolMissingError
    if OpenSSH is needed and not installed.
    """
    if name not in (AUTO, FABRIC):
        return Choice(name, "as requested", notable=False)
    needs = Inspection(cluster.ssh).needs(cluster.nodes)
    return decide(name, needs, has_openssh=shutil.which("ssh") is not None)


def decide(name: str, needs: Mapping[Need, Sequence[str]], *, has_openssh: bool) -> Choice:
    """Return the transport for these needs. Raises PlanError, ToolMissingError. Pure."""
    if not needs:
        return Choice(FABRIC, "nothing in the SSH configuration needs OpenSSH", notable=False)
    reasons = [_reason(need, hosts) for need, hosts in needs.items()]
    if name == AUTO and not has_openssh:
        raise ToolMissingError(
            "\n".join(["ssh not found, but OpenSSH is needed:", *reasons]),
            hint="install the OpenSSH client",
        )
    first, more = reasons[0], len(reasons) - 1
    why = f"{first}; and {counted(more, 'more reason')}" if more else first
    if name == AUTO:
        return Choice(OPENSSH, why, notable=True)
    weaker = [_reason(need, hosts) for need, hosts in needs.items() if need.weaker]
    if weaker:
        raise PlanError(
            "\n".join(["transport `fabric` would be less strict than OpenSSH:", *weaker]),
            hint="set `transport: openssh`, or leave `transport` out",
            code=ErrorCode.TRANSPORT_LESS_STRICT,
        )
    return Choice(FABRIC, f"as requested, although: {why}", notable=True)


def _reason(need: Need, hosts: Sequence[str]) -> str:
    others = len(hosts) - 1
    where = f"{hosts[0]} and {counted(others, 'other node')}" if others else hosts[0]
    return f"{need.feature}: {need.why} ({where})"
