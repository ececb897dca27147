"""Options that write a file: one rule for all, checked before anything is read, asked or started.

A file that a command reads is never replaced by what it writes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import typer

from dslaunch.cli.cluster_option import NAME as CLUSTER_OPTION
from dslaunch.cli.cluster_option import default_cluster
from dslaunch.errors import UsageError

STDOUT = "-"
GIVEN = "dslaunch.output-files"
"""The key in the context of a command under which its output files are kept, by option."""
HINT = "name another file"


def output_option(*names: str, text: str, or_stdout: bool = False) -> Any:
    """Return an option for a file that a command writes.

    `text`: its help. `or_stdout`: whether `-` is standard output. Without `names`, it has the name
    of its parameter.
    """

    def note(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
        if path is None or context.resilient_parsing:
            return path
        name = max(option.opts, key=len)
        if str(path) == STDOUT:
            if not or_stdout:
                raise UsageError(f"{name} {STDOUT}: standard output has the result", hint=HINT)
            return path
        check_writable(name, path)
        context.meta.setdefault(GIVEN, {})[name] = path
        return path

    return typer.Option(*names, metavar="FILE", help=text, callback=note)


def check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the file of an option cannot be written. Nothing is created or changed.

    Also for a name or a place that the file system refuses.
    """
    try:
        if path.is_dir():
            why = os.strerror(errno.EISDIR)
        elif not path.parent.is_dir():
            why = f"directory {path.parent} not found"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = os.strerror(errno.EACCES)
        else:
            return
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:  # a null byte
        why = str(error)
    raise UsageError(f"{option} {path}: {why}")


def check_replaces_no_input(context: Any) -> None:
    """Raise UsageError if a file that the command writes is one that it reads, or writes twice.

    Links are followed: a symbolic or hard link to such a file is that file.
    """
    outputs: dict[str, Path] = context.meta.get(GIVEN, {})
    if not outputs:
        return
    inputs = list(_inputs(context, outputs))
    for option, path in outputs.items():
        for what, read in inputs:
            if _is_same_file(path, read):
                raise UsageError(f"{option} {path}: this is {what}", hint=HINT)
    for (first, written), (second, path) in combinations(outputs.items(), 2):
        if _is_same_file(path, written):
            raise UsageError(f"{second} {path}: {first} writes this file too", hint=HINT)


def _inputs(context: Any, outputs: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield what a command reads, each with what it is: the default cluster file, files of its
    options, and the words that may be files."""
    reads_cluster = any(CLUSTER_OPTION in parameter.opts for parameter in context.command.params)
    default = default_cluster() if reads_cluster else None
    if default is not None:
        yield "the cluster file", default
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        if max(parameter.opts, key=len) in outputs:
            continue
        what = "the cluster file" if CLUSTER_OPTION in parameter.opts else "an input of the command"
        if isinstance(value, Path):
            yield what, value
        elif isinstance(value, list) and parameter.param_type_name == "argument":
            yield from ((what, Path(word)) for word in value)


def _is_same_file(first: Path, second: Path) -> bool:
    """Return whether two names are of one file. What is no file, as a terminal, is never one."""
    try:
        if not first.exists() and not second.exists():
            return os.path.realpath(first) == os.path.realpath(second)
        return first.is_file() and first.samefile(second)
    except (OSError, ValueError):
        return False
