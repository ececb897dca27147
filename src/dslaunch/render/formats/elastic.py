"""One torchrun line per node, with a c10d rendezvous."""

from __future__ import annotations

from dslaunch.render.lines import LauncherLines

FORMAT = LauncherLines(
    "elastic", "one `torchrun` line per node for a run that goes on without some"
)
