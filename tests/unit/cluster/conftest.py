"""Examples of hypothesis have no deadline here: the first one pays for imports."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")
