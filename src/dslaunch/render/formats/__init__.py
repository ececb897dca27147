"""The texts that a launch can be rendered as. One file per format, with an object `FORMAT` of the
shape of `Format`; `registry.FORMATS` knows them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dslaunch.registry import FORMATS

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


names = FORMATS.names
every_name = FORMATS.every_name
get = FORMATS.get


def render(name: str, launch: Launch) -> Rendered:
    """Render the launch in the format of that name.

    Raises UsageError for a name that does not exist, PlanError where the format cannot say it.
    """
    part = get(name)
    with FORMATS.blamed(name):
        return part.render(launch)
