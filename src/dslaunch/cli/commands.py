"""The commands, each imported when it is called: slow imports would delay every command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import typer
from msgspec import Struct
from typer._click.core import augment_usage_errors
from typer.core import TyperCommand, TyperGroup

from dslaunch.cli.cluster_option import with_cluster_option
from dslaunch.cli.foreign_options import own_name
from dslaunch.cli.log_options import with_log_options
from dslaunch.cli.output_files import check_replaces_no_input
from dslaunch.cli.positional import FILE_ENDINGS
from dslaunch.cli.signatures import with_option_groups
from dslaunch.errors import UsageError
from dslaunch.terminal import shortened, visible
from dslaunch.texts import closest

WRITTEN_FOR = "0.29."
"""How the version of Typer begins whose parts `option_values` replaces. They are not public, and
missing before it; with other versions options are converted by Typer, which is only slower."""


def _with_simple_conversion(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command; they convert simple values without pydantic."""
    if not typer.__version__.startswith(WRITTEN_FOR):
        return parameters
    from dslaunch.cli.option_values import with_simple_conversion

    return with_simple_conversion(parameters)


class CommandKind(StrEnum):
    """The groups of commands in the help, in their order."""

    RUN = "Run"
    INSPECT = "Inspect"
    CHECK = "Check"
    RENDER = "Render"
    DEEPSPEED = "DeepSpeed"
    HELP = "Help"


class CommandEntry(Struct, frozen=True):
    """A command of the program, as the help lists it without importing its module."""

    name: str
    """One or two words, such as `slurm lint`; its module has the same name with underscores."""
    kind: CommandKind
    summary: str
    """The first line of the help. The docstring of the function starts with the same words."""


ENTRIES = (
    CommandEntry("run", CommandKind.RUN, "Start a training job on all nodes and follow it"),
    CommandEntry("rehearse", CommandKind.RUN, "Run a training job for a few steps and check it"),
    CommandEntry("slurm", CommandKind.RUN, "Submit a training job to SLURM and follow it"),
    CommandEntry("attach", CommandKind.RUN, "Follow a running job until it ends"),
    CommandEntry("signal", CommandKind.RUN, "Send a signal such as USR1 to the ranks of a run"),
    CommandEntry("stop", CommandKind.RUN, "Stop a run on all its nodes"),
    CommandEntry("clean", CommandKind.RUN, "Remove leftovers of past runs from the nodes"),
    CommandEntry("ps", CommandKind.INSPECT, "List runs, the newest first"),
    CommandEntry(
        "status", CommandKind.INSPECT, "Show the state of a run per node, and why it failed"
    ),
    CommandEntry("logs", CommandKind.INSPECT, "Print the output of a run's ranks"),
    CommandEntry("report", CommandKind.INSPECT, "Write one HTML page about a run"),
    CommandEntry("diff", CommandKind.INSPECT, "Show what differs between two runs"),
    CommandEntry(
        "stacks", CommandKind.INSPECT, "Show the Python stacks of all ranks, outliers first"
    ),
    CommandEntry(
        "top", CommandKind.INSPECT, "Show what nodes and ranks use, and which ranks are slow"
    ),
    CommandEntry("nodes", CommandKind.INSPECT, "Show the nodes, slots and ranks of a selection"),
    CommandEntry(
        "topo", CommandKind.INSPECT, "Show how GPUs and NICs are connected, and give advice"
    ),
    CommandEntry("preflight", CommandKind.CHECK, "Check whether the nodes are ready for training"),
    CommandEntry("validate", CommandKind.CHECK, "Check cluster files and list all problems"),
    CommandEntry("slurm lint", CommandKind.CHECK, "Check an sbatch script for errors and risks"),
    CommandEntry("trust", CommandKind.CHECK, "Verify and record the SSH host keys of the nodes"),
    CommandEntry(
        "init", CommandKind.RENDER, "Create a cluster file from hosts, a hostfile or SLURM"
    ),
    CommandEntry(
        "render", CommandKind.RENDER, "Print a hostfile or another launcher's command lines"
    ),
    CommandEntry("schema", CommandKind.RENDER, "Print the JSON Schema of a file format"),
    CommandEntry(
        "config", CommandKind.DEEPSPEED, "Create, check, explain and compare DeepSpeed configs"
    ),
    CommandEntry(
        "estimate", CommandKind.DEEPSPEED, "Estimate memory and traffic; recommend a ZeRO stage"
    ),
    CommandEntry(
        "checkpoint", CommandKind.DEEPSPEED, "List, verify, copy and convert DeepSpeed checkpoints"
    ),
    CommandEntry("help", CommandKind.HELP, "Show the help of a command"),
)
ALIKE = 0.65
"""How alike a misspelled name and a command must be: a wrong suggestion is worse than none."""
COMPLETING = "_DSLAUNCH_COMPLETE"
"""The variable with which a shell asks for completions."""
NAMES = tuple(entry.name for entry in ENTRIES)
Command = TyperCommand | TyperGroup
ROOT_SETTINGS = {"help_option_names": ["-h", "--help"], "token_normalize_func": own_name}
"""Settings of the option parser, which all commands inherit."""


def leaves() -> Iterator[tuple[str, TyperCommand]]:
    """Yield the words and the command of everything that can be called; imports all modules."""
    for name in NAMES:
        command = load(name)
        if isinstance(command, TyperCommand):
            yield name, command
            continue
        for word, inner in command.commands.items():
            assert isinstance(inner, TyperCommand)
            yield f"{name} {word}", inner


@cache
def load(name: str) -> Command:
    """Import a command. Its module may hold `CONTEXT`, settings of the option parser."""
    function = name.replace(" ", "_")
    module = import_module(f"dslaunch.cli.{function}")
    app = getattr(module, "APP", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, context_settings=getattr(module, "CONTEXT", None))(
            getattr(module, function)
        )
    app.info.cls = Group
    for each in app.registered_commands:
        assert each.callback is not None
        each.cls = Careful
        flat = with_option_groups(each.callback)
        each.callback = with_log_options(with_cluster_option(flat))
        if COMPLETING in os.environ:
            from dslaunch.cli.completion import with_completion

            each.callback = with_completion(each.callback)
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    command.name = name
    return command


class Careful(TyperCommand):
    """A command that rejects empty values of options: an unset variable in `--workdir "$UNSET"`
    must not mean the default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; for a completion, without the words before the script."""
        if ctx.resilient_parsing:
            from dslaunch.cli.completion import without_own_words

            args = without_own_words(ctx, args)
            if args and any(args[-1] in parameter.opts for parameter in self.params):
                # its value is being completed; without one, the parser would stop
                args = args[:-1]
        # the parser does not tell which command an option without its value belongs to
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        return _with_simple_conversion(super().get_params(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the names of options; none after the script, where they are the script's."""
        from dslaunch.cli.completion import after_script

        if after_script(ctx):
            return []
        return super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises UsageError for an option with an empty value, and for a file
        that it would both read and write."""
        empty = [
            parameter.opts[0]
            for parameter in self.params
            if parameter.opts[0].startswith("-")
            and _has_empty(ctx.params.get(str(parameter.name)))
            and ctx.get_parameter_source(str(parameter.name)).name == "COMMANDLINE"
        ]
        if empty:
            from dslaunch.cli.usage_errors import empty_value

            raise empty_value(*empty)
        check_replaces_no_input(ctx)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help in the layout of all commands."""
        from dslaunch.cli.command_help import command_help, help_text, help_width

        formatter.write(help_text(command_help(self, ctx.command_path), help_width()))


def _has_empty(value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(text, str) and not text.strip() for text in texts)


class Group(TyperGroup):
    """A command with subcommands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help in the layout of all commands."""
        from dslaunch.cli.command_help import group_help, help_text, help_width

        formatter.write(help_text(group_help(self, ctx.command_path), help_width()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the first words. Raises UsageError with the nearest name."""
        name = args[0]
        if name in self.commands or ctx.resilient_parsing or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise unknown_command(ctx.command_path, name, self.commands)


def unknown_command(path: str, name: str, known: Any) -> UsageError:
    """Return the error for a command that does not exist; `path` is the command before it."""
    return UsageError(f"unknown command {shortened(name)}", hint=_instead(path, name, known))


def _instead(path: str, name: str, known: Iterable[str]) -> str:
    """Return what to do instead of a command that does not exist."""
    from dslaunch.cli import foreign_commands

    if name.endswith(FILE_ENDINGS):
        return f"name the command first: {path} run {shlex.quote(name)} SCRIPT"
    if name.endswith(".py"):
        return f"name the command and the cluster file first: {path} run CLUSTER.yaml {name}"
    foreign = foreign_commands.instead(name) if path == "dslaunch" else None
    if foreign is not None:
        return foreign
    near = closest(name, known, ratio=ALIKE)
    return f"did you mean `{path} {near}`?" if near else f"list the commands with `{path} -h`"


class Lazy(MutableMapping[str, Any]):
    """The commands by name, imported when they are looked up."""

    def __getitem__(self, name: str) -> Command:
        """Import a command. Raises KeyError for an unknown name."""
        if name not in NAMES:
            raise KeyError(name)
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES

    def __setitem__(self, name: str, command: Any) -> NoReturn:
        """Raise TypeError: `ENTRIES` is the only list of commands."""
        raise TypeError(name)

    __delitem__ = __setitem__  # type: ignore[assignment]


class Commands(Group):
    """The program: a group whose commands are imported when they are called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Lazy()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the first one or two words. Raises UsageError."""
        both = " ".join(args[:2])
        if len(args) > 1 and both in NAMES:
            return both, load(both), args[2:]
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the program."""
        return _with_simple_conversion(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of one word, which completion offers."""
        return [name for name in NAMES if " " not in name]

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the command line; errors quote it without control characters."""
        with _visible_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors quote its command line without control characters."""
        with _visible_errors():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the commands in their groups."""
        from dslaunch.cli.command_help import help_text, help_width, program_help

        formatter.write(help_text(program_help(self, ctx.command_path), help_width()))


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        quoted = getattr(error, "message", None)
        if isinstance(quoted, str):
            error.message = visible(quoted)  # type: ignore[attr-defined]
        raise
