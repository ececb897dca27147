"""Running programs inside a node."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from tests.testbed.vcluster.state import Cluster, ClusterError, Node
from tests.testbed.vcluster.syscalls import in_user_namespace_of

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def nsenter(cluster: Cluster, pid: int, kinds: str = "muinp") -> list[str]:
    """Command prefix that enters the namespaces of an init."""
    outside = cluster.settings.mode != "root" and not in_user_namespace_of(pid)
    user = ["-U", "--preserve-credentials"] if outside else []
    return ["nsenter", "-t", str(pid), *user, *(f"-{kind}" for kind in kinds), "--"]


def as_user(cluster: Cluster, user: str) -> list[str]:
    """Command prefix that drops to an account, inside a node."""
    settings = cluster.settings
    if user == "root":
        return []
    if user != settings.user:
        raise ClusterError(f"no account {user!r}; there are root and {settings.user}")
    if settings.single_uid:
        ids = f"--map-user={settings.uid}", f"--map-group={settings.uid}"
        return ["unshare", "--user", *ids, "--"]
    ids = f"--reuid={settings.uid}", f"--regid={settings.uid}"
    return ["setpriv", *ids, "--clear-groups", "--"]


def home_of(user: str) -> str:
    """The home directory of an account on every node."""
    return "/root" if user == "root" else f"/home/{user}"


def node_command(
    cluster: Cluster,
    name: str,
    command: Sequence[str],
    *,
    user: str = "root",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> list[str]:
    """The command that runs another inside a node, in the home directory and with the
    environment that a login gives. It dies with its caller (PR_SET_PDEATHSIG)."""
    pid = cluster.init_of(cluster.node(name))
    clean = {"USER": user, "LOGNAME": user, "HOME": home_of(user), "PATH": PATH}
    clean |= {"LANG": "C.UTF-8", "SHELL": "/bin/bash", **(env or {})}
    return [
        *nsenter(cluster, pid),
        *as_user(cluster, user),
        *["setpriv", "--pdeathsig", "KILL", "--"],
        *["env", "-i", "-C", cwd or home_of(user), *(f"{k}={v}" for k, v in clean.items())],
        *command,
    ]


def run_in(cluster: Cluster, node: Node, *command: str, stdin: str = "", ok: bool = False) -> str:
    """Run a command as root in a node; its output. ClusterError if it fails, unless `ok`."""
    full = node_command(cluster, node.name, command)
    done = subprocess.run(full, input=stdin, text=True, capture_output=True, check=False)
    if done.returncode and not ok:
        what, said = shlex.join(command), (done.stderr or done.stdout).strip()
        raise ClusterError(f"{node.name}: {what}: exit code {done.returncode}: {said}")
    return done.stdout


def write_file(cluster: Cluster, node: Node, path: str, text: str) -> None:
    """Replace the content of a file in a node; its mode stays."""
    run_in(cluster, node, "sh", "-c", f"cat > {shlex.quote(path)}", stdin=text)


def skew_env(node: Node) -> dict[str, str]:
    """Environment that shifts a program's wall clock (not its monotonic clock).

    It goes into ssh sessions and `exec`. /etc/ld.so.preload would reach everything, and kills
    sshd: its seccomp sandbox forbids the unlink() that libfaketime makes at exit.
    """
    if "skew" not in node.faults:
        return {}
    offset = node.faults["skew"][0]
    return {"LD_PRELOAD": FAKETIME, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def terminal_env() -> dict[str, str]:
    """What an interactive `exec` takes along."""
    return {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
