"""Find the DeepSpeed configs that a job names in its code, or in a file of arguments.

DeepSpeed needs to know whether nodes share the storage of checkpoints. A config on the command line
is replaced there; a config that code opens by its name is shipped with the change.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dslaunch.deepspeed.named_configs import NamedConfig, in_source, modules_of, named_in_code
from dslaunch.deepspeed.resume import check_config, options
from dslaunch.deepspeed.storage import OPTIONS, SUFFIXES, SWITCH, find_config, localize, parse
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.run.job_files import main_files, read_small

if TYPE_CHECKING:
    from dslaunch.launch.job import Job
    from dslaunch.run.job_files import JobFiles

ARGUMENT_FILES = (".yaml", ".yml", ".json")
"""Suffixes of files of arguments: Hugging Face's HfArgumentParser, LLaMA-Factory, axolotl."""
FILE_KEYS = (
    *(option.removeprefix("--") for option in (*OPTIONS, SWITCH)),
    "deepspeed_config_file",
)
"""Their keys for a config; the last one is accelerate's."""


class CodeConfigs(Struct, frozen=True):
    """The changes and decisions for configs that code names."""

    changed: Mapping[str, str] = field(default_factory=dict)
    """File of the job, relative to its directory -> its text for the nodes."""
    decisions: tuple[Decision, ...] = ()


def configs_in_code(job: Job, cwd: Path, source: JobFiles | None) -> tuple[NamedConfig, ...]:
    """Return the configs that the job's modules and files of arguments name."""
    return (*_in_modules(job, source), *_in_argument_files(job, cwd))


def _in_modules(job: Job, source: JobFiles | None) -> tuple[NamedConfig, ...]:
    if source is None or job.kind == "command":
        return ()
    script = source.script if job.kind == "script" else _module_file(job.program, source)
    if script is None:
        return ()
    modules = modules_of(script, _reader(source))
    environment = dict(job.env) | dict(job.overrides)
    return named_in_code(modules, dict(options(job.args)), environment)


def _module_file(name: str, source: JobFiles) -> str | None:
    offered = dict(source.digests)
    return next((path for path in main_files(name) if path in offered), None)


def _reader(source: JobFiles) -> Callable[[str], str | None]:
    offered = dict(source.digests)

    def read(path: str) -> str | None:
        return read_small(source.local / path) if path in offered else None

    return read


def _in_argument_files(job: Job, cwd: Path) -> Iterator[NamedConfig]:
    for path in _argument_files(job):
        text = read_small(cwd / path)
        for key, value in _entries(text or ""):
            if key in FILE_KEYS and value.endswith(SUFFIXES):
                yield NamedConfig(path, 0, f"{key}: ...", posixpath.normpath(value))


def _argument_files(job: Job) -> tuple[str, ...]:
    """Return arguments and values of options with a suffix of a file of arguments."""
    words = (word for word in job.args if isinstance(word, str))
    values = (word.partition("=")[2] if word.startswith("-") else word for word in words)
    return tuple(dict.fromkeys(value for value in values if value.endswith(ARGUMENT_FILES)))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a file of arguments, and of its sections, that are plain text.

    The nodes are read, and no values are made of them: a merge of aliases could stand for any
    number of entries.
    """
    import yaml  # heavy: 50 ms, only for jobs with a file of arguments

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    sections = [root]
    if isinstance(root, yaml.MappingNode):
        sections += [value for _, value in root.value]
    for section in sections:
        if isinstance(section, yaml.MappingNode):
            for key, value in section.value:
                if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                    yield key.value, value.value


# ---------------------------------------------------------------- decisions


def place_of(named: NamedConfig, source: JobFiles | None, workdir: str) -> str | None:
    """Return the config's path among the files that are shipped; None: it is not one of them."""
    if source is None or named.path is None:
        return None
    path = in_source(named.path)
    if path is None:
        there = posixpath.normpath(posixpath.join(workdir, named.path))
        base = posixpath.normpath(source.remote)
        if base == ".":
            path = there
        elif there.startswith(f"{base}/"):
            path = there.removeprefix(f"{base}/")
    return path if path in dict(source.digests) else None


def local_file(named: NamedConfig, source: JobFiles | None, cwd: Path, workdir: str) -> Path | None:
    """Return the config's file on this machine; None: it does not exist."""
    place = place_of(named, source, workdir)
    if source is not None and place is not None:
        return source.local / place
    if named.path is None or in_source(named.path) is not None:
        return None
    path = cwd / named.path
    return path if path.is_file() else None


class JobPlace(Struct, frozen=True):
    """A job with its files, on this machine and on the nodes."""

    job: Job
    source: JobFiles | None
    cwd: Path
    workdir: str
    """The working directory on the nodes; it corresponds to `cwd`."""


def fit_configs(
    configs: tuple[NamedConfig, ...], place: JobPlace, *, shared: bool | None, can_ship: bool
) -> CodeConfigs:
    """Adapt the configs in code to the storage of checkpoints, or warn if this is impossible.

    Raises ConfigError for a config that DeepSpeed cannot parse, PlanError if its checkpoints could
    not be loaded.
    """
    if shared is None:
        return CodeConfigs()
    changed: dict[str, str] = {}
    decisions: list[Decision] = []
    for named in configs:
        if named.option is None:  # a config of an option is replaced on the command line
            shipped, made = _fit_config(named, place, shared=shared, can_ship=can_ship)
            changed |= shipped
            decisions += made
    return CodeConfigs(changed, tuple(_unique(decisions)))


def _fit_config(
    named: NamedConfig, place: JobPlace, *, shared: bool, can_ship: bool
) -> tuple[dict[str, str], list[Decision]]:
    """Return the file to ship with its new text, if any, and the decisions about one config."""
    path = local_file(named, place.source, place.cwd, place.workdir)
    text = read_small(path) if path is not None else None
    if named.path is None or text is None:
        on_command_line = find_config(place.job.args) is not None
        return {}, [] if shared or on_command_line else _unread(named)
    check_config(parse(text, named.path), place.job.args, shared)
    localized = localize(text, shared, named.path)
    if localized.change is None:
        return {}, []
    file = place_of(named, place.source, place.workdir)
    if file is None or not can_ship or shared:
        return {}, [_not_changed(named, localized.change)]
    return {file: localized.text}, [_shipped(named, file, localized.change)]


def _unique(decisions: Sequence[Decision]) -> list[Decision]:
    """Return each decision once; their values cannot be hashed."""
    unique: list[Decision] = []
    for each in decisions:
        if each not in unique:
            unique.append(each)
    return unique


def _unread(named: NamedConfig) -> list[Decision]:
    """Return the decision about a config that is not on this machine, and cannot be changed."""
    if named.path is not None:
        return [_not_shipped(named)]
    return [] if named.node_local else [_unlocalized(named)]


def _shipped(named: NamedConfig, place: str, change: str) -> Decision:
    code = DecisionCode.CONFIG_SHIPPED
    return decision(code, path=place, place=named.place, change=change)


def _unlocalized(named: NamedConfig) -> Decision:
    code = DecisionCode.CONFIG_IN_CODE if named.known else DecisionCode.CONFIG_OF_PROGRAM
    return decision(code, place=named.place, by=named.by)


def _not_shipped(named: NamedConfig) -> Decision:
    code = DecisionCode.CONFIG_NOT_SHIPPED
    return decision(code, place=named.place, by=named.by, path=named.path or "")


def _not_changed(named: NamedConfig, change: str) -> Decision:
    code, path = DecisionCode.CONFIG_UNCHANGED, named.path or ""
    return decision(code, place=named.place, by=named.by, path=path, change=change)


def own_copy(path: str, hosts: tuple[str, ...]) -> Decision:
    """Return the decision about nodes that use the user's own file, which is never changed."""
    return decision(DecisionCode.CONFIG_OWN_COPY, path=path, nodes=hosts)
