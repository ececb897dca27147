"""Try again when an SSH server drops us for having too many connections at once.

sshd lets ten clients that have not logged in yet in, drops more of them at random and says no more
than "connection closed" (sshd_config, MaxStartups 10:30:100). A jump host meets that first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from dslaunch.errors import NodeError

Opened = TypeVar("Opened")

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before further tries; up to half as long again, so that not all come back at once."""


def when_throttled(open_: Callable[[], Opened]) -> Opened:
    """Give what `open_` gives. Raises its NodeError when that is no overload, or the last one."""
    for pause in PAUSES:
        try:
            return open_()
        except NodeError as error:
            if error.failures[0].kind != "throttled":
                raise
            time.sleep(pause * random.uniform(1, 1.5))
    return open_()
