"""Text inside of HTML and SVG."""

from __future__ import annotations

from html import escape

from dslaunch.terminal import visible


def escaped(text: str) -> str:
    """Return text that is text inside of an element or a quoted attribute, and nothing else."""
    return escape(visible(text))
