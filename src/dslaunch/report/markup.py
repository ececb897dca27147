"""Escaped text for HTML and SVG."""

from __future__ import annotations

from html import escape

from dslaunch.terminal import visible


def escaped(text: str) -> str:
    """Return text escaped for an element or a quoted attribute."""
    return escape(visible(text))
