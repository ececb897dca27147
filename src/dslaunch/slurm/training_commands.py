"""Find the training commands of a script, with their launchers and steps.

They are found directly, in variables and arrays, and within `bash -c '...'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.sbatch_options import named
from dslaunch.slurm.grammar import (
    ACCELERATE,
    DEEPSPEED,
    SRUN,
    TORCHRUN,
    Grammar,
    Option,
    options_of,
)
from dslaunch.slurm.script import SHELLS, Script
from dslaunch.slurm.shell_parser import read
from dslaunch.slurm.shell_words import Expansion, Literal, Piece, ShellCommand, Word

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
GRAMMARS = {
    "torchrun": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
    "python": TORCHRUN,
}
LAUNCHERS = frozenset(GRAMMARS) - {"python"}
PYTHON = re.compile(r"python(\d(\.\d+)?)?")
NOT_STARTING = named(
    "alias cd command conda cp declare echo exit export for grep kill local ls mkdir module pip "
    "printf readonly rm select set source test trap type typeset unset which : [ [[ ."
)
"""Commands with names of programs that they do not start."""
POSITIONAL = re.compile(r"\$\{?(?:[@*](?::[0-9]{1,4})?|[1-9])\}?")
COST = 10
"""The share of a word of a function's body in the limit of all expansions."""
DEEPEST_CALL = 3
"""The maximum depth of calls of functions."""
SCRIPT_FILE = re.compile(r".*\.(sh|bash|py)")


class SrunStep(Struct, frozen=True):
    """A job step, started by srun."""

    command: ShellCommand
    options: dict[str, Option]
    place: int
    """The place of the word srun."""
    end: int
    program: tuple[Word, ...]
    """The words of the program that it starts."""
    inner: tuple[ShellCommand, ...]
    """The commands of `bash -c '...'`, if it starts a shell."""

    def inner_expansions(self) -> Iterator[Expansion]:
        """Yield the expansions in the commands of `bash -c '...'`."""
        for command in self.inner:
            yield from command.expansions()


class TrainingCommand(Struct, frozen=True):
    """A command that starts a training."""

    program: str
    """torchrun, torch.distributed.launch, deepspeed, accelerate, python, or the name of a
    script."""
    place: int
    options: dict[str, Option]
    """The options of the launcher, with underscores for dashes; of equal ones, the last."""
    command: ShellCommand
    """The command of the batch script that contains it."""
    step: SrunStep | None

    @property
    def launcher(self) -> bool:
        """Whether it is a launcher, which starts the ranks of a node."""
        return self.program in LAUNCHERS

    @property
    def torch(self) -> bool:
        """Whether it is a launcher of torch."""
        return self.program in ("torchrun", "torch.distributed.launch")

    def option(self, *names: str) -> Option | None:
        """Return the first of these options that is used."""
        return next((self.options[name] for name in names if name in self.options), None)


class LintedScript(Struct, frozen=True):
    """A script with its steps and training commands."""

    script: Script
    steps: tuple[SrunStep, ...]
    launches: tuple[TrainingCommand, ...]
    nested: tuple[ShellCommand, ...]
    """The commands of `bash -c '...'` and `eval` outside steps."""

    def texts(self) -> Iterator[ShellCommand]:
        """Yield the commands of the script and those within `bash -c`."""
        yield from self.script.every_command
        yield from self.nested
        for step in self.steps:
            yield from step.inner


def read_launches(script: Script) -> LintedScript:
    """Return a script with its steps and training commands."""
    steps: list[SrunStep] = []
    launches: list[TrainingCommand] = []
    nested: list[ShellCommand] = []
    own = {id(command) for command in script.commands}
    for command, words in _started(script):
        if id(command) not in own:
            nested.append(command)
        at = _srun(words)
        if at is None:
            launches += _launches(script, words, command, None, 0)
        else:
            step = _step(command, words, at)
            steps.append(step)
            launches += _launches(script, step.program, command, step, 0)
    return LintedScript(script, tuple(steps), tuple(launches), tuple(nested))


def _started(script: Script) -> Iterator[tuple[ShellCommand, tuple[Word, ...]]]:
    """Yield every command with expanded words. Commands of `bash -c` and `eval`, and the body of a
    function with the arguments of a call, replace the command itself."""
    called = {command.name for command in script.commands}
    for command in script.commands:
        words = script.expanded(command.words)
        if command.function and command.function in called and _positional(words):
            continue
        yield from _called(script, command, words, 0)


def _called(
    script: Script, command: ShellCommand, words: tuple[Word, ...], depth: int
) -> Iterator[tuple[ShellCommand, tuple[Word, ...]]]:
    name = words[0].constant if words else None
    text = _shell_text(words) if _srun(words) is None else None
    if depth >= DEEPEST_CALL or not words or name in NOT_STARTING:
        yield command, words
    elif _takes_arguments(script, name) and name != command.function:
        yield from _body(script, command, words, depth)
    elif text is not None:
        for inner in read(text.text(), 0):
            where = _within(inner, command)
            yield from _called(script, where, script.expanded(inner.words), depth + 1)
    else:
        yield command, words


def _takes_arguments(script: Script, name: str | None) -> bool:
    body = script.functions.get(name or "", [])
    return any(_positional(inner.words) for inner in body)


def _body(
    script: Script, command: ShellCommand, words: tuple[Word, ...], depth: int
) -> Iterator[tuple[ShellCommand, tuple[Word, ...]]]:
    """Yield the commands of a function for one call."""
    name = words[0].value
    script.left -= sum(COST * (1 + len(inner.words)) for inner in script.functions[name])
    if script.exhausted:
        return
    arguments = words[1:]
    for inner in script.functions[name]:
        if inner.name == "shift":
            arguments = arguments[1:]
            continue
        theirs = script.expanded(inner.words)
        if not _positional(theirs):
            continue
        filled = tuple(result for word in theirs for result in _filled(word, arguments))
        yield from _called(script, _within(inner, command), filled, depth + 1)


def _within(inner: ShellCommand, outer: ShellCommand) -> ShellCommand:
    """Return a command that runs as a part of another one, with its pipe or `&`."""
    passed = outer.operator in ("|", "|&", "&")
    operator = outer.operator if passed else inner.operator
    return replace(inner, operator=operator, depth=inner.depth + outer.depth)


def _positional(words: Sequence[Word]) -> bool:
    pieces = (expansion for word in words for expansion in word.expansions)
    return any(POSITIONAL.fullmatch(piece.raw) for piece in pieces)


def _filled(word: Word, arguments: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return a word of a function with the arguments of the call instead of `$1` or `$@`."""
    alone = word.pieces[0] if len(word.pieces) == 1 else None
    if not isinstance(alone, Expansion) or not POSITIONAL.fullmatch(alone.raw):
        return (word,)
    number = re.search(r"\d+", alone.raw)
    first = int(number[0]) - 1 if number else 0
    if "@" in alone.raw or "*" in alone.raw:
        return arguments[first:]
    return arguments[first : first + 1]


def _srun(words: Sequence[Word]) -> int | None:
    """Return the index of srun, also after `time`, `exec` or `timeout 5`."""
    for at, word in enumerate(words[:6]):
        if (word.constant or "").rpartition("/")[2] == "srun":
            first = words[0].value
            return at if at == 0 or first in ("exec", "time", "timeout", "env", "nohup") else None
    return None


def _step(command: ShellCommand, words: tuple[Word, ...], at: int) -> SrunStep:
    found, used = options_of(words[at + 1 :], SRUN)
    program = tuple(words[at + 1 + used :])
    options = {option.name: option for option in found}
    text = _shell_text(program)
    inner = tuple(_nested(program, 1, 0))
    if command.document is not None and program and _base(program[0]) in SHELLS and not text:
        inner = tuple(read(command.document, 1))
    return SrunStep(
        command=command,
        options=options,
        place=words[at].place,
        end=words[at].end,
        program=program,
        inner=inner,
    )


def _nested(words: Sequence[Word], shell: int, depth: int) -> Iterator[ShellCommand]:
    """Yield the commands of `bash -c '...'`, also nested ones."""
    text = _shell_text(words)
    if text is None or depth >= DEEPEST_CALL:
        return
    for command in read(text.text(), shell):
        yield command
        yield from _nested(command.words, shell, depth + 1)


def _base(word: Word) -> str:
    return (word.constant or "").rpartition("/")[2]


def _shell_text(words: Sequence[Word]) -> Word | None:
    """Return the argument of `bash -c`, anywhere in the words."""
    if words and words[0].constant == "eval" and len(words) > 1:
        return _joined(words[1:])
    for at, word in enumerate(words):
        if _base(word) in SHELLS:
            for option, text in zip(words[at + 1 :], words[at + 2 :], strict=False):
                if re.fullmatch(r"-[a-z]*c", option.value):
                    return text
                if not option.value.startswith("-"):
                    break
    return None


def _joined(words: Sequence[Word]) -> Word:
    """Return the text that `eval` runs: its words, separated by spaces."""
    pieces: list[Piece] = []
    for word in words:
        if pieces:
            pieces.append(Literal(" ", (word.place,), ""))
        pieces += word.pieces
    return Word(tuple(pieces), words[0].place, words[-1].end)


def _launches(
    script: Script,
    words: tuple[Word, ...],
    command: ShellCommand,
    step: SrunStep | None,
    shell: int,
) -> Iterator[TrainingCommand]:
    if words and words[0].value in NOT_STARTING:
        return
    text = _shell_text(words)
    if text is not None and shell < 3:
        for inner in read(text.text(), shell + 1):
            yield from _launches(script, script.expanded(inner.words), command, step, shell + 1)
        return
    if step and shell == 0 and step.inner:
        for inner in step.inner:
            yield from _launches(script, script.expanded(inner.words), command, step, 1)
        return
    for at in range(len(words)):
        if found := _program(words, at, behind_srun=step is not None):
            name, start = found
            options = _options(words[start:], GRAMMARS.get(name))
            yield TrainingCommand(name, words[at].place, options, command, step)
            return


def _options(words: tuple[Word, ...], grammar: Grammar | None) -> dict[str, Option]:
    if grammar is None:
        return {}
    options, _ = options_of(words, grammar)
    return {option.name.replace("-", "_"): option for option in options}


def _program(words: tuple[Word, ...], at: int, *, behind_srun: bool) -> tuple[str, int] | None:
    """Return the launcher at an index, and the index of its options."""
    name = _base(words[at])
    before = words[at - 1].value if at else ""
    if before.startswith("--") and before.endswith("launcher"):  # an option's value
        return None
    following = words[at + 1].value if at + 1 < len(words) else ""
    if name in ("torchrun", "deepspeed"):
        return name, at + 1
    if name == "accelerate":
        return ("accelerate", at + 2) if following == "launch" else None
    if PYTHON.fullmatch(name):
        return _module(words, at)
    if at == 0 and behind_srun and SCRIPT_FILE.fullmatch(name):
        return name, at + 1
    return None


def _module(words: tuple[Word, ...], at: int) -> tuple[str, int] | None:
    """Return what `python ...` starts; None for `python -c` and similar, which are not
    trainings."""
    for index in range(at + 1, len(words)):
        value = words[index].value
        if value == "-m" and index + 1 < len(words):
            module = words[index + 1].value
            return MODULES.get(module, "python"), index + 2
        if value == "-c" or value.startswith("--version"):
            return None
        if not value.startswith("-"):
            break
    return "python", at + 1
