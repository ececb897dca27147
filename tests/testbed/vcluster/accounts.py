"""A node's /etc, accounts and keys, as files below its future root directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.testbed.vcluster.inside import home_of, skew_env
from tests.testbed.vcluster.network import address_of
from tests.testbed.vcluster.state import CONTROL, Cluster, Node
from tests.testbed.vcluster.syscalls import bind

PASSWORD = "vcluster"
"""Of every account on every node; only nodes with the fault `password-only` ask for it."""
# openssl passwd -6 -salt vcluster vcluster
PASSWORD_HASH = (
    "$6$vcluster$aNZbg/zmVbbS.XVAx1IwRmZhn4iHQuYEwJyjcI9egmCiJ0xAdaHs7LjLsEFN3CAW"
    "uLCvAqNI56IaNugMy81VJ0"
)
OWN_ETC = {
    *("hosts", "hostname", "resolv.conf", "machine-id", "mtab", "ssh", "ld.so.preload"),
    *("passwd", "group", "shadow", "gshadow", "passwd-", "group-", "shadow-", "gshadow-"),
    *("subuid-", "subgid-", "environment", "profile.d", "sudoers", "sudoers.d"),
    *("munge", "slurm"),
}
"""What a node has for itself; the rest of /etc are links to the host's."""


def make_keys(cluster: Cluster) -> None:
    """One login key for the whole cluster, one host key per node, and what all know of them."""
    keys = cluster.directory / "keys"
    keys.mkdir(mode=0o700)
    for name in ("id_ed25519", *cluster.nodes):
        options = "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@vcluster"
        subprocess.run(["ssh-keygen", *options, "-f", str(keys / name)], check=True)
    lines = [known_host_line(cluster, node) for node in cluster.nodes.values()]
    (keys / "known_hosts").write_text("".join(lines))


def known_host_line(cluster: Cluster, node: Node) -> str:
    """A node's line in everybody's /etc/ssh/ssh_known_hosts."""
    names = [node.name, address_of(node.index)]
    for nic in range(1, cluster.settings.nics):
        names += [f"{node.name}-e{nic}", address_of(node.index, nic)]
    kind, key = (cluster.directory / f"keys/{node.name}.pub").read_text().split()[:2]
    return f"{','.join(names)} {kind} {key}\n"


def build_etc(cluster: Cluster, node: Node, root: Path) -> None:
    """Write /etc."""
    bind("/etc", root / ".host/etc", read_only=True)
    etc = root / "etc"
    etc.mkdir()
    for entry in Path("/etc").iterdir():
        if entry.name not in OWN_ETC:
            (etc / entry.name).symlink_to(f"/.host/etc/{entry.name}")
    (etc / "hostname").write_text(f"{node.name}\n")
    (etc / "hosts").write_text(hosts_file(cluster, node))
    (etc / "resolv.conf").write_text("# no DNS in here\n")
    (etc / "machine-id").write_text(f"{node.index + 1:032x}\n")
    (etc / "environment").write_text("")
    (etc / "profile.d").mkdir()
    (etc / "mtab").symlink_to("/proc/mounts")
    build_accounts(cluster, etc)
    build_ssh(cluster, node, etc / "ssh")


def hosts_file(cluster: Cluster, node: Node) -> str:
    """Every node by name, and by NODE-eK on its further NICs."""
    settings = cluster.settings
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    if settings.loopback_hostname:
        lines.append(f"127.0.1.1 {node.name}")
    for other in cluster.nodes.values():
        if not (settings.loopback_hostname and other is node):
            lines.append(f"{address_of(other.index)} {other.name}")
        nics = range(1, settings.nics)
        lines += [f"{address_of(other.index, nic)} {other.name}-e{nic}" for nic in nics]
    return "\n".join(lines) + "\n"


def build_accounts(cluster: Cluster, etc: Path) -> None:
    """The host's accounts with root's and the ordinary user's replaced by the cluster's."""
    user, uid = cluster.settings.user, cluster.settings.uid
    accounts = _lines_of_others("/etc/passwd", uid, "root", user)
    accounts = [f"root:x:0:0:root:{home_of('root')}:/bin/bash", *accounts]
    accounts.append(f"{user}:x:{uid}:{uid}::{home_of(user)}:/bin/bash")
    groups = _lines_of_others("/etc/group", uid, user)
    if cluster.settings.single_uid:  # sshd gives terminals to this group: no GID for it here
        groups = [line for line in groups if not line.startswith("tty:")]
    groups.append(f"{user}:x:{uid}:")
    (etc / "passwd").write_text("\n".join(accounts) + "\n")
    (etc / "group").write_text("\n".join(groups) + "\n")
    shadow = [f"{who}:{PASSWORD_HASH}:19000:0:99999:7:::\n" for who in ("root", user)]
    (etc / "shadow").write_text("".join(shadow))
    (etc / "shadow").chmod(0o600)
    (etc / "gshadow").write_text("")


def _lines_of_others(file: str, uid: int, *names: str) -> list[str]:
    fields = [line.split(":") for line in Path(file).read_text().splitlines()]
    return [":".join(f) for f in fields if f[0] not in names and f[2] != str(uid)]


def build_ssh(cluster: Cluster, node: Node, ssh: Path) -> None:
    """Write /etc/ssh: this node's host key, everybody's public keys."""
    ssh.mkdir()
    for entry in ("ssh_config", "moduli"):
        if Path("/etc/ssh", entry).exists():
            (ssh / entry).symlink_to(f"/.host/etc/ssh/{entry}")
    (ssh / "ssh_config.d").mkdir()
    keys = cluster.directory / "keys"
    for suffix, mode in (("", 0o600), (".pub", 0o644)):
        key = ssh / f"ssh_host_ed25519_key{suffix}"
        key.write_bytes((keys / f"{node.name}{suffix}").read_bytes())
        key.chmod(mode)
    (ssh / "ssh_known_hosts").write_text((keys / "known_hosts").read_text())
    (ssh / "sshd_config").write_text(sshd_config(cluster, node))


def sshd_config(cluster: Cluster, node: Node) -> str:
    """Debian's defaults (MaxStartups, MaxSessions and so on); key authentication only,
    unless the node's faults say otherwise."""
    password_only = "password-only" in node.faults
    session_env = " ".join(f"{key}={value}" for key, value in skew_env(node).items())
    lines = [
        "Port 22",
        "HostKey /etc/ssh/ssh_host_ed25519_key",
        "PidFile /run/sshd.pid",
        "PermitRootLogin yes",
        f"PubkeyAuthentication {'no' if password_only else 'yes'}",
        f"PasswordAuthentication {'yes' if password_only else 'no'}",
        "KbdInteractiveAuthentication no",
        f"UsePAM {'yes' if cluster.settings.pam else 'no'}",
        "UseDNS no",
        "PrintMotd no",
        "AcceptEnv LANG LC_*",
        f"SetEnv {session_env}" if session_env else "",
        "Subsystem sftp /usr/lib/openssh/sftp-server",
    ]
    return "\n".join(lines) + "\n"


def build_homes(cluster: Cluster, node: Node, root: Path) -> None:
    """Each account's home, with the cluster's key: from every node to every node without a
    password. On the control machine it holds a cluster file too."""
    settings = cluster.settings
    for user, uid in (("root", 0), (settings.user, 0 if settings.single_uid else settings.uid)):
        home = Path(f"{root}{home_of(user)}")
        (home / ".ssh").mkdir(parents=True, exist_ok=True)
        (home / ".ssh").chmod(0o700)
        for file, key in {
            "authorized_keys": "id_ed25519.pub",
            "id_ed25519": "id_ed25519",
            "id_ed25519.pub": "id_ed25519.pub",
        }.items():
            (home / ".ssh" / file).write_bytes((cluster.directory / "keys" / key).read_bytes())
            (home / ".ssh" / file).chmod(0o600)
        if node.name == CONTROL:
            (home / "cluster.yaml").write_text((cluster.directory / "inside.yaml").read_text())
        for path in (home, home / ".ssh", *(home / ".ssh").iterdir()):
            os.chown(path, uid, uid)
