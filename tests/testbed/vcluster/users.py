"""Starting over in a user namespace, for those who are not root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.vcluster.access import command_line
from tests.testbed.vcluster.state import Cluster

SINGLE_UID = "VCLUSTER_SINGLE_UID"
"""Set to anything, it keeps /etc/subuid out of the decision."""


def map_users(directory: Path, arguments: Sequence[str]) -> None:
    """Start `arguments` over as root of a new user namespace: with the user's subordinate UIDs
    when newuidmap and /etc/subuid allow (`subuid`), else with the one UID (`single-uid`)."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    account = f"{user}:{os.geteuid()}"
    if has_subordinate_ids(user):
        mode, mapping = "subuid", ["--map-root-user", "--map-auto"]
    else:
        mode, mapping = "single-uid", ["--map-root-user"]
    again = [*command_line(directory), "--mode", mode, "--account", account, *arguments]
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", "--user", *mapping, *again])


def has_subordinate_ids(user: str) -> bool:
    """Whether an ordinary user may have more than one UID."""
    if SINGLE_UID in os.environ or shutil.which("newuidmap") is None:
        return False
    with contextlib.suppress(OSError):
        lines = Path("/etc/subuid").read_text().splitlines()
        return any(line.startswith(f"{user}:") for line in lines)
    return False


def join_users(cluster: Cluster, arguments: Sequence[str]) -> None:
    """Start `arguments` over in the user namespace that owns a cluster."""
    if cluster.settings.mode == "root" or os.geteuid() == 0 or cluster.switch is None:
        return
    enter = ["nsenter", "-t", str(cluster.switch.pid), "-U", "--preserve-credentials", "--"]
    os.execvp("nsenter", [*enter, *command_line(cluster.directory), *arguments])
