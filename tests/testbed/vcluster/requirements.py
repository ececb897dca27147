"""What a virtual cluster needs of the machine, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from tests.testbed.vcluster.inside import PATH

PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""Program -> the Debian package that has it."""
SLURM_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
"""The same for a cluster with SLURM."""
ACCOUNTING_PACKAGES = {"mariadbd": "mariadb-server-core", "slurmdbd": "slurmdbd"}
"""And with SLURM's accounting."""


def missing(*, slurm: bool = False, accounting: bool = False) -> str | None:
    """Why there can be no virtual cluster, with SLURM and its accounting if they are wanted: what
    is missing here and what to do. None when there can."""
    if platform.system() != "Linux":
        return f"needs Linux, this is {platform.system()}"
    needed = PACKAGES | (SLURM_PACKAGES if slurm else {})
    needed |= ACCOUNTING_PACKAGES if accounting else {}
    absent = [program for program in needed if shutil.which(program, path=PATH) is None]
    if absent:
        packages = " ".join(sorted({needed[program] for program in absent}))
        return f"needs {', '.join(absent)}: apt-get install {packages}"
    return _namespaces_refused()


def _namespaces_refused() -> str | None:
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    kinds = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
    command = ["unshare", *user, *kinds, "mount", "-t", "tmpfs", "none", "/tmp"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().partition("\n")[0]
    allow = (
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0) or use root"
        if user
        else "start the container with --privileged, or use a virtual machine"
    )
    return f"needs namespaces ({said}): {allow}"
