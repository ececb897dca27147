"""Leave out what a launcher writes because it was stopped, which explains nothing."""

from __future__ import annotations

import re

from dslaunch.run.events import Line

FIRST = "Traceback (most recent call last):"
LAST = "torch.distributed.elastic.multiprocessing.api.SignalException:"
"""How the last line of torchrun's begins (torch 2.13, distributed/elastic/multiprocessing/api.py,
`_terminate_process_handler`)."""
MOST_LINES = 200
"""Lines of a traceback that are kept until its last one."""
_WARNING = re.compile(
    r"torch[./]distributed[./]elastic[./].{1,200}"
    r"(?:Received \S{1,20} death signal, shutting down workers"
    r"|Sending process \d{1,10} closing signal \S{1,20})$"
)
"""torchrun's warnings that it was stopped, and that it stops each of its ranks (torch 1.9 to 2.13,
distributed/elastic/agent/server/api.py, `run`; multiprocessing/api.py, `_close`)."""


class StopMessages:
    """Leaves out what torchrun writes when it ends for a signal: after a requested stop each node
    would show a warning for each of its ranks and a traceback of 25 lines."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[Line]] = {}
        """The tracebacks that have begun, by node and stream."""

    def shown(self, line: Line) -> list[Line]:
        """Return the lines that can be shown now that this one has arrived."""
        source = (line.host, line.stream)
        kept = self._kept.get(source, [])
        if line.rank is not None:
            return [line]
        if _WARNING.search(line.text):
            return []
        if not kept and line.text != FIRST:
            return [line]
        kept.append(line)
        is_inside = line.text == FIRST or line.text.startswith(" ")
        if is_inside and len(kept) < MOST_LINES:
            self._kept[source] = kept
            return []
        self._kept.pop(source, None)
        return [] if line.text.startswith(LAST) else kept

    def rest(self) -> list[Line]:
        """Return the lines of tracebacks that have no last line."""
        kept = [line for lines in self._kept.values() for line in lines]
        self._kept.clear()
        return kept
