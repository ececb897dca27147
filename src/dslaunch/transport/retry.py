"""Retry when an SSH server refuses new connections because it has too many at once.

From ten clients that have not logged in yet on, sshd closes new connections at random, without a
reason (sshd_config, MaxStartups 10:30:100). A jump host reaches that limit first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from dslaunch.errors import NodeError

Opened = TypeVar("Opened")

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before each retry; up to 1.5 times as long, so that not all clients retry at once."""


def when_throttled(open_: Callable[[], Opened]) -> Opened:
    """Call `open_`, again while it is throttled; return its result. Raises its NodeError."""
    for pause in PAUSES:
        try:
            return open_()
        except NodeError as error:
            if error.failures[0].kind != "throttled":
                raise
            time.sleep(pause * random.uniform(1, 1.5))
    return open_()
