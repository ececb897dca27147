"""The job's program and arguments in the forms that launchers and Python expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.launch.command import Var, Word
    from dslaunch.launch.job import Job


def program(job: Job) -> str:
    """Return the program's name; a script whose name starts with `-` becomes `./-name`."""
    if job.kind == "script" and job.program.startswith("-"):
        return f"./{job.program}"
    return job.program


def python_command(python: Word, job: Job) -> tuple[Word, ...]:
    """Return the command that starts the program once, unbuffered if Python runs it."""
    if job.kind == "command":
        return (program(job), *job.args)
    module = ("-m",) if job.kind == "module" else ()
    return (python, "-u", *module, program(job), *job.args)


def positional(job: Job) -> tuple[Word, ...]:
    """Return the program and its arguments for a launcher that reads them with argparse's
    REMAINDER.

    argparse removes a `--` directly after the program (torch 2.13, accelerate 1.15, deepspeed
    0.19.8); an additional `--` before it is removed instead. It also allows the name of a command
    to begin with `-`.
    """
    words = (program(job), *job.args)
    swallowed = job.args[:1] == ("--",) or program(job).startswith("-")
    return ("--", *words) if swallowed else words


def piped(job: Job, logs: Var, variable: str = "LOCAL_RANK") -> tuple[Word, ...]:
    """Return the script that the agent writes to `logs`, and its arguments: it connects a rank to
    its pipes and then executes the program.

    Launchers can redirect ranks only to files whose names they choose; but the output of a rank may
    contain secrets, and must not be in a file. `variable` has a different value for each rank of a
    node.
    """
    return ((logs, "/rank.py"), variable, job.kind, program(job), *job.args)


def kind_flag(job: Job, no_python: str, logs: Var | None = None) -> tuple[str, ...]:
    """Return the launcher's option for the kind of program; `no_python` is its spelling."""
    if logs is not None:  # it starts our script
        return ()
    return {"script": (), "module": ("--module",), "command": (no_python,)}[job.kind]


def without_macros(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Double each `$` in the text, because torch's agent halves them.

    It runs `string.Template.safe_substitute` over the arguments of the ranks, so that `$$`
    would arrive as `$` and `${local_rank}` as a number (torch 2.13,
    distributed/elastic/utils/api.py, `macros`).
    """

    def doubled(part: str | Var) -> str | Var:
        return part.replace("$", "$$") if isinstance(part, str) else part

    return tuple(
        w.replace("$", "$$") if isinstance(w, str) else tuple(map(doubled, w)) for w in words
    )


def torch_positional(job: Job, logs: Var | None = None) -> tuple[Word, ...]:
    """Return the same as `positional`, for launchers with torch's agent.

    The agent substitutes the arguments of ranks, but not the name of a command.
    """
    if logs is not None:
        script, *arguments = piped(job, logs)
        return (script, *without_macros(tuple(arguments)))
    words = positional(job)
    if job.kind != "command":
        return without_macros(words)
    first = words.index(program(job)) + 1
    return (*words[:first], *without_macros(words[first:]))
