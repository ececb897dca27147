"""The user's private keys, of which each file is parsed once and not for each connection."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko


class SharedKeys:
    """Private keys by file and kind, and why a file holds none of a kind. May be used by many
    threads."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[str, type[paramiko.PKey]], paramiko.PKey | paramiko.SSHException
        ] = {}

    def get(
        self, file: str, kind: type[paramiko.PKey], parse: Callable[[], paramiko.PKey]
    ) -> paramiko.PKey:
        """Return the key of a kind in a file, parsed by `parse` the first time.

        Raises its SSHException, every time.
        """
        import paramiko

        # two threads may both parse the file; each stores the result in one step
        if (file, kind) not in self._known:
            try:
                self._known[file, kind] = parse()
            except paramiko.SSHException as error:
                self._known[file, kind] = error
        found = self._known[file, kind]
        if isinstance(found, paramiko.SSHException):
            raise copy.copy(found)  # each with a separate traceback
        return found
