"""The settings of a SLURM job: the cluster file's `slurm:`, with those of the command line.

And the reverse: where an option that SLURM refused was set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, UsageError
from dslaunch.json_text import json_literal
from dslaunch.slurm.directive_settings import (
    GPU_OPTIONS,
    excluded_by,
    options_in,
    requests_gpus,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import ClusterSource, Slurm
    from dslaunch.cluster.yamltext import YamlDocument

LISTS = ("setup", "teardown", "srun", "directives")
_ONE_NODE = "nodes: [{host: a, slots: 1}]\nslurm: "


SlurmSetting = str | int | float | bool | Sequence[str]
"""A value of `slurm:`; a list for a key that has a list."""


def setting_texts(settings: Mapping[str, SlurmSetting]) -> tuple[str, ...]:
    """Return settings as `overridden` takes them."""
    return tuple(f"{name}={text}" for name, value in settings.items() for text in _texts(value))


def _texts(value: SlurmSetting) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, str | int | float):
        return (str(value),)
    return tuple(value)


def overridden(slurm: Slurm, settings: Sequence[str]) -> Slurm:
    """Return the settings with those of `--set NAME=VALUE`. Raises UsageError.

    A value is appended to a list.
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
        # parsed like the file, with the same checks and messages
        new = parse_cluster(f"{_ONE_NODE}{json_literal(given)}", "--set").slurm
    except ConfigError as error:
        words = "\n".join(f"--set: {p.path}: {p.message}" for p in error.problems)
        raise UsageError(words) from None
    return _merged(slurm, new, set(given))


def _merged(old: Slurm, new: Slurm, given: set[str]) -> Slurm:
    own = {name: value for name, value in asdict(new).items() if name in given}
    for name in LISTS:
        if name in own:
            own[name] = (*getattr(old, name), *own[name])
    return replace(old, options=tuple((dict(old.options) | dict(new.options)).items()), **own)


class Sources(Struct, frozen=True):
    """Where the options of a job are set."""

    cluster: ClusterSource | None = None
    """The cluster file; None: there is none."""
    settings: tuple[str, ...] = ()
    """The values of `--set`."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Further options of the command line, by the option of sbatch: `--nodes 4`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables `SBATCH_...` in sbatch's environment, by the option."""


_OF_GPUS = ("gpus", "gpu_label", "slots")
_KEYS = {"gres": _OF_GPUS, "gpus-per-node": _OF_GPUS}
"""The keys of `slurm:` for options with another name."""
_OF_THE_NODES = {"nodes": "nodes", "slots": "slots of nodes"}
"""Keys that default to values of the file's `nodes`."""


def blamed(options: Iterable[str], sources: Sources) -> Iterator[str]:
    """Yield where options of sbatch were set, each at the place that was used: directives have
    precedence over `--set` and the command line, those over the file, and all over variables.

    A place in the cluster file is `file:line:column: key: value`.
    """
    section = _Section.of(sources.cluster)
    found = (line for option in options for line in _origin(option, sources, section))
    yield from dict.fromkeys(found)


def _origin(option: str, sources: Sources, section: _Section) -> Iterator[str]:
    """Yield where an option was set; nothing if it was not."""
    directive = _directive(option, sources.settings, section)
    if directive is not None:
        yield directive
    elif option in sources.variables:
        # it is set only if the script does not set the option
        yield f"variable {sources.variables[option]} of your environment"
    elif option in sources.words:
        yield sources.words[option]
    else:
        for key in _KEYS.get(option, (option.replace("-", "_"),)):
            named = [setting for setting in sources.settings if setting.partition("=")[0] == key]
            yield from [f"--set {named[-1]}"] if named else section.lines(key)


def _directive(option: str, settings: Sequence[str], section: _Section) -> str | None:
    """Return the last directive that sets an option, or replaces it; those of `--set` follow those
    of the file."""
    given = list(section.directives())
    for setting in settings:
        name, _, text = setting.partition("=")
        if name == "directives":
            given.append((text, f"--set {setting}"))
    for text, where in reversed(given):
        for one in options_in(text):
            both_of_gpus = option in GPU_OPTIONS and requests_gpus(one)
            if both_of_gpus or one.name in excluded_by(option):
                return where
    return None


class _Section(Struct, frozen=True):
    """`slurm:` in the cluster file, with positions."""

    file: str = ""
    document: YamlDocument | None = None

    @classmethod
    def of(cls, source: ClusterSource | None) -> _Section:
        """Return the section of a cluster file; without one it is empty."""
        if source is None:
            return cls()
        document = yamltext.parse(source.text, source.file, verbatim=schema.VERBATIM)
        return cls(source.file, document)

    @property
    def data(self) -> dict[str, Any]:
        """Its keys and values; empty without a file."""
        section = self.document.data.get("slurm") if self.document else None
        return section if isinstance(section, dict) else {}

    def lines(self, key: str) -> Iterator[str]:
        """Yield the line of a key; nothing if it is missing, or if no GPUs are requested."""
        if key in _OF_GPUS and self.data.get("gpus") == "none":
            return
        if key in self.data:
            yield f"{self._place(('slurm', key))}: slurm.{key}: {self.data[key]}"
        elif key in _OF_THE_NODES and self.document is not None:
            yield f"{self._place(('nodes',))}: {_OF_THE_NODES[key]}"

    def directives(self) -> Iterator[tuple[str, str]]:
        """Yield each directive, and its line."""
        given = self.data.get("directives")
        for index, text in enumerate(given if isinstance(given, list) else []):
            place = self._place(("slurm", "directives", index))
            yield str(text), f"{place}: slurm.directives: {text}"

    def _place(self, path: tuple[str | int, ...]) -> str:
        assert self.document is not None
        line, column = self.document.place(path)
        return f"{self.file}:{line}:{column}"
