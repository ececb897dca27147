"""One torchrun line per node."""

from __future__ import annotations

from dslaunch.render.lines import LauncherLines

FORMAT = LauncherLines("torchrun", "one `torchrun` line per node, to type there")
