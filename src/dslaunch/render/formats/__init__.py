"""Formats in which a launch can be rendered.

One module per format, with an object `FORMAT` that implements `Format` and is found by its name in
`registry.FORMATS`; and the command lines of launchers, by the launcher's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec.structs import replace

from dslaunch.registry import FORMATS, LAUNCHERS, unknown_name
from dslaunch.render.launch import Rendered
from dslaunch.render.launcher_lines import LauncherLines

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


@runtime_checkable
class Format(Protocol):
    """A text that starts or describes a launch with another tool. Pure."""

    @property
    def summary(self) -> str:
        """Return what the text is for, in one line."""

    def render(self, launch: Launch) -> Rendered:
        """Render the launch. Raises PlanError for what the format cannot express."""


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

    Raises UsageError for a name that does not exist, PlanError for what the format cannot express.
    """
    rendered = get(name).render(launch)
    FORMATS.check_returned(name, rendered, Rendered)
    assumptions = tuple(
        decision
        for decision in launch.decided.decisions
        if decision.assumed and decision.code in rendered.assumes
    )
    return replace(rendered, decisions=assumptions)
