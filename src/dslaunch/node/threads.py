"""Threads of a node's agent, which must not fail where no more can be started."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Callable


def start(work: Callable[[], object]) -> bool:
    """Do work in a thread. Return whether one could be started: the ranks may have as many
    processes and threads as their user or container may have (RLIMIT_NPROC, pids.max)."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        return False
    return True
