"""`dslaunch trust`: verify and record the host keys of nodes and jump hosts."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonList
from dslaunch.cli.options import ClusterFile, open_cluster, read_text
from dslaunch.errors import NodeError, NodeFailure, UsageError
from dslaunch.plural import counted
from dslaunch.report.trust import as_data, rows, summary
from dslaunch.transport.ssh import hostkeys
from dslaunch.transport.ssh.files import KnownHosts, client_of
from dslaunch.transport.ssh.host_key_scan import Gatherer
from dslaunch.transport.ssh.hostkeys import compared
from dslaunch.transport.ssh.known_hosts_file import append
from dslaunch.transport.ssh.trust import SALT, file_for, hosts_of, line_for, parse_list

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.transport.ssh.hostkeys import Presented, Status
    from dslaunch.transport.ssh.trust import ListedFingerprint, PublicKey


def trust(
    file: ClusterFile = None,
    fingerprints: Annotated[
        Path | None,
        typer.Option(
            "--fingerprints",
            metavar="FILE",
            help="Record only keys with a fingerprint in this file, without a question.",
        ),
    ] = None,
    json: JsonList = False,
) -> None:
    """Verify and record the SSH host keys of the nodes.

    Shows the fingerprints of unknown keys of nodes and jump hosts, asks once, and adds them to the
    known_hosts file that ssh uses. Changed and revoked keys are never replaced.

    Example: dslaunch trust cluster.yaml --fingerprints fingerprints.txt
    """
    cluster = open_cluster(file)
    if not cluster.over_ssh:
        raise UsageError(f"transport `{cluster.transport}` does not use SSH host keys")
    listed = None
    if fingerprints is not None:
        listed = parse_list(read_text(fingerprints), str(fingerprints))
    done, failures = _rounds(cluster, listed, str(fingerprints))
    if json:
        ui.data(as_data(done))
    else:
        ui.result(summary(done))
    failures += [each.failure for each in done if each.failure is not None]
    if failures:
        raise NodeError(tuple(failures))
    if any(each.status == "declined" for each in done):
        raise typer.Exit(1)


def _rounds(
    cluster: Cluster, listed: Sequence[ListedFingerprint] | None, name: str
) -> tuple[list[Presented], list[NodeFailure]]:
    """Ask the hosts in the order of their routes: jump hosts are verified first."""
    # Paramiko, before threads: its imports are circular
    import dslaunch.transport.ssh.paramiko_link  # noqa: F401

    hosts, unresolved = hosts_of(client_of(cluster.ssh), cluster.nodes)
    wrong = [
        NodeFailure(host, "route", f"its SSH configuration cannot be resolved ({why})", detail=why)
        for host, why in unresolved.items()
    ]
    waiting, done = list(hosts), list[hostkeys.Presented]()
    with Gatherer(cluster.ssh) as gatherer:
        while waiting:
            verified = {e.host.place for e in done if e.status in hostkeys.VERIFIED}
            ready = hostkeys.reachable(waiting, verified)
            if not ready:
                done += map(hostkeys.not_reached, waiting)
                break
            waiting = [host for host in waiting if host not in ready]
            every = listed is not None
            found = hostkeys.examine_all(ready, gatherer, KnownHosts(), cluster.ssh, every=every)
            done += _settled(found, listed, name)
    return done, wrong


def _settled(
    found: Sequence[Presented], listed: Sequence[ListedFingerprint] | None, name: str
) -> list[Presented]:
    """Record the new keys that the list or the user accepts. Raises UsageError without either."""
    if listed is not None:
        found = [compared(e, listed, name) if e.status == "new" else e for e in found]
    new = [each for each in found if each.status == "new"]
    accepted = bool(new) and (listed is not None or _asked(new))
    if accepted:
        _record(new)
    status: Status = "recorded" if accepted else "declined"
    return [replace(e, status=status) if e.status == "new" else e for e in found]


def _asked(new: Sequence[Presented]) -> bool:
    """Show all fingerprints and ask once. Raises UsageError without a terminal."""
    ui.say(ui.table(rows(new)))
    if not sys.stdin.isatty():
        raise UsageError(
            f"{counted(len(new), 'unknown host key')}, and standard input is not a terminal",
            hint="run it in a terminal, or give the expected fingerprints: --fingerprints FILE",
        )
    places = ", ".join(dict.fromkeys(str(_file(each)) for each in new))
    ui.say(
        "Compare them with the output of `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the "
        "console of each host, or with a list from your provider or administrator."
    )
    ui.say(f"Record them in {places}? Type yes or no:")
    return sys.stdin.readline().strip().lower() == "yes"


def _file(each: Presented) -> Path:
    """Return the known_hosts file for a host. Raises UsageError if the configuration has none."""
    path = file_for(each.host.hop)
    if path is None:
        raise UsageError(
            f"{each.host.hop.alias}: UserKnownHostsFile is `none`: no file to record the key",
            hint="set UserKnownHostsFile in the SSH configuration",
        )
    return path


def _record(new: Sequence[Presented]) -> None:
    """Add the keys to the known_hosts files. Raises UsageError, DslaunchError."""
    lines: dict[Path, list[str]] = {}
    for each in new:
        lines.setdefault(_file(each), []).extend(_line(each, key) for key in each.keys)
    for path, added in lines.items():
        append(path, added)
        ui.wrote(path)


def _line(each: Presented, key: PublicKey) -> str:
    try:
        return line_for(each.host.hop, key, secrets.token_bytes(SALT))
    except ValueError as error:
        raise UsageError(f"{each.host.hop.alias}: {error}") from None
