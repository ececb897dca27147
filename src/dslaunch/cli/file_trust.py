"""Decide whether a cluster file may be used that the user did not name: it says what is run.

A user who enters a directory of another user, such as /tmp or a shared project, must not run what
a `cluster.yaml` there says merely because it is there. Ansible treats `ansible.cfg` so.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dslaunch.errors import ConfigError, Problem


def check_trusted(path: Path) -> None:
    """Raise ConfigError if a file that was found by default is under the control of others.

    Both the file and its directory count, and for a symbolic link also where it leads.
    """
    real = path.resolve()
    places = dict.fromkeys([path.absolute().parent, path, real.parent, real])
    for place in places:
        why = _distrust(place)
        if why is not None:
            message = f"{why}; it is not used unless it is named"
            hint = f"name it if you trust it: `dslaunch ... ./{path}`"
            raise ConfigError((Problem(str(place), 0, 0, "", message),), hint=hint)


def _distrust(place: Path) -> str | None:
    """Return why others control a file or a directory; None if they do not."""
    status = place.lstat()
    if status.st_uid not in (0, os.getuid()):
        return f"owned by another user (uid {status.st_uid})"
    if stat.S_ISLNK(status.st_mode):
        return None  # its mode has no meaning
    if status.st_mode & stat.S_IWOTH:
        return "every user can write it"
    if status.st_mode & stat.S_IWGRP and not _only_ours(status.st_gid):
        return f"the group {_group_name(status.st_gid)} can write it"
    return None


def _only_ours(gid: int) -> bool:
    """Return whether a group is the user's private one, as with umask 002: his primary group,
    named as he is, with no other member."""
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
