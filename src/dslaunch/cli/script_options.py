"""Warn of arguments of the script that are called like options of dslaunch.

What stands behind the script is the script's: `dslaunch run c.yaml train.py --dry-run` trains.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dslaunch.cli import ui
from dslaunch.cli.positional import split_words

DELAY = 5
"""Seconds in which Ctrl-C ends it, where somebody can press it."""


def tell_of_own_options(words: Sequence[str], command: str, cwd: Path) -> None:
    """Say which arguments of the script are options of the command, too.

    On a terminal, wait for Ctrl-C, unless the script defines options of these names itself.
    """
    _, program, args = split_words(words)
    ambiguous = own_options(args, option_names(command))
    if program is None or not ambiguous:
        return
    listed = ", ".join(ambiguous)
    ui.say(f"note: {listed}: behind the script, so given to {program}, not to dslaunch")
    if set(ambiguous) <= defined_options(cwd / program):
        return
    ui.say(f"hint: dslaunch {command} {ambiguous[0]} ... {program}, if dslaunch is meant")
    if sys.stdin.isatty() and sys.stderr.isatty():
        ui.say(f"starting in {DELAY} s; press Ctrl-C to stop")
        time.sleep(DELAY)


def option_names(command: str) -> frozenset[str]:
    """The names of a command's options, long and short."""
    from dslaunch.cli.commands import load

    return frozenset(
        name
        for parameter in load(command).params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    )


def own_options(args: Iterable[str], names: frozenset[str]) -> tuple[str, ...]:
    """The options among a script's arguments that have a name of `names`; not those behind `--`."""
    found = []
    for word in args:
        if word == "--":
            break
        name = word.partition("=")[0]
        if name in names:
            found.append(name)
    return tuple(dict.fromkeys(found))


def defined_options(script: Path) -> frozenset[str]:
    """The options that a Python script defines itself, as far as its source says."""
    from dslaunch.pysource.values import read_module
    from dslaunch.run.source import read_small

    text = read_small(script) if script.suffix == ".py" else None
    module = read_module(script.name, text) if text is not None else None
    return frozenset(module.options()) if module is not None else frozenset()
