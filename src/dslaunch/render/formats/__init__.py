"""The texts that a launch can be rendered as. One file per format; the directory is the registry.

A module here that is not private holds one object `FORMAT` of the shape of `Format`; `_` in its
name is `-` in the format's. Third parties add theirs by an entry point of the group
`dslaunch.formats`, which is read only when a name is not built in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dslaunch.registry import Registry

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch, Rendered


class Format(Protocol):
    """One text that starts, or describes, a launch with another tool. Pure."""

    @property
    def summary(self) -> str:
        """One line that says what the text is for."""

    def render(self, launch: Launch) -> Rendered:
        """Render the launch. Raises PlanError where this format cannot say it."""


_FORMATS: Registry[Format] = Registry(__name__, __path__, "FORMAT", "dslaunch.formats", "format")
names = _FORMATS.names
get = _FORMATS.get


def render(name: str, launch: Launch) -> Rendered:
    """Render the launch in the format of that name.

    Raises UsageError for a name that does not exist, PlanError where the format cannot say it.
    """
    return get(name).render(launch)
