"""One `accelerate launch` line per node."""

from __future__ import annotations

from dslaunch.render.lines import LauncherLines

FORMAT = LauncherLines("accelerate", "one `accelerate launch` line per node, to type there")
