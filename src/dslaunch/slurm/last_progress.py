"""What the last output of a job says about its training."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

from dslaunch.run.events import Line
from dslaunch.run.lines import printable
from dslaunch.run.progress import RunProgress
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.output_sources import Tail
from dslaunch.slurm.output_tail import lines_backward

LINES = 50
"""Last lines that are read."""

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dslaunch.run.progress import Progress


def last_progress(path: Path, layout: Layout, formats: Sequence[str] = ()) -> Progress | None:
    """Return the progress by the last lines of an output; None: they show none, or the file cannot
    be read here. `formats`: `Cluster.progress`."""
    found: list[bytes] = []

    def keep_last(fd: int) -> int:
        end = os.fstat(fd).st_size
        found.extend(line for _, line in islice(lines_backward(fd, end), LINES))
        return end

    tail = Tail(path)
    tail.begin_at(keep_last)
    tail.close()
    reader, progress = OutputReader(layout), RunProgress(formats)
    for line in reversed(found):
        host, rank, text = reader.read(line)
        progress.note(Line(0.0, host, rank, "stdout", printable(text.rstrip(b"\n"))))
    return progress.latest_of_all()
