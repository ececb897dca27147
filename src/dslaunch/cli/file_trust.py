"""Decide whether a cluster file that the user did not name may be used.

The file defines what is run. In a directory of another user, such as /tmp or a shared project, a
`cluster.yaml` must not be used by default. Ansible does the same with `ansible.cfg`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dslaunch.errors import ConfigError, Problem


def check_trusted(path: Path) -> None:
    """Raise ConfigError if other users can change a file that was found by default.

    The file and its directory are checked, and for a symbolic link also its target.
    """
    real = path.resolve()
    places = dict.fromkeys([path.absolute().parent, path, real.parent, real])
    for place in places:
        why = _distrust(place)
        if why is not None:
            message = f"{why}; not used as the default cluster file"
            hint = f"if you trust it, name it on the command line: dslaunch COMMAND ./{path}"
            raise ConfigError((Problem(str(place), 0, 0, "", message),), hint=hint)


def _distrust(place: Path) -> str | None:
    """Return why other users can change a file or a directory; None if they cannot."""
    status = place.lstat()
    if status.st_uid not in (0, os.getuid()):
        return f"owned by another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return None  # its mode has no meaning
    if status.st_mode & stat.S_IWOTH:
        return "writable by every user"
    if status.st_mode & stat.S_IWGRP and not _only_ours(status.st_gid):
        return f"writable by group {_group_name(status.st_gid)}"
    return None


def _only_ours(gid: int) -> bool:
    """Return whether a group is the user's private group, as with umask 002: it is the primary
    group, has the user's name and no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    others = set(group.gr_mem) - {user.pw_name}
    return gid == user.pw_gid and group.gr_name == user.pw_name and not others


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
