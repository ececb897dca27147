"""Warn about arguments of the script that have the names of dslaunch's options.

Everything after the script belongs to it: `dslaunch run c.yaml train.py --dry-run` trains.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dslaunch.cli import ui
from dslaunch.cli.positional import split_words

DELAY = 5
"""Seconds before the start in which Ctrl-C prevents it; only on a terminal."""


def tell_of_own_options(
    words: Sequence[str], command: str, cwd: Path, *, file: Path | None = None
) -> None:
    """Print which arguments of the script are also options of the command.

    On a terminal, wait for Ctrl-C, unless the script itself defines options of these names.
    """
    _, program, args = split_words(words, file)
    ambiguous = own_options(args, option_names(command))
    if program is None or not ambiguous:
        return
    listed = ", ".join(ambiguous)
    ui.say(f"note: {listed} after the script: passed to {program}, not to dslaunch")
    if set(ambiguous) <= defined_options(cwd / program):
        return
    ui.say(f"hint: to pass it to dslaunch: dslaunch {command} {ambiguous[0]} ... {program}")
    if sys.stdin.isatty() and sys.stderr.isatty():
        ui.say(f"starting in {DELAY} s; press Ctrl-C to cancel")
        time.sleep(DELAY)


def option_names(command: str) -> frozenset[str]:
    """Return the names of a command's options, long and short."""
    from dslaunch.cli.commands import load

    return frozenset(
        name
        for parameter in load(command).params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    )


def own_options(args: Iterable[str], names: frozenset[str]) -> tuple[str, ...]:
    """Return the script's arguments that have a name of `names`, up to `--`."""
    found = []
    for word in args:
        if word == "--":
            break
        name = word.partition("=")[0]
        if name in names:
            found.append(name)
    return tuple(dict.fromkeys(found))


def defined_options(script: Path) -> frozenset[str]:
    """Return the options that a Python script defines, as far as its source shows."""
    from dslaunch.pysource.module import read_module
    from dslaunch.run.job_files import read_small

    text = read_small(script) if script.suffix == ".py" else None
    module = read_module(script.name, text) if text is not None else None
    return frozenset(module.options()) if module is not None else frozenset()
