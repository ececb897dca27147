"""Read the user's SSH files on this machine: configuration and known hosts."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import ConfigError, Problem
from dslaunch.transport.ssh import config, known_hosts
from dslaunch.transport.ssh.route import Client

if TYPE_CHECKING:
    from dslaunch.cluster.model import Ssh

Entries = tuple[known_hosts.Entry, ...]


class KnownHosts:
    """The known_hosts files, each read once and as a whole. May be used by many threads."""

    def __init__(self) -> None:
        self._files: dict[Path, Entries] = {}
        self._indexes: dict[tuple[Path, ...], known_hosts.EntryIndex] = {}
        self._authorities: dict[tuple[Path, ...], Entries] = {}

    def entries(self, files: tuple[Path, ...]) -> Entries:
        """Return the entries of several files."""
        return tuple(entry for file in files for entry in self._read(file))

    def about(self, files: tuple[Path, ...], host: known_hosts.HostName) -> Entries:
        """Return the entries of several files that are about a host."""
        if files not in self._indexes:
            self._indexes[files] = known_hosts.EntryIndex(self.entries(files))
        return self._indexes[files].about(host)

    def authorities(self, files: tuple[Path, ...]) -> Entries:
        """Return the certificate authorities in several files."""
        if files not in self._authorities:
            entries = self.entries(files)
            found = (entry for entry in entries if entry.marker == "@cert-authority")
            self._authorities[files] = tuple(found)
        return self._authorities[files]

    def _read(self, file: Path) -> Entries:
        if file not in self._files:
            # two threads may both read the file; each stores the whole of it in one step
            text = config.read_text(file, config.LARGEST_KNOWN_HOSTS)
            self._files[file] = known_hosts.parse(text, str(file))
        return self._files[file]


def client_of(ssh: Ssh, environ: Mapping[str, str] = os.environ) -> Client:
    """Return the user and the configuration files for a cluster.

    As with `ssh -F`, a file that is named replaces the system's file too.
    Raises ConfigError for a ~/.ssh/config that others can write, as ssh refuses it.
    """
    home = Path.home()
    ours = home / ".ssh"
    user_file = Path(ssh.config_file or config.USER_FILE).expanduser()
    files = [config.read(user_file, ours)]
    if ssh.config_file is None:
        _check_owner(user_file)
        system = Path(config.SYSTEM_FILE)
        files.append(config.read(system, system.parent))
    return Client(tuple(files), _user_name(), home, environ)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _check_owner(path: Path) -> None:
    """Raise ConfigError if another user owns the file or can write it."""
    try:
        status = path.stat()
    except OSError:
        return
    foreign = status.st_uid not in (0, os.getuid())
    if foreign or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = "another user owns it or can write it; ssh refuses it too"
        problem = Problem(file=str(path), line=0, column=0, path="", message=why)
        raise ConfigError((problem,), hint=f"chmod 600 {path}")
