"""The words behind the options, `[CLUSTER.yaml] [SCRIPT] [ARGS]...`, and what they name. Pure."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.cluster.model import JobDefaults
from dslaunch.errors import UsageError
from dslaunch.launch.job import Job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dslaunch.cluster.model import Cluster
    from dslaunch.launch.job import Kind

FILE_ENDINGS = (".yaml", ".yml")
"""What the first word ends in if it is the cluster file."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that say how the program is run."""

    module: bool = False
    no_python: bool = False
    launcher: str | None = None
    env: tuple[str, ...] = ()
    """`NAME=VALUE`, or `NAME` to copy the caller's value."""
    fallback: str | None = None
    """The script where neither the words nor the cluster file name one; None: one is needed."""
    command: str = "run"
    """The command that is called, for its hints."""


class MoreOptions(Exception):
    """Options stand behind words of dslaunch's own: `dslaunch run c.yaml --nodes 2 train.py`.

    The option parser stops at the first word, since what follows a script is the script's. Those
    who catch this parse `rest` again and put `own` in front of the words that this gives.
    """

    def __init__(self, own: list[str], rest: list[str], unread: int) -> None:
        super().__init__(own, rest)
        self.own = own
        self.rest = rest
        self.unread = unread
        """How many words at the end of the command line were not yet parsed as options."""


def own_first(held: Sequence[str], words: Sequence[str], *, formats: int = 0) -> list[str]:
    """Put the words that were held back in front of `words`.

    `formats` words before the cluster file are dslaunch's own, too. Raises MoreOptions when an
    option follows the own words, but not twice for the same ones.
    """
    given = [*held, *words]
    own = min(formats, len(given))
    own += own < len(given) and given[own].endswith(FILE_ENDINGS)
    if len(held) < own < len(given) and given[own].startswith("-"):
        raise MoreOptions(given[:own], given[own:], len(words))
    return given


def split_words(words: Sequence[str]) -> tuple[Path | None, str | None, tuple[str, ...]]:
    """Split into cluster file, program and arguments; the file is known by its ending."""
    rest = list(words)
    file = Path(rest.pop(0)) if rest and rest[0].endswith(FILE_ENDINGS) else None
    program = rest.pop(0) if rest else None
    return file, program, tuple(rest)


def make_job(
    cluster: Cluster,
    program: str | None,
    args: tuple[str, ...],
    options: JobOptions,
    environ: Mapping[str, str],
) -> Job:
    """The job that the command line and the cluster file's defaults name.

    Of one variable the later value wins: the cluster file's `env`, the caller's by `env_from`,
    the file's `job.env`. Those of `--env` win over a node's own too. Raises UsageError.
    """
    if options.module and options.no_python:
        raise UsageError("--module and --no-python exclude each other")
    defaults = cluster.job or JobDefaults()
    kind: Kind = "script"
    if options.module:
        kind = "module"
    elif options.no_python:
        kind = "command"
    if program is None:
        program, kind, args = _default_program(defaults, kind, options)
    elif not program:
        raise UsageError("the script's name is empty", hint="check the variable that it comes from")
    if kind == "module" and program.endswith(".py"):
        raise UsageError(
            f"--module {program}: a module's name has no .py",
            hint=f"leave --module out to run the file, or name the module: {_module_name(program)}",
        )
    if program.startswith("-"):
        raise UsageError(
            f"{program} stands where the script is expected",
            hint=f"a script of that name is ./{program}; after `--` nothing is an option",
        )
    variables = dict(cluster.env)
    variables |= copied(cluster.env_from, environ)
    variables |= dict(defaults.env)
    overrides = read_settings(options.env, environ)
    _refuse_secrets(cluster, overrides)
    for secret in cluster.secrets:  # which `env_from` may match; their values are in no file
        variables.pop(secret.name, None)
    return Job(
        program=program,
        args=args,
        kind=kind,
        launcher=options.launcher or cluster.launcher,
        env=tuple(variables.items()),
        overrides=tuple(overrides.items()),
        secrets=cluster.secrets,
    )


def _refuse_secrets(cluster: Cluster, overrides: Mapping[str, str]) -> None:
    """Raise UsageError for secrets among variables whose values are written down."""
    names = [secret.name for secret in cluster.secrets if secret.name in overrides]
    if names:
        raise UsageError(
            f"--env {', '.join(names)}: secrets of the cluster file, whose values are in no file",
            hint="leave them out: they come from where `secrets` says, mostly your environment",
        )


def copied(patterns: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables whose names match one of the patterns, by name."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def read_settings(settings: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `NAME=VALUE` words; a bare `NAME` copies the caller's. Raises UsageError for all."""
    found, wrong = {}, []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong.append(f"--env: {name!r} is no name of a variable")
        elif not equals and name not in environ:
            wrong.append(f"--env: {name} is not set in your environment")
        else:
            found[name] = value if equals else environ[name]
    if wrong:
        raise UsageError("\n".join(wrong), hint="write --env NAME=VALUE")
    return found


def _module_name(path: str) -> str:
    return path.removeprefix("./").removesuffix(".py").replace("/", ".")


def _default_program(
    defaults: JobDefaults, kind: Kind, options: JobOptions
) -> tuple[str, Kind, tuple[str, ...]]:
    if kind != "script":
        flag = "--module" if kind == "module" else "--no-python"
        raise UsageError(f"{flag} says what SCRIPT is, and none is given")
    if defaults.module is not None:
        return defaults.module, "module", defaults.args
    if defaults.script is not None:
        return defaults.script, "script", defaults.args
    if options.fallback is not None:
        return options.fallback, kind, ()
    raise UsageError(
        "no script: none given, and the cluster file has no `job:`",
        hint=f"dslaunch {options.command} CLUSTER.yaml SCRIPT [ARGS]...",
    )
