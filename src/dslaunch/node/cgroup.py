"""A control group for the ranks of a run, where the node lets us have one.

Ranks cannot leave it by detaching themselves, clearing their environment or changing their user,
and the kernel ends all of them at once: `cgroup.kill` (Linux >= 5.14, Documentation/admin-guide/
cgroup-v2.rst). It is made below the group that we are in ourselves, which root may do, and others
where that group is delegated to them. No controller is enabled, so nothing else changes.
"""

from __future__ import annotations

import contextlib
import os

from dslaunch.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import List, Optional, Set

PREFIX = "dslaunch-"


def make(run: str) -> Optional[str]:
    """Make a group that can be killed; None where there can be none."""
    above = own()
    if above is None:
        return None
    path = os.path.join(above, f"{PREFIX}{run}-{os.urandom(4).hex()}")
    try:
        os.mkdir(path, 0o755)
    except OSError:
        return None
    usable = all(os.access(os.path.join(path, n), os.W_OK) for n in ("cgroup.kill", "cgroup.procs"))
    if usable and _can_be_entered(path):
        return path
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return None


def own() -> Optional[str]:
    """The directory of the group of cgroup v2 that we are in; None where it is not mounted."""
    for line in paths.text_of("/proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            inside = line[len("0::") :]
            break
    else:
        return None
    for line in paths.text_of("/proc/self/mountinfo").splitlines():
        fields = line.split()
        # man 5 proc_pid_mountinfo: 3 is the root of the mount, 4 the mount point, then optional
        # fields up to `-`, then the type
        if "-" in fields and fields[fields.index("-") + 1] == "cgroup2":
            root = fields[3].rstrip("/")
            if root and not inside.startswith(root):
                return None
            return os.path.normpath(fields[4] + "/" + inside[len(root) :])
    return None


def is_ours(path: object, run: str) -> bool:
    """Whether that can be a group that `make` has made for a run."""
    if not isinstance(path, str) or os.path.normpath(path) != path:
        return False
    name = os.path.basename(path)
    return name.startswith(f"{PREFIX}{run}-") and os.path.isfile(os.path.join(path, "cgroup.kill"))


def entrance(path: str) -> int:
    """A descriptor; whoever writes `0` to it enters the group. Raises OSError."""
    return os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)


def members(path: str) -> Set[int]:
    """The processes in a group and in those below it."""
    found: Set[int] = set()
    for group in _groups(path):
        text = paths.text_of(os.path.join(group, "cgroup.procs"))
        # 0: a process of another namespace
        found |= {int(word) for word in text.split() if word.isdigit() and word != "0"}
    return found


def kill(path: str) -> None:
    """End all processes of a group, whatever they do and whoever they run as."""
    with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.kill"), "w") as file:
        file.write("1")


def remove(path: str) -> None:
    """Remove a group that is empty, with those that are below it."""
    for group in reversed(_groups(path)):
        with contextlib.suppress(OSError):
            os.rmdir(group)


def _groups(path: str) -> List[str]:
    """A group and all below it, each after the one that it is in."""
    return [directory for directory, _, _ in os.walk(path)]


def _can_be_entered(path: str) -> bool:
    """Try it with a process of ours: who may make a group need not be allowed to move into it."""
    try:
        fd = entrance(path)
    except OSError:
        return False
    child = os.fork()
    if child == 0:
        try:
            os.write(fd, b"0")
            os._exit(0)
        except OSError:
            os._exit(1)
    os.close(fd)
    return os.waitpid(child, 0)[1] == 0
