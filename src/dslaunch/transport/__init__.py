"""How a node is reached. The only place that opens connections.

`choose` decides between the two that speak SSH. One file per transport; a module that is not
private holds `make(cluster)`, which gives an object of the shape of `base.Transport`. Third
parties add theirs by an entry point of the group `dslaunch.transports`, which is read only when a
name is not built in.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING

from dslaunch.errors import UsageError
from dslaunch.transport.logged import LoggedTransport

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.transport.base import Transport
    from dslaunch.transport.ssh.choice import Choice

_SHARED = ("base", "classify", "logged", "login", "pool", "process", "program", "retry", "ssh")


def names() -> tuple[str, ...]:
    """The transports that are built in."""
    return tuple(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SHARED)


def get(name: str, cluster: Cluster) -> Transport:
    """Give the transport of that name for a cluster; for `auto` the one that fits.

    Raises UsageError when there is none, PlanError and ToolMissingError as `choose` does.
    """
    return make(choose(name, cluster).name, cluster)


def choose(name: str, cluster: Cluster) -> Choice:
    """Return which transport is to be used, and why; see `ssh.choice.choose`."""
    from dslaunch.transport.ssh import choice

    return choice.choose(name, cluster)


def make(name: str, cluster: Cluster) -> Transport:
    """Give the transport that is chosen. Raises UsageError when none has that name."""
    if name in names():
        built_in: Transport = importlib.import_module(f"{__name__}.{name}").make(cluster)
        return LoggedTransport(name, built_in)
    from importlib.metadata import entry_points

    for entry in entry_points(group="dslaunch.transports", name=name):
        found: Transport = entry.load()(cluster)
        return LoggedTransport(name, found)
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(names())}"
    raise UsageError(f"no transport is named `{name}`", hint=hint)
