"""Options that the user passes to the launcher, and those that the plan sets itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.registry import LAUNCHERS


class Reserved(StrEnum):
    """Why an option of a launcher cannot be passed through."""

    RENDEZVOUS = "rendezvous"
    NODES = "nodes"
    RANKS = "ranks"
    NODE_RANK = "node-rank"
    DEVICES = "devices"
    RESTARTS = "restarts"
    OUTPUT = "output"
    PROGRAM = "program"


class ArgumentFault(StrEnum):
    """An invalid form of an option for a launcher."""

    NOT_LONG = "not-long"
    NO_ARGUMENTS = "no-arguments"
    NO_VALUE = "no-value"


_REASONS: Mapping[Reserved, str] = {
    Reserved.RENDEZVOUS: "dslaunch sets the rendezvous",
    Reserved.NODES: "dslaunch sets the nodes of the run",
    Reserved.RANKS: "dslaunch sets the number of ranks per node",
    Reserved.NODE_RANK: "dslaunch sets the node rank on each node",
    Reserved.DEVICES: "dslaunch sets the devices of the ranks",
    Reserved.RESTARTS: "dslaunch sets the number of restarts",
    Reserved.OUTPUT: "dslaunch collects the output of the ranks",
    Reserved.PROGRAM: "dslaunch sets the program and how it is started",
}
_HINTS: Mapping[Reserved, str] = {
    Reserved.RENDEZVOUS: "use --master-port PORT for its port",
    Reserved.NODES: "use --nodes N, --include HOSTS or --exclude HOSTS",
    Reserved.RANKS: "use --slots N",
    Reserved.NODE_RANK: "remove it",
    Reserved.DEVICES: "use --include HOST:SLOTS",
    Reserved.RESTARTS: "use --restarts N and --min-nodes N",
    Reserved.OUTPUT: "use `dslaunch logs`",
    Reserved.PROGRAM: "use --module or --no-python, and name the script after the options",
}


def check_launcher_args(launcher: str, args: Sequence[str]) -> None:
    """Raise UsageError for options that the launcher does not accept or that the plan sets.

    Each option is one word, `--name=value`, or `--name` for a known flag. Otherwise the launcher
    would use the next word, the script, as the value.
    """
    if not args:
        return
    problems: list[str] = []
    hints: list[str] = []
    for word in args:
        found = fault(launcher, word)
        if isinstance(found, Reserved):
            problems.append(f"launcher argument {word}: {_REASONS[found]}")
            hints.append(_HINTS[found])
        elif found is ArgumentFault.NOT_LONG:
            problems.append(f"launcher argument {word!r}: not an option")
            hints.append("write each option as one word: --launcher-arg=--NAME=VALUE")
        elif found is ArgumentFault.NO_VALUE:
            problems.append(f"launcher argument {word}: not an option without a value")
            hints.append(f"write the value after `=`: --launcher-arg={word}=VALUE")
        elif found is ArgumentFault.NO_ARGUMENTS:
            problems.append(f"launcher argument {word}: launcher `{launcher}` takes no options")
            hints.append("choose another one with --launcher NAME")
    if problems:
        raise UsageError(
            "\n".join(problems),
            hint="\n".join(dict.fromkeys(hints)),
            code=ErrorCode.LAUNCHER_ARGUMENT,
        )


def fault(launcher: str, word: str) -> Reserved | ArgumentFault | None:
    """Return why an option cannot be passed to a launcher; None: it can."""
    kind = LAUNCHERS.get(launcher)
    if not kind.takes_args:
        return ArgumentFault.NO_ARGUMENTS
    name = word.partition("=")[0].removeprefix("--").replace("-", "_")
    if not word.startswith("--") or not name.isidentifier() or not word.isprintable():
        return ArgumentFault.NOT_LONG
    for reserved, options in kind.reserved.items():
        # argparse accepts a prefix of a name
        if any(option.startswith(name) for option in options):
            return reserved
    if "=" not in word and name not in kind.flags:
        return ArgumentFault.NO_VALUE
    return None
