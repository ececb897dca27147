"""A node's file system: its own small disk with the host's software bound in, read-only."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.vcluster.accounts import build_etc, build_homes
from tests.testbed.vcluster.slurm import build_slurm
from tests.testbed.vcluster.state import CONTROL, Bind, Cluster, Node
from tests.testbed.vcluster.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    bind,
    mount,
    pivot_root,
)

PRIVATE = {
    *("proc", "sys", "dev", "run", "tmp", "root", "home", "etc", "var", "lost+found"),
    *("shared", "scratch"),
}
"""Top-level directories that every node has for itself; the others are the host's."""

CHECKOUT = Path(__file__).resolve().parents[3]
"""The project, which every node sees at the same path."""

OWN_DISK = "64m"
CGROUPS = Path("/sys/fs/cgroup")
VIRTUAL = MS_NOSUID | MS_NODEV | MS_NOEXEC


def software_binds() -> tuple[Bind, ...]:
    """The checkout, this Python and its environment, where nodes would not see them: in a
    directory that they replace by their own."""
    wanted = {str(CHECKOUT), sys.prefix, sys.base_prefix}
    hidden = sorted(path for path in wanted if path.split("/")[1] in PRIVATE)
    return tuple(Bind(path, path) for path in hidden)


def build_root(cluster: Cluster, node: Node, root: Path) -> None:
    """Build a node's file system below `root` and make it this process's `/`."""
    settings = cluster.settings
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", data=f"mode=755,size={settings.disk}")
    bind_software(root)
    build_etc(cluster, node, root)
    build_dev(root, settings.shm)
    build_directories(root, settings.scratch)
    build_disks(root, settings.own_disks)
    build_kernel_views(root)
    build_programs(node, root)
    build_slurm(cluster, node, root)
    bind(settings.shared, root / "shared")
    for wanted in settings.binds:
        if Path(wanted.source).exists():
            bind(wanted.source, f"{root}{wanted.target}", read_only=wanted.read_only)
    build_homes(cluster, node, root)
    pivot_root(root)


def bind_software(root: Path) -> None:
    """Show the host's /usr and whatever else is not private, live and read-only."""
    for entry in sorted(Path("/").iterdir()):
        if entry.name in PRIVATE:
            continue
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            bind(entry, root / entry.name, read_only=True)


def build_directories(root: Path, scratch: str) -> None:
    """The empty directories, and /scratch, a second small disk."""
    for path in ("proc", "sys", "run/sshd", "run/lock", "scratch", "var/empty", "var/cache"):
        (root / path).mkdir(parents=True)
    for path in ("var/lib", "var/log", "var/spool"):
        (root / path).mkdir()
    for path in ("tmp", "var/tmp"):
        (root / path).mkdir()
        (root / path).chmod(0o1777)
    (root / "var/run").symlink_to("/run")
    mount("tmpfs", root / "scratch", "tmpfs", data=f"mode=1777,size={scratch}")


def build_disks(root: Path, paths: Sequence[str]) -> None:
    """Further directories that are a disk each, so that each can be full alone."""
    for path in paths:
        directory = root / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        mount("tmpfs", directory, "tmpfs", data=f"mode=1777,size={OWN_DISK}")


def build_kernel_views(root: Path) -> None:
    """/proc and /sys of the node's own namespaces, with a boot_id per node and per boot; the
    machine's cgroups to read, where a program finds whether the kernel killed for memory."""
    mount("sysfs", root / "sys", "sysfs", VIRTUAL)
    if CGROUPS.is_dir():
        bind(CGROUPS, root / str(CGROUPS)[1:], read_only=True)
    mount("proc", root / "proc", "proc", VIRTUAL)
    boot_id = root / "run/boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    mount(boot_id, root / "proc/sys/kernel/random/boot_id", flags=MS_BIND)


def build_programs(node: Node, root: Path) -> None:
    """/usr/local/bin of the node's own: a node can have a program, such as a recorded
    nvidia-smi, that another lacks. The host's programs stay, as links."""
    host = Path("/usr/local/bin")
    own = root / ".own/usr-local-bin"
    own.mkdir(parents=True)
    if host.is_dir():
        bind(host, root / ".host/usr-local-bin", read_only=True)
        for program in host.iterdir():
            (own / program.name).symlink_to(f"/.host/usr-local-bin/{program.name}")
        mount(own, root / "usr/local/bin", flags=MS_BIND)
    tool = Path(sys.prefix, "bin/dslaunch")
    if node.name == CONTROL and tool.exists() and not (own / "dslaunch").is_symlink():
        (own / "dslaunch").symlink_to(tool)


def build_dev(root: Path, shm: str) -> None:
    """A private /dev with the harmless devices, terminals and shared memory."""
    dev = root / "dev"
    dev.mkdir()
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=4m")
    for device in ("null", "zero", "full", "random", "urandom", "tty"):
        bind(f"/dev/{device}", dev / device)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    terminals = "newinstance,ptmxmode=0666,mode=0620"
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals)
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={shm}")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {"stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for link, target in links.items():
        (dev / link).symlink_to(target)
