"""What SLURM is asked for: the cluster file's `slurm:`, less what the command line says otherwise.

And back: the line of the cluster file that a refusal of SLURM's is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Slurm
    from dslaunch.slurm.states import Refusal

LISTS = ("setup", "directives")
_ONE_NODE = "nodes: [{host: a, slots: 1}]\nslurm: "


def overridden(slurm: Slurm, settings: Sequence[str]) -> Slurm:
    """The settings, with those of `--set NAME=VALUE` in their place. Raises UsageError.

    A list gets one more item.
    """
    from dslaunch.cluster.load import parse_cluster

    given: dict[str, str | list[str]] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: expected NAME=VALUE", hint="--set time=2:00:00")
        if name in LISTS:
            given[name] = [*given.get(name, ()), value]
        else:
            given[name] = value
    try:
        # read like the file, so that both are checked and explained alike
        new = parse_cluster(f"{_ONE_NODE}{json.dumps(given)}", "--set").slurm
    except ConfigError as error:
        words = "\n".join(f"--set: {p.path}: {p.message}" for p in error.problems)
        raise UsageError(words) from None
    return _merged(slurm, new, set(given))


def _merged(old: Slurm, new: Slurm, given: set[str]) -> Slurm:
    own = {f.name: getattr(new, f.name) for f in fields(new) if f.name in given}
    for name in LISTS:
        if name in own:
            own[name] = (*getattr(old, name), *own[name])
    return replace(old, options=tuple((dict(old.options) | dict(new.options)).items()), **own)


def blamed(refusal: Refusal, file: Path | None) -> Iterator[str]:
    """The settings in the cluster file that SLURM refuses, as `file:line:column: key: value`."""
    if file is None or not refusal.settings:
        return
    from dslaunch.cluster import schema, yamltext
    from dslaunch.cluster.load import read_text

    document = yamltext.parse(read_text(file), str(file), verbatim=schema.VERBATIM)
    section = document.data.get("slurm")
    if not isinstance(section, dict):
        return
    for name in refusal.settings:
        if name in section:
            line, column = document.place(("slurm", name))[:2]
            yield f"{file}:{line}:{column}: slurm.{name}: {section[name]}"
