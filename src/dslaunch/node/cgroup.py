"""A control group for the ranks of a run, where the node allows one.

Ranks cannot leave it by detaching themselves, clearing their environment or changing their user,
and the kernel ends all of them at once: `cgroup.kill` (Linux >= 5.14, Documentation/admin-guide/
cgroup-v2.rst). It is created below our own group, which root may do, and other users where that
group is delegated to them. No controller is enabled, so nothing else changes.
"""

from __future__ import annotations

import contextlib
import os

from dslaunch.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable, List, Optional, Set

PREFIX = "dslaunch-"


def make(run: str) -> Optional[str]:
    """Create a group that can be killed and return its path; None where that is not possible."""
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
    """Return the directory of the group of cgroup v2 that we are in; None where it is not
    mounted."""
    inside = _inside(lambda number, _: number == "0")
    return None if inside is None else _directory(inside, lambda kind, _: kind == "cgroup2")


def cpu_groups() -> List[str]:
    """Return the directories of the group that limits our CPU time and of all above it, of cgroup
    v2, or of the controller `cpu` of cgroup v1; a limit of any of them holds us back."""
    inside = _inside(lambda _, controllers: "cpu" in controllers)
    if inside is None:
        found = own()
    else:
        found = _directory(inside, lambda kind, options: kind == "cgroup" and "cpu" in options)
    groups: List[str] = []
    while found and os.path.exists(os.path.join(found, "cgroup.procs")):
        groups.append(found)
        found = os.path.dirname(found)
    return groups


def _inside(chosen: Callable[[str, List[str]], bool]) -> Optional[str]:
    """Return the path of our group in the hierarchy that is chosen by its number and controllers;
    man 7 cgroups."""
    for line in paths.text_of("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if inside.startswith("/") and chosen(number, controllers.split(",")):
            return inside
    return None


def _directory(inside: str, chosen: Callable[[str, List[str]], bool]) -> Optional[str]:
    """Return where a group is mounted; the mount is chosen by its type and options."""
    for line in paths.text_of("/proc/self/mountinfo").splitlines():
        fields = line.split()
        # man 5 proc_pid_mountinfo: 3 is the root of the mount, 4 the mount point, then optional
        # fields up to `-`, then the type, the source and the options of the file system
        if "-" not in fields:
            continue
        kind, _, options = (*fields[fields.index("-") + 1 :], "", "", "")[:3]
        if chosen(kind, options.split(",")):
            root = fields[3].rstrip("/")
            if root and not inside.startswith(root):
                return None
            return os.path.normpath(fields[4] + "/" + inside[len(root) :])
    return None


def is_ours(path: object, run: str) -> bool:
    """Return whether a value can be the path of a group that `make` created for a run."""
    if not isinstance(path, str) or os.path.normpath(path) != path:
        return False
    name = os.path.basename(path)
    return name.startswith(f"{PREFIX}{run}-") and os.path.isfile(os.path.join(path, "cgroup.kill"))


def entrance(path: str) -> int:
    """Return a descriptor; a process that writes `0` to it enters the group. Raises OSError."""
    return os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)


def members(path: str) -> Set[int]:
    """Return the processes in a group and in those below it."""
    found: Set[int] = set()
    for group in _groups(path):
        text = paths.text_of(os.path.join(group, "cgroup.procs"))
        # 0: a process of another namespace
        found |= {int(word) for word in text.split() if word.isdigit() and word != "0"}
    return found


def kill(path: str) -> None:
    """Kill all processes of a group, also those of other users."""
    with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.kill"), "w") as file:
        file.write("1")


def remove(path: str) -> None:
    """Remove an empty group, with those below it."""
    for group in reversed(_groups(path)):
        with contextlib.suppress(OSError):
            os.rmdir(group)


def _groups(path: str) -> List[str]:
    """Return a group and all below it, each after the one that it is in."""
    return [directory for directory, _, _ in os.walk(path)]


def _can_be_entered(path: str) -> bool:
    """Return whether a child process can enter a group: creating one does not imply that."""
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
