"""The job: a script, module or command with its arguments and environment."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct

from dslaunch.cluster.model import Cluster, JobDefaults, Pairs, SecretSource
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.launch.command import LONGEST_ARGUMENT, Word
from dslaunch.registry import LAUNCHERS

Kind = Literal["script", "module", "command"]


class Job(Struct, frozen=True):
    """A program with its arguments and environment, independent of the nodes."""

    program: str
    """By `kind`: the path of the script, relative to the working directory on the nodes; the dotted
    name of the module; or the program of the command."""
    args: tuple[Word, ...] = ()
    """Literal text; a word with a variable is a file in the run directory of the node."""
    kind: Kind = "script"
    launcher: str = "torchrun"
    launcher_args: tuple[str, ...] = ()
    """Options to pass through to the launcher."""
    env: Pairs = ()
    """Environment variables of every node, from the cluster file, the caller (`env_from`) and the
    command line; later ones override earlier ones. `env` of a node overrides that of the file."""
    overrides: Pairs = ()
    """Environment variables of this run only; they override all others."""
    secrets: tuple[SecretSource, ...] = ()
    """Names and sources only; the values are sent to the agents only."""
    restarts: int = 0
    """Number of restarts by the launcher itself, if it supports them."""
    min_nodes: int | None = None
    """Minimum number of nodes, for a launcher that can continue without lost nodes."""

    @classmethod
    def on(
        cls,
        cluster: Cluster,
        program: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
        *,
        kind: Kind = "script",
        launcher: str | None = None,
        launcher_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Job:
        """Return the job with the variables, secrets and launcher of the cluster file.

        Without a program it is the job of the cluster file. `env` overrides all other variables.
        The others come from `env` of the cluster file, `env_from` and `job.env`; later ones
        override earlier ones. `env_from` copies from `environ` (default: the current environment).
        `launcher_args` follow those of the cluster file, which are for the launcher of the file
        only. Raises UsageError.
        """
        from dslaunch.launch.launcher_args import check_launcher_args

        defaults = cluster.job or JobDefaults()
        if program is None:
            program, kind, args = _default_program(defaults, kind)
        program = os.fspath(program)
        if kind not in get_args(Kind):
            raise UsageError.coded(
                ErrorCode.UNKNOWN_CHOICE, option="kind", value=kind, choices=get_args(Kind)
            )
        _check_program(program, kind)
        overrides = dict(env or {})
        _check_texts(args, overrides)
        chosen = launcher or cluster.launcher
        own = cluster.launcher_args if chosen == cluster.launcher else ()
        passed = (*own, *launcher_args)
        LAUNCHERS.require(chosen)
        check_launcher_args(chosen, passed)
        _refuse_secrets(cluster, overrides)
        variables = dict(cluster.env)
        variables |= copied(cluster.env_from, os.environ if environ is None else environ)
        variables |= dict(defaults.env)
        # `env_from` may match the secrets, whose values must not be in a file
        for secret in cluster.secrets:
            variables.pop(secret.name, None)
        _check_lengths(args, variables | overrides)
        return cls(
            program=program,
            args=tuple(args),
            kind=kind,
            launcher=chosen,
            launcher_args=passed,
            env=tuple(variables.items()),
            overrides=tuple(overrides.items()),
            secrets=cluster.secrets,
        )


def _default_program(defaults: JobDefaults, kind: Kind) -> tuple[str, Kind, tuple[str, ...]]:
    """Return the program of the cluster file's job, its kind and its arguments."""
    if kind != "script":
        flag = "--module" if kind == "module" else "--no-python"
        raise UsageError.coded(ErrorCode.OPTION_WITHOUT_SCRIPT, option=flag)
    if defaults.module is not None:
        return defaults.module, "module", defaults.args
    if defaults.script is not None:
        return defaults.script, "script", defaults.args
    raise UsageError.coded(ErrorCode.NO_SCRIPT)


def _check_texts(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise UsageError for arguments and variables that are not strings, which callers in Python
    can pass by mistake."""
    if isinstance(args, str):
        raise UsageError.coded(ErrorCode.NO_ARGUMENT_LIST, split=repr(args.split()))
    given: list[tuple[str, object]] = [(f"args[{at}]", value) for at, value in enumerate(args)]
    given += [("a name in env", name) for name in env]
    given += [(f"env[{name!r}]", value) for name, value in env.items()]
    for where, value in given:
        if not isinstance(value, str):
            raise UsageError.coded(
                ErrorCode.NOT_A_STRING, where=where, value=repr(value), written=repr(str(value))
            )


def _check_lengths(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise UsageError for what no process can be started with; execve(2), MAX_ARG_STRLEN."""
    for number, text in enumerate(args, 1):
        size = len(os.fsencode(text))
        if size > LONGEST_ARGUMENT:
            raise UsageError.coded(
                ErrorCode.ARGUMENT_TOO_LONG, number=number, size=size, limit=LONGEST_ARGUMENT
            )
    for name, value in env.items():
        size = len(os.fsencode(f"{name}={value}"))
        if size > LONGEST_ARGUMENT:
            raise UsageError.coded(
                ErrorCode.VARIABLE_TOO_LONG, name=name, size=size, limit=LONGEST_ARGUMENT
            )


def _check_program(program: str, kind: Kind) -> None:
    """Raise UsageError for text that cannot be the name of a program."""
    if kind == "module" and program.endswith(".py"):
        module = program.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError.coded(ErrorCode.FILE_AS_MODULE, program=program, module=module)
    if program.startswith("-"):
        raise UsageError.coded(ErrorCode.OPTION_AS_SCRIPT, program=program)


def _refuse_secrets(cluster: Cluster, overrides: Mapping[str, str]) -> None:
    """Raise UsageError for secrets among variables with plain values."""
    names = [secret.name for secret in cluster.secrets if secret.name in overrides]
    if names:
        raise UsageError.coded(ErrorCode.SECRET_ON_COMMAND_LINE, names=tuple(names))


def copied(patterns: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names match one of the patterns, by name."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
