"""Compare the host keys that servers present with the recorded ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.errors import FailureKind, NodeError, NodeFailure
from dslaunch.transport.classify import Scene, Symptom, failure
from dslaunch.transport.ssh import known_hosts, trust
from dslaunch.transport.ssh.host_key_scan import KINDS, Gatherer
from dslaunch.transport.ssh.trust import PublicKey, ServerId, SshServer

if TYPE_CHECKING:
    from dslaunch.cluster.model import Ssh
    from dslaunch.transport.ssh.files import KnownHosts

Status = Literal["known", "certified", "new", "recorded", "declined", "failed"]
VERIFIED: tuple[Status, ...] = ("known", "certified", "recorded")
"""States in which others may be reached through a host."""


class Presented(Struct, frozen=True):
    """A server, the keys that it presents, and their state."""

    host: SshServer
    status: Status
    keys: tuple[PublicKey, ...] = ()
    failure: NodeFailure | None = None


def examine_all(
    hosts: Sequence[SshServer], gatherer: Gatherer, known: KnownHosts, ssh: Ssh, *, every: bool
) -> list[Presented]:
    """Ask servers for their keys, `ssh.fanout` at a time, and compare them with recorded ones.

    With `every`, ask a new server for all kinds of keys, else for the one that ssh prefers.
    """

    def look(host: SshServer) -> Presented:
        try:
            return _examined(host, gatherer, known, ssh, every=every)
        except NodeError as error:
            return Presented(host, "failed", failure=error.failures[0])

    with ThreadPoolExecutor(max(1, min(ssh.fanout, len(hosts)))) as pool:
        return list(pool.map(look, hosts))


def _examined(
    host: SshServer, gatherer: Gatherer, known: KnownHosts, ssh: Ssh, *, every: bool
) -> Presented:
    """Ask one server. Raises NodeError."""
    hop = host.hop
    entries = known.about(hop.known_hosts, hop.known_as)
    if known_hosts.has_authority(entries, hop.known_as) and gatherer.is_certified(host):
        return Presented(host, "certified")
    recorded = known_hosts.recorded(entries, hop.known_as)
    recorded_names = {entry.name for entry in recorded}
    kinds = tuple(kind for kind in KINDS if kind in recorded_names)
    # as ssh does: a known server is asked for a key of a kind that is recorded
    keys = gatherer.keys(host, kinds, every=False) if kinds else ()
    keys = keys or gatherer.keys(host, KINDS, every=every)
    if not keys:
        symptom = Symptom("protocol", "no supported type of host key")
        return Presented(host, "failed", failure=failure(_scene(host, recorded, ssh), symptom))
    statuses = {known_hosts.decide(entries, hop.known_as, key.blob) for key in keys}
    refused = _refused(statuses, revoked=any(gatherer.is_revoked(host, key) for key in keys))
    if refused is not None:
        symptom = Symptom(refused, key=" and ".join(map(str, keys)))
        found = failure(_scene(host, recorded, ssh), symptom)
        return Presented(host, "failed", keys, found)
    return Presented(host, "known" if "known" in statuses else "new", keys)


def _refused(statuses: set[known_hosts.Status], *, revoked: bool) -> FailureKind | None:
    """Return why the keys of a server are refused; None: they are known or new."""
    if revoked or "revoked" in statuses:
        return "host-key-revoked"
    if "changed" in statuses and "known" not in statuses:
        return "host-key-changed"
    return None


def _scene(host: SshServer, recorded: Sequence[known_hosts.Entry], ssh: Ssh) -> Scene:
    return Scene(
        node=host.node,
        hop=host.hop,
        recorded=recorded,
        config_file=ssh.config_file,
        timeout=ssh.connect_timeout,
    )


def reachable(hosts: Iterable[SshServer], verified: set[ServerId]) -> list[SshServer]:
    """Return the hosts whose jump hosts are all verified."""
    return [host for host in hosts if verified.issuperset(host.before)]


def not_reached(host: SshServer) -> Presented:
    """Return a host whose jump host was not verified."""
    why = "skipped: the host key of its jump host is not recorded"
    return Presented(host, "failed", failure=NodeFailure(host.node.host, "route", why))


def compared(found: Presented, listed: Sequence[trust.ListedFingerprint], file: str) -> Presented:
    """Return a new host with the keys that a list of fingerprints has, or as failed."""
    verdict = trust.accepted(found.host, found.keys, listed, file)
    if not isinstance(verdict, str):
        return replace(found, keys=verdict)
    host = found.host
    who = f"jump host {host.hop.alias}: " if host.is_jump else ""
    message = f"{who}host key differs from the listed one ({verdict})"
    hint = (
        "run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host's console and compare"
    )
    wrong = NodeFailure(host.node.host, "host-key-unlisted", message, hint, detail=verdict)
    return replace(found, status="failed", failure=wrong)
