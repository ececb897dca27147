"""The job's program and arguments in the forms that launchers and Python take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.launch.command import Var, Word
    from dslaunch.launch.job import Job


def program(job: Job) -> str:
    """The program's name; a script that is called like an option becomes `./-name`."""
    if job.kind == "script" and job.program.startswith("-"):
        return f"./{job.program}"
    return job.program


def python_command(python: Word, job: Job) -> tuple[Word, ...]:
    """The words that start the program once, unbuffered if Python runs it."""
    if job.kind == "command":
        return (program(job), *job.args)
    module = ("-m",) if job.kind == "module" else ()
    return (python, "-u", *module, program(job), *job.args)


def positional(job: Job) -> tuple[Word, ...]:
    """The program and its arguments for a launcher that reads them with argparse's REMAINDER.

    argparse takes the first `--` for itself when it directly follows the program, so that the
    program never sees it (torch 2.13, accelerate 1.15 and deepspeed 0.19.8 alike); one more in
    front is taken instead. The same one lets a command's name begin with `-`.
    """
    words = (program(job), *job.args)
    swallowed = job.args[:1] == ("--",) or program(job).startswith("-")
    return ("--", *words) if swallowed else words


def piped(job: Job, logs: Var, variable: str = "LOCAL_RANK") -> tuple[Word, ...]:
    """The script that the agent puts into `logs`, and its arguments: it gives a rank its pipes and
    becomes the program.

    Launchers can redirect ranks only into files of names that they choose; what a rank writes,
    secrets among it, must not lie in a file. `variable` is the one whose value tells the ranks of
    a node apart.
    """
    return ((logs, "/rank.py"), variable, job.kind, program(job), *job.args)


def kind_flag(job: Job, no_python: str, logs: Var | None = None) -> tuple[str, ...]:
    """The launcher's option for what the program is; `no_python` as that launcher spells it."""
    if logs is not None:  # it starts a script of ours
        return ()
    return {"script": (), "module": ("--module",), "command": (no_python,)}[job.kind]


def without_macros(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Double each `$` in the text, as torch's agent halves them.

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
    """Like `positional`, for launchers that hand the ranks to torch's agent.

    A command's name is not a rank's argument there, and is not substituted.
    """
    if logs is not None:
        script, *arguments = piped(job, logs)
        return (script, *without_macros(tuple(arguments)))
    words = positional(job)
    if job.kind != "command":
        return without_macros(words)
    first = words.index(program(job)) + 1
    return (*words[:first], *without_macros(words[first:]))
