"""What to run: a script, module or command with its arguments and environment."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dslaunch.cluster.model import Cluster, JobDefaults, Pairs, SecretSource
from dslaunch.errors import UsageError
from dslaunch.launch.command import Word

Kind = Literal["script", "module", "command"]


@dataclass(frozen=True, slots=True)
class Job:
    """A program and all that it is given, independent of where it runs."""

    program: str
    """The script's path as the nodes see it from their working directory, a module's dotted
    name, or the program of a command, by `kind`."""
    args: tuple[Word, ...] = ()
    """Text as it is; a word with a variable in it names a file of the node's run directory."""
    kind: Kind = "script"
    launcher: str = "torchrun"
    env: Pairs = ()
    """The variables for every node: those of the cluster file, of the caller (`env_from`) and
    of the command line, the later ones winning; a node's own `env` wins over the cluster's."""
    overrides: Pairs = ()
    """Variables that the user set for this one run; they win over everything."""
    secrets: tuple[SecretSource, ...] = ()
    """Only names and sources; the values go to the agents and nowhere else."""
    restarts: int = 0
    """How often a launcher that can is to start failed ranks again by itself."""
    min_nodes: int | None = None
    """With how few nodes the job can do, for a launcher that can go on without some."""

    @classmethod
    def on(
        cls,
        cluster: Cluster,
        program: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
        *,
        kind: Kind = "script",
        launcher: str | None = None,
        env: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Job:
        """Return the job with what the cluster file says of jobs: variables, secrets, launcher.

        Without a program it is the cluster file's job. `env` wins over all other variables;
        `environ` is what `env_from` copies from, by default this process's environment. Of one
        variable the later value wins: the cluster file's `env`, the caller's by `env_from`, the
        file's `job.env`. Raises UsageError.
        """
        defaults = cluster.job or JobDefaults()
        if program is None:
            program, kind, args = _default_program(defaults, kind)
        program = os.fspath(program)
        if kind not in get_args(Kind):
            raise UsageError(f"kind={kind!r}: one of {', '.join(get_args(Kind))}")
        _check_program(program, kind)
        overrides = dict(env or {})
        _check_texts(args, overrides)
        _refuse_secrets(cluster, overrides)
        variables = dict(cluster.env)
        variables |= copied(cluster.env_from, os.environ if environ is None else environ)
        variables |= dict(defaults.env)
        for secret in cluster.secrets:  # which `env_from` may match; their values are in no file
            variables.pop(secret.name, None)
        return cls(
            program=program,
            args=tuple(args),
            kind=kind,
            launcher=launcher or cluster.launcher,
            env=tuple(variables.items()),
            overrides=tuple(overrides.items()),
            secrets=cluster.secrets,
        )


def _default_program(defaults: JobDefaults, kind: Kind) -> tuple[str, Kind, tuple[str, ...]]:
    """Return what the cluster file says to run."""
    if kind != "script":
        flag = "--module" if kind == "module" else "--no-python"
        raise UsageError(f"{flag} says what SCRIPT is, and none is given")
    if defaults.module is not None:
        return defaults.module, "module", defaults.args
    if defaults.script is not None:
        return defaults.script, "script", defaults.args
    raise UsageError(
        "no script: none given, and the cluster file has no `job:`",
        hint="name one, or add `job:` to the cluster file",
    )


def _check_texts(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise UsageError for arguments and variables that are no texts: a caller in Python can give
    anything, and processes take texts only."""
    if isinstance(args, str):
        raise UsageError("args: one text instead of a list of texts", hint=f"args={args.split()!r}")
    given: list[tuple[str, object]] = [(f"args[{at}]", value) for at, value in enumerate(args)]
    given += [("a name in env", name) for name in env]
    given += [(f"env[{name!r}]", value) for name, value in env.items()]
    for where, value in given:
        if not isinstance(value, str):
            raise UsageError(f"{where}: {value!r} is not a text", hint=f"write {str(value)!r}")


def _check_program(program: str, kind: Kind) -> None:
    """Raise UsageError for what is certainly no program's name."""
    if kind == "module" and program.endswith(".py"):
        module = program.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"--module {program}: a module's name has no .py",
            hint=f"leave --module out to run the file, or name the module: {module}",
        )
    if program.startswith("-"):
        raise UsageError(
            f"{program} stands where the script is expected",
            hint=f"a script of that name is ./{program}; after `--` nothing is an option",
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
    """Return the variables whose names match one of the patterns, by name."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
