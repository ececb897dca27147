"""The texts that a launch can be rendered as. One file per format; the directory is the registry.

A module here that is not private holds one object `FORMAT` of the shape of `Format`; `_` in its
name is `-` in the format's. Third parties add theirs by an entry point of the group
`dslaunch.formats`, which is read only when a name is not built in.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch, Rendered


class Format(Protocol):
    """One text that starts, or describes, a launch with another tool. Pure."""

    @property
    def summary(self) -> str:
        """One line that says what the text is for."""

    def render(self, launch: Launch) -> Rendered:
        """Render the launch. Raises PlanError where this format cannot say it."""


def names() -> tuple[str, ...]:
    """The formats that are built in."""
    modules = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(name.replace("_", "-") for name in modules if not name.startswith("_"))


def get(name: str) -> Format:
    """Give the format of that name. Raises UsageError when there is none."""
    if name in names():
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        built_in: Format = module.FORMAT
        return built_in
    return _installed(name)


def render(name: str, launch: Launch) -> Rendered:
    """Render the launch in the format of that name.

    Raises UsageError for a name that does not exist, PlanError where the format cannot say it.
    """
    return get(name).render(launch)


def _installed(name: str) -> Format:
    import difflib
    from importlib.metadata import entry_points

    for entry in entry_points(group="dslaunch.formats", name=name):
        found: Format = entry.load()
        return found
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(names())}"
    raise UsageError(f"no format is named `{name}`", hint=hint)
