"""The DeepSpeed configs that a job names in its code, or in a file of arguments.

DeepSpeed must be told whether nodes share the storage of checkpoints. A config on the command line
is replaced there; one that code opens by its name is shipped with the change.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslaunch.deepspeed.in_code import Named, in_source, modules_of, named_in_code
from dslaunch.deepspeed.resume import check_config, options
from dslaunch.deepspeed.storage import OPTIONS, SUFFIXES, SWITCH, find_config, localise, parse
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.run.source import main_files, read_small

if TYPE_CHECKING:
    from dslaunch.launch.job import Job
    from dslaunch.run.source import JobFiles

ARGUMENT_FILES = (".yaml", ".yml", ".json")
"""How a file of arguments ends: Hugging Face's HfArgumentParser, LLaMA-Factory, axolotl."""
FILE_KEYS = (
    *(option.removeprefix("--") for option in (*OPTIONS, SWITCH)),
    "deepspeed_config_file",
)
"""The keys that name a config there; the last is accelerate's."""


@dataclass(frozen=True, slots=True)
class CodeConfigs:
    """What follows from the configs that code names."""

    changed: Mapping[str, str] = field(default_factory=dict)
    """File of the job, relative to its directory -> the text that nodes need."""
    decisions: tuple[Decision, ...] = ()


def configs_in_code(job: Job, cwd: Path, source: JobFiles | None) -> tuple[Named, ...]:
    """Read the job's own modules and files of arguments for configs that they name."""
    return (*_in_modules(job, source), *_in_argument_files(job, cwd))


def _in_modules(job: Job, source: JobFiles | None) -> tuple[Named, ...]:
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


def _in_argument_files(job: Job, cwd: Path) -> Iterator[Named]:
    words = [word for word in job.args if isinstance(word, str)]
    values = (word.partition("=")[2] if word.startswith("-") else word for word in words)
    for path in dict.fromkeys(values):
        text = read_small(cwd / path) if path.endswith(ARGUMENT_FILES) else None
        for key, value in _entries(text or ""):
            if key in FILE_KEYS and isinstance(value, str) and value.endswith(SUFFIXES):
                yield Named(path, 0, f"{key}: ...", posixpath.normpath(value))


def _entries(text: str) -> Iterator[tuple[str, Any]]:
    """The entries of a file of arguments, and of the sections in it."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        yield str(key), value
        if isinstance(value, dict):
            yield from ((str(inner), item) for inner, item in value.items())


# ---------------------------------------------------------------- what follows


def place_of(named: Named, source: JobFiles | None, workdir: str) -> str | None:
    """The config's path among the files that are shipped; None: it is none of them."""
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


def local_file(named: Named, source: JobFiles | None, cwd: Path, workdir: str) -> Path | None:
    """The config's file on this machine, if it is here."""
    place = place_of(named, source, workdir)
    if source is not None and place is not None:
        return source.local / place
    if named.path is None or in_source(named.path) is not None:
        return None
    path = cwd / named.path
    return path if path.is_file() else None


def fit_configs(
    configs: tuple[Named, ...],
    job: Job,
    source: JobFiles | None,
    cwd: Path,
    workdir: str,
    *,
    shared: bool | None,
    can_ship: bool,
) -> CodeConfigs:
    """Have the configs in code say whether checkpoints are shared, or say that they do not.

    Raises ConfigError for a config that cannot be read as DeepSpeed would, PlanError if what it
    saves could not be loaded again.
    """
    if shared is None:
        return CodeConfigs()
    changed: dict[str, str] = {}
    decisions: list[Decision] = []
    on_command_line = find_config(job.args) is not None
    # a config that an option names is replaced on the command line
    for named in (each for each in configs if each.option is None):
        path = local_file(named, source, cwd, workdir)
        text = read_small(path) if path is not None else None
        if named.path is None or text is None:
            decisions += [] if shared or on_command_line else _unread(named)
            continue
        check_config(parse(text, named.path), job.args, shared)
        localised = localise(text, shared, named.path)
        place = place_of(named, source, workdir)
        if localised.change is None:
            continue
        if place is None or not can_ship or shared:
            decisions.append(_not_changed(named, localised.change))
        else:
            changed[place] = localised.text
            decisions.append(_shipped(named, place, localised.change))
    once = (each for at, each in enumerate(decisions) if each not in decisions[:at])
    return CodeConfigs(changed, tuple(once))


def _unread(named: Named) -> list[Decision]:
    """What to say of a config that cannot be changed, since there is no file of it here."""
    if named.path is not None:
        return [_not_shipped(named)]
    return [] if named.node_local else [_unlocalised(named)]


def _shipped(named: Named, place: str, change: str) -> Decision:
    code = DecisionCode.CONFIG_SHIPPED
    return decision(code, path=place, place=named.place, change=change)


def _unlocalised(named: Named) -> Decision:
    code = DecisionCode.CONFIG_IN_CODE if named.known else DecisionCode.CONFIG_OF_PROGRAM
    return decision(code, place=named.place, by=named.by)


def _not_shipped(named: Named) -> Decision:
    code = DecisionCode.CONFIG_NOT_SHIPPED
    return decision(code, place=named.place, by=named.by, path=named.path or "")


def _not_changed(named: Named, change: str) -> Decision:
    code, path = DecisionCode.CONFIG_UNCHANGED, named.path or ""
    return decision(code, place=named.place, by=named.by, path=path, change=change)


def own_copy(path: str, hosts: tuple[str, ...]) -> Decision:
    """A node on which the user's own file is used, which is never changed."""
    return decision(DecisionCode.CONFIG_OWN_COPY, path=path, nodes=hosts)
