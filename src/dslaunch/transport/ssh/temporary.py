"""Where temporary files of ssh are made: its configuration, and the sockets of its connections."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from dslaunch.node import private


def temporary_parents() -> Iterator[str]:
    """Yield the directories for temporary files in which no other user can replace what we make,
    that of the user first.

    Who puts a socket or a configuration in the place of ours gets what is sent to the nodes.
    """
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        with contextlib.suppress(OSError):
            private.check_parent(parent)
            yield parent
