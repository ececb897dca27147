"""The DeepSpeed configs that a program names in its own code, not on its command line. Pure.

`deepspeed.initialize(config="ds.json")`, `TrainingArguments(deepspeed=...)`, accelerate's
`DeepSpeedPlugin`, Lightning's `DeepSpeedStrategy`, defaults of `--deepspeed_config`.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from dslaunch.deepspeed.storage import OPTIONS, SUFFIXES, SWITCH
from dslaunch.pysource.values import (
    SOURCE,
    Argument,
    Call,
    Module,
    Program,
    Settings,
    Text,
    Unread,
    Value,
    entries,
    module_paths,
    read_module,
)

MOST_MODULES = 300
"""Modules of a job that are read; a training that imports more of its own is read in part."""
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "initialize": ("config", "config_params"),
    "HfDeepSpeedConfig": ("config_file_or_dict",),
    "HfTrainerDeepSpeedConfig": ("config_file_or_dict",),
    "DeepSpeedPlugin": ("hf_ds_config", "config"),
    "DeepSpeedStrategy": ("config",),
}
"""Callables, by the end of their names, and the parameters that take a config: DeepSpeed 0.19.8
(`__init__.py`), transformers 5.23 (integrations/deepspeed.py), accelerate 1.15
(utils/dataclasses.py), Lightning 2.5 (strategies/deepspeed.py)."""
FIRST = ("HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig", "DeepSpeedPlugin")
"""Those whose first positional argument is the config."""
BUILDERS = ("DeepSpeedPlugin", "DeepSpeedStrategy")
"""Those that make a config from their other parameters where they are given none; it never has a
section `checkpoint`."""
NODE_LOCAL = "use_node_local_storage"
ANYWHERE = ("deepspeed", "deepspeed_config", "ds_config", "ds_config_path")
"""Parameters that take a config whatever is called: Hugging Face's arguments and those of projects
built on them (TRL's `SFTConfig`), Composer's Trainer."""


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A config that code names."""

    file: str
    """The module, relative to the program's directory."""
    line: int
    """0: the file as a whole."""
    by: str
    """What is called or defined there: `TrainingArguments(deepspeed=...)`."""
    path: str | None = None
    """The config's file: relative to the working directory, absolute, or below `SOURCE`."""
    node_local: bool | None = None
    """For a dictionary in the code: its `checkpoint.use_node_local_storage`."""
    option: str | None = None
    """The option of the program's command line that gives the path."""
    known: bool = True
    """Whether the config is what is said here; False: only the running program knows it."""

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}:{self.line}" if self.line else self.file


def modules_of(script: str, read: Callable[[str], str | None]) -> tuple[Module, ...]:
    """The script and the modules of the job that it imports, directly or not.

    `read` gives the text of a file of the job, None for what is not among them.
    """
    found: dict[str, Module] = {}
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
                # `read` says of each whether it exists
                new = [each for each in module_paths(dotted, path) if each not in seen]
                seen.update(new)
                waiting.extend(new)
    return tuple(found.values())


def named_in_code(
    modules: tuple[Module, ...], given: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[NamedConfig, ...]:
    """Every config that the modules name, in their order.

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
    return tuple(dict.fromkeys(found + _from_defaults(modules, program, given)))


def _config_arguments(call: Call, module: Module) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a call that take a config, with what they are given."""
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
        # Lightning's names for strategies with a config of its own making
        yield "strategy", ast.Dict(keys=[], values=[], lineno=call.node.lineno)


def _is_deepspeed(call: Call, module: Module) -> bool:
    """Whether it is deepspeed that is called: many libraries have an `initialize`."""
    first = call.name.partition(".")[0]
    origin, name = module.imported.get(first, ("", ""))
    return origin.partition(".")[0] == "deepspeed" and (name in ("", "initialize") or first != name)


def _named(
    call: Call, parameter: str, values: frozenset[Value], program: Program
) -> Iterator[NamedConfig]:
    by = f"{call.name or 'a call'}({parameter}=...)" if parameter else f"{call.name}(...)"
    certain = call.last_name in KEYWORDS or call.name.endswith("TrainingArguments")
    for value in sorted(values, key=repr):
        where = NamedConfig(call.module, call.node.lineno, by)
        match value:
            case Text(text) if certain or text.endswith(SUFFIXES):
                yield _file(where, text)
            case Argument(option, text) if certain or text.endswith(SUFFIXES):
                yield _file(where, text, option)
            case Settings() if certain or parameter != "deepspeed":
                yield replace(where, node_local=_says_node_local(value, program))
            case Unread.UNKNOWN if certain:
                yield replace(where, known=False)
            case _:
                continue


def _file(where: NamedConfig, text: str, option: str | None = None) -> NamedConfig:
    return replace(where, path=posixpath.normpath(text) if text else None, option=option)


def _says_node_local(settings: Settings, program: Program) -> bool:
    """What a dictionary in the source says of `checkpoint.use_node_local_storage`.

    Unset counts as false (DeepSpeed 0.19.8, runtime/config.py), unless the program names the key
    somewhere else: its author sets it in a way that is not read here.
    """
    checkpoint = entries(settings).get("checkpoint")
    inner = entries(Settings(checkpoint)) if isinstance(checkpoint, ast.Dict) else {}
    value = inner.get(NODE_LOCAL)
    if isinstance(value, ast.Constant):
        return value.value is True
    return any(NODE_LOCAL in module.keys for module in program.modules.values())


def _from_defaults(
    modules: tuple[Module, ...], program: Program, given: Mapping[str, str]
) -> list[NamedConfig]:
    """The options for a config that have one by default, where the command line gives none.

    DeepSpeed reads `args.deepspeed_config` by itself, so that no call names it.
    """
    names = [option.removeprefix("--") for option in (*OPTIONS, SWITCH)]
    found = []
    for name in names:
        for module, scope, default in program.options.get(name, ()):
            if name in given:
                continue
            call = Call(module.path, scope, ast.Call(ast.Name("--" + name), [], []))
            for value in program.values(call, default):
                if isinstance(value, Text) and value.text.endswith(SUFFIXES):
                    line = getattr(default, "lineno", 0)
                    where = NamedConfig(module.path, line, f"the default of --{name}")
                    found.append(_file(where, value.text))
    return found


def in_source(path: str) -> str | None:
    """A path below `SOURCE`, relative to it; None for others."""
    inside = path.removeprefix(f"{SOURCE}/")
    return inside if inside != path else None
