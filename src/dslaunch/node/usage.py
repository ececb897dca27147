"""What this node and its ranks use at one time: raw counters, of which the launcher makes rates."""

from __future__ import annotations

import threading

from dslaunch.node import counters
from dslaunch.node.rank_usage import RankMeter

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Optional

    from dslaunch.node.gpu_meter import GpuMeter

KEPT_OUTPUT = 1024
"""Bytes of the last output that are kept for each rank."""


class UsageMeter:
    """Measures the node on request only."""

    def __init__(self, gpus: Optional[GpuMeter]) -> None:
        """`gpus`: reads the GPUs; None: the node has none."""
        self._gpus = gpus
        self._ranks = RankMeter()
        self._last: Dict[int, bytes] = {}
        self._measuring = threading.Lock()

    def output(self, rank: int, data: bytes) -> None:
        """Keep the end of a rank's output; secrets are masked already."""
        self._last[rank] = (self._last.get(rank, b"") + data[-KEPT_OUTPUT:])[-KEPT_OUTPUT:]

    def end(self) -> None:
        """End the process that reads the GPUs; nothing is measured any more."""
        if self._gpus is not None:
            self._gpus.end()

    def read(self, pids: Dict[int, int], output: int) -> Dict[str, Any]:
        """Return the counters of the node, of its GPUs and of each rank, with the last `output`
        bytes that each rank has printed. `pids`: the process of each rank."""
        with self._measuring:
            answer = counters.read()
            answer["ranks"] = self._ranks.read(pids)
        last = {rank: self._last.get(rank, b"")[-output:] for rank in pids} if output else {}
        answer["output"] = {str(rank): text.decode(errors="replace") for rank, text in last.items()}
        if self._gpus is not None:
            found = self._gpus.read()
            answer["gpus"] = found.get("gpus", [])
            answer["gpu_error"] = found.get("error")
        return answer
