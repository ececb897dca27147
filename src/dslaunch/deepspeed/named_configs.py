"""Find the DeepSpeed configs that the code of a program names. Pure.

`deepspeed.initialize(config="ds.json")`, `TrainingArguments(deepspeed=...)`, accelerate's
`DeepSpeedPlugin`, Lightning's `DeepSpeedStrategy`, defaults of `--deepspeed_config`.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.deepspeed.storage import OPTIONS, SUFFIXES, SWITCH
from dslaunch.pysource.module import CallSite, SourceModule, module_paths, read_module
from dslaunch.pysource.values import (
    SOURCE,
    Argument,
    DictLiteral,
    Program,
    StringValue,
    Unread,
    Value,
    entries,
)

MOST_MODULES = 300
"""Maximum number of modules of a job to read; the others are skipped."""
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "initialize": ("config", "config_params"),
    "HfDeepSpeedConfig": ("config_file_or_dict",),
    "HfTrainerDeepSpeedConfig": ("config_file_or_dict",),
    "DeepSpeedPlugin": ("hf_ds_config", "config"),
    "DeepSpeedStrategy": ("config",),
}
"""Callables, by the last part of their names, and their parameters for a config: DeepSpeed 0.19.8
(`__init__.py`), transformers 5.23 (integrations/deepspeed.py), accelerate 1.15
(utils/dataclasses.py), Lightning 2.5 (strategies/deepspeed.py)."""
FIRST = ("HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig", "DeepSpeedPlugin")
"""Callables whose first positional argument is the config."""
BUILDERS = ("DeepSpeedPlugin", "DeepSpeedStrategy")
"""Callables that make a config from their other parameters if they get none; it never has a
section `checkpoint`."""
NODE_LOCAL = "use_node_local_storage"
ANYWHERE = ("deepspeed", "deepspeed_config", "ds_config", "ds_config_path")
"""Parameters for a config of any callable: Hugging Face's arguments, those of projects that extend
them (TRL's `SFTConfig`), and Composer's Trainer."""


class NamedConfig(Struct, frozen=True):
    """A config that the code names."""

    file: str
    """The module, relative to the program's directory."""
    line: int
    """0: the whole file."""
    by: str
    """The call or definition: `TrainingArguments(deepspeed=...)`."""
    path: str | None = None
    """Path of the config: relative to the working directory, absolute, or below `SOURCE`."""
    node_local: bool | None = None
    """For a dictionary in the code: its `checkpoint.use_node_local_storage`."""
    option: str | None = None
    """The option of the program that sets the path."""
    known: bool = True
    """Whether the config is known; False: it is computed at run time."""

    @property
    def place(self) -> str:
        """Return file and line as text."""
        return f"{self.file}:{self.line}" if self.line else self.file


def modules_of(script: str, read: Callable[[str], str | None]) -> tuple[SourceModule, ...]:
    """Return the script and the modules of the job that it imports, directly or indirectly.

    `read` returns the text of a file of the job; None: not a file of the job.
    """
    found: dict[str, SourceModule] = {}
    waiting = [script]
    seen = {script}
    while waiting and len(found) < MOST_MODULES:
        path = waiting.pop(0)
        text = read(path)
        module = read_module(path, text) if text is not None else None
        if module is None:
            continue
        found[path] = module
        for origin, name in module.imported.values():
            for dotted in filter(None, (origin, f"{origin}.{name}" if name else "")):
                # `read` returns None for those that do not exist
                new = [each for each in module_paths(dotted, path) if each not in seen]
                seen.update(new)
                waiting.extend(new)
    return tuple(found.values())


def named_in_code(
    modules: tuple[SourceModule, ...], given: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[NamedConfig, ...]:
    """Return every config that the modules name, in their order.

    `given`: the options on the program's command line, `-` as `_`; `environment`: the variables
    that the job sets.
    """
    program = Program(modules, given, environment)
    found = [
        named
        for module in modules
        for call in module.calls
        for parameter, node in _config_arguments(call, module)
        for named in _named(call, parameter, program.values(call, node), program)
    ]
    return tuple(dict.fromkeys(found + _from_defaults(program, given)))


def _config_arguments(call: CallSite, module: SourceModule) -> Iterator[tuple[str, ast.expr]]:
    """Yield the parameters of a call for a config, with their arguments."""
    name, keywords = call.last_name, call.keywords
    if name == "initialize" and not _is_deepspeed(call, module):
        return
    taken = KEYWORDS.get(name, ())
    given = [(each, keywords[each]) for each in taken if each in keywords]
    if name in FIRST and call.node.args and not given:
        given = [(taken[0], call.node.args[0])]
    if name in BUILDERS and not given and not any(each.arg is None for each in call.node.keywords):
        given = [("", ast.Dict(keys=[], values=[], lineno=call.node.lineno))]
    yield from given
    if name not in KEYWORDS:
        yield from ((each, keywords[each]) for each in ANYWHERE if each in keywords)
    strategy = keywords.get("strategy")
    if isinstance(strategy, ast.Constant) and str(strategy.value).startswith("deepspeed"):
        # Lightning's names for strategies that make their own config
        yield "strategy", ast.Dict(keys=[], values=[], lineno=call.node.lineno)


def _is_deepspeed(call: CallSite, module: SourceModule) -> bool:
    """Return whether a call is one of deepspeed: many libraries have an `initialize`."""
    first = call.name.partition(".")[0]
    origin, name = module.imported.get(first, ("", ""))
    return origin.partition(".")[0] == "deepspeed" and (name in ("", "initialize") or first != name)


def _named(
    call: CallSite, parameter: str, values: frozenset[Value], program: Program
) -> Iterator[NamedConfig]:
    by = f"{call.name or 'a call'}({parameter}=...)" if parameter else f"{call.name}(...)"
    certain = call.last_name in KEYWORDS or call.name.endswith("TrainingArguments")
    for value in sorted(values, key=repr):
        where = NamedConfig(call.module, call.node.lineno, by)
        match value:
            case StringValue(text) if certain or text.endswith(SUFFIXES):
                yield _file(where, text)
            case Argument(option, text) if certain or text.endswith(SUFFIXES):
                yield _file(where, text, option)
            case DictLiteral() if certain or parameter != "deepspeed":
                yield replace(where, node_local=_says_node_local(value, program))
            case Unread.UNKNOWN if certain:
                yield replace(where, known=False)
            case _:
                continue


def _file(where: NamedConfig, text: str, option: str | None = None) -> NamedConfig:
    return replace(where, path=posixpath.normpath(text) if text else None, option=option)


def _says_node_local(settings: DictLiteral, program: Program) -> bool:
    """Return `checkpoint.use_node_local_storage` of a dictionary in the source.

    Unset counts as false (DeepSpeed 0.19.8, runtime/config.py), unless the program contains the key
    elsewhere: then it is probably set in a way that is not parsed here.
    """
    checkpoint = entries(settings).get("checkpoint")
    inner = entries(DictLiteral(checkpoint)) if isinstance(checkpoint, ast.Dict) else {}
    value = inner.get(NODE_LOCAL)
    if isinstance(value, ast.Constant):
        return value.value is True
    return any(NODE_LOCAL in module.keys for module in program.modules.values())


def _from_defaults(program: Program, given: Mapping[str, str]) -> list[NamedConfig]:
    """Return the default configs of options that are not on the command line.

    DeepSpeed reads `args.deepspeed_config` itself, so no call names it.
    """
    names = [option.removeprefix("--") for option in (*OPTIONS, SWITCH)]
    found = []
    for name in names:
        for module, scope, default in program.options.get(name, ()):
            if name in given:
                continue
            call = CallSite(module.path, scope, ast.Call(ast.Name("--" + name), [], []))
            for value in program.values(call, default):
                if isinstance(value, StringValue) and value.text.endswith(SUFFIXES):
                    line = getattr(default, "lineno", 0)
                    where = NamedConfig(module.path, line, f"the default of --{name}")
                    found.append(_file(where, value.text))
    return found


def in_source(path: str) -> str | None:
    """Return a path relative to `SOURCE`; None: not below it."""
    inside = path.removeprefix(f"{SOURCE}/")
    return inside if inside != path else None
