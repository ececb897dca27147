"""The texts that a launch can be rendered as. One file per format, with an object `FORMAT` of the
shape of `Format`, which `registry.FORMATS` knows by name; and the lines of launchers that have
such, by the launcher's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dslaunch.registry import FORMATS, LAUNCHERS, unknown_name
from dslaunch.render.launcher_lines import LauncherLines

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch, Rendered


@runtime_checkable
class Format(Protocol):
    """One text that starts, or describes, a launch with another tool. Pure."""

    @property
    def summary(self) -> str:
        """One line that says what the text is for."""

    def render(self, launch: Launch) -> Rendered:
        """Render the launch. Raises PlanError where this format cannot say it."""


def names() -> tuple[str, ...]:
    """Return the names of the formats that are built in."""
    return tuple(sorted((*FORMATS.names(), *filter(_has_lines, LAUNCHERS.names()))))


def every_name() -> tuple[str, ...]:
    """Return the names of the formats that are built in or installed."""
    return tuple(sorted((*FORMATS.every_name(), *filter(_has_lines, LAUNCHERS.every_name()))))


def get(name: str) -> Format:
    """Return the format of that name. Raises UsageError if there is none."""
    if name in FORMATS.names():
        return FORMATS.get(name)
    if name in LAUNCHERS.every_name() and _has_lines(name):
        return LauncherLines(name)
    known = every_name()
    if name not in known:
        raise unknown_name("format", name, known)
    return FORMATS.get(name)


def _has_lines(launcher: str) -> bool:
    return bool(LAUNCHERS.get(launcher).lines)


def render(name: str, launch: Launch) -> Rendered:
    """Render the launch in the format of that name.

    Raises UsageError for a name that does not exist, PlanError where the format cannot say it.
    """
    return get(name).render(launch)
