"""What SLURM is asked for: the cluster file's `slurm:`, less what the command line says otherwise.

And back: the setting that a refusal of SLURM's is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.load import parse_cluster, read_text
from dslaunch.errors import ConfigError, UsageError
from dslaunch.slurm.directive_settings import (
    GPU_OPTIONS,
    asks_for_gpus,
    excluded_by,
    options_in,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Slurm
    from dslaunch.cluster.yamltext import YamlDocument

LISTS = ("setup", "teardown", "srun", "directives")
_ONE_NODE = "nodes: [{host: a, slots: 1}]\nslurm: "


def overridden(slurm: Slurm, settings: Sequence[str]) -> Slurm:
    """The settings, with those of `--set NAME=VALUE` in their place. Raises UsageError.

    A list gets one more item.
    """
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


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the options of a job come from."""

    file: Path | None = None
    """The cluster file."""
    settings: tuple[str, ...] = ()
    """The values of `--set`."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What else the command line says, by the option of sbatch: `--nodes 4`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables `SBATCH_...` with which sbatch is called, by the option."""


_OF_GPUS = ("gpus", "gpu_label", "slots")
_KEYS = {"gres": _OF_GPUS, "gpus-per-node": _OF_GPUS}
"""The keys of `slurm:` whose option has another name."""
_OF_THE_NODES = {"nodes": "nodes", "slots": "slots of nodes"}
"""What follows from the file's `nodes` where `slurm:` does not say it."""


def blamed(options: Iterable[str], sources: Sources) -> Iterator[str]:
    """Where options of sbatch were set, each at the one place that was used: directives win over
    `--set` and the command line, those over the file, and all over variables.

    A place of the cluster file is `file:line:column: key: value`. Raises ConfigError if the file
    cannot be read any more.
    """
    section = _Section.read(sources.file)
    found = (line for option in options for line in _origin(option, sources, section))
    yield from dict.fromkeys(found)


def _origin(option: str, sources: Sources, section: _Section) -> Iterator[str]:
    """Where one option was set; nothing where it was not."""
    directive = _directive(option, sources.settings, section)
    if directive is not None:
        yield directive
    elif option in sources.variables:
        # it is there only where the script does not give the option
        yield f"variable {sources.variables[option]} of your environment"
    elif option in sources.words:
        yield sources.words[option]
    else:
        for key in _KEYS.get(option, (option.replace("-", "_"),)):
            named = [setting for setting in sources.settings if setting.partition("=")[0] == key]
            yield from [f"--set {named[-1]}"] if named else section.lines(key)


def _directive(option: str, settings: Sequence[str], section: _Section) -> str | None:
    """The last directive that gives an option, or takes its place; those of `--set` come after
    those of the file."""
    told = list(section.directives())
    for setting in settings:
        name, _, text = setting.partition("=")
        if name == "directives":
            told.append((text, f"--set {setting}"))
    for text, where in reversed(told):
        for one in options_in(text):
            both_of_gpus = option in GPU_OPTIONS and asks_for_gpus(one)
            if both_of_gpus or one.name in excluded_by(option):
                return where
    return None


@dataclass(frozen=True, slots=True)
class _Section:
    """`slurm:` in the cluster file, as it is written."""

    file: Path | None = None
    document: YamlDocument | None = None

    @classmethod
    def read(cls, file: Path | None) -> _Section:
        """Raises ConfigError."""
        if file is None:
            return cls()
        return cls(file, yamltext.parse(read_text(file), str(file), verbatim=schema.VERBATIM))

    @property
    def data(self) -> dict[str, Any]:
        """Its keys and values; empty without one."""
        section = self.document.data.get("slurm") if self.document else None
        return section if isinstance(section, dict) else {}

    def lines(self, key: str) -> Iterator[str]:
        """The line of a key; nothing where it is not there, or where no GPUs are requested."""
        if key in _OF_GPUS and self.data.get("gpus") == "none":
            return
        if key in self.data:
            yield f"{self._place(('slurm', key))}: slurm.{key}: {self.data[key]}"
        elif key in _OF_THE_NODES and self.document is not None:
            yield f"{self._place(('nodes',))}: {_OF_THE_NODES[key]}"

    def directives(self) -> Iterator[tuple[str, str]]:
        """Each directive, and its line."""
        given = self.data.get("directives")
        for index, text in enumerate(given if isinstance(given, list) else []):
            place = self._place(("slurm", "directives", index))
            yield str(text), f"{place}: slurm.directives: {text}"

    def _place(self, path: tuple[str | int, ...]) -> str:
        assert self.document is not None
        line, column = self.document.place(path)
        return f"{self.file}:{line}:{column}"
