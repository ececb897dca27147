"""The training commands of a script: what is started, by which launcher, under which srun.

Found directly, behind variables and arrays, and within `bash -c '...'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dslaunch.slurm.grammar import (
    ACCELERATE,
    DEEPSPEED,
    SRUN,
    TORCHRUN,
    Grammar,
    Option,
    options_of,
)
from dslaunch.slurm.script import Script
from dslaunch.slurm.shell import read
from dslaunch.slurm.words import Command, Word

SHELLS = ("bash", "sh", "zsh", "dash")
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
SCRIPT_FILE = re.compile(r".*\.(sh|bash|py)")


@dataclass(frozen=True, slots=True)
class Step:
    """One srun."""

    command: Command
    options: dict[str, Option]
    place: int
    """Of the word srun."""
    end: int
    program: tuple[Word, ...]
    """What it starts."""
    shell: int
    inner: tuple[Command, ...]
    """The commands of `bash -c '...'`, if it starts that."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One program that trains."""

    program: str
    """torchrun, torch.distributed.launch, deepspeed, accelerate, python, or a script's name."""
    place: int
    options: dict[str, Option]
    """Of the launcher, underscores for dashes; the last of each name."""
    words: tuple[Word, ...]
    """From the launcher's name on."""
    command: Command
    """Of the batch script, in which it is."""
    step: Step | None
    shell: int
    """0: the batch script's shell starts it; 1: one that srun starts."""

    @property
    def launcher(self) -> bool:
        """Whether it starts the ranks of a node, rather than being one."""
        return self.program in LAUNCHERS

    @property
    def torch(self) -> bool:
        """Whether it is torch's launcher."""
        return self.program in ("torchrun", "torch.distributed.launch")

    def option(self, *names: str) -> Option | None:
        """The first of these options that is given."""
        return next((self.options[name] for name in names if name in self.options), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """A script with what it starts."""

    script: Script
    steps: tuple[Step, ...]
    launches: tuple[Launch, ...]

    def texts(self) -> Iterator[Command]:
        """Every command of every shell: the script's and those within `bash -c`."""
        yield from self.script.every_command()
        for step in self.steps:
            yield from step.inner


def read_launches(script: Script) -> Reading:
    """Find every step and launch."""
    steps: list[Step] = []
    launches: list[Launch] = []
    for command in script.commands:
        words = script.expanded(command.words)
        at = _srun(words)
        step = _step(command, words, at) if at is not None else None
        steps += [step] if step else []
        rest = step.program if step else words
        launches += _launches(script, rest, command, step, 0)
    return Reading(script, tuple(steps), tuple(launches))


def _srun(words: Sequence[Word]) -> int | None:
    """Where srun is, behind `time`, `exec`, `timeout 5` and the like."""
    for at, word in enumerate(words[:6]):
        if (word.constant or "").rpartition("/")[2] == "srun":
            first = words[0].value
            return at if at == 0 or first in ("exec", "time", "timeout", "env", "nohup") else None
    return None


def _step(command: Command, words: tuple[Word, ...], at: int) -> Step:
    found, used = options_of(words[at + 1 :], SRUN)
    program = tuple(words[at + 1 + used :])
    options = {option.name: option for option in found}
    text = _shell_text(program)
    inner = tuple(read(text.text(), 1)) if text else ()
    if command.document is not None and program and _base(program[0]) in SHELLS and not text:
        inner = tuple(read(command.document, 1))
    return Step(command, options, words[at].place, words[at].end, program, 0, inner)


def _base(word: Word) -> str:
    return (word.constant or "").rpartition("/")[2]


def _shell_text(words: Sequence[Word]) -> Word | None:
    """What `bash -c` is given, wherever it is among the words."""
    for at, word in enumerate(words):
        if _base(word) in SHELLS:
            for option, text in zip(words[at + 1 :], words[at + 2 :], strict=False):
                if re.fullmatch(r"-[a-z]*c", option.value):
                    return text
                if not option.value.startswith("-"):
                    break
    return None


def _launches(
    script: Script, words: tuple[Word, ...], command: Command, step: Step | None, shell: int
) -> Iterator[Launch]:
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
            yield Launch(name, words[at].place, options, words[at:], command, step, shell)
            return


def _options(words: tuple[Word, ...], grammar: Grammar | None) -> dict[str, Option]:
    if grammar is None:
        return {}
    options, _ = options_of(words, grammar)
    return {option.name.replace("-", "_"): option for option in options}


def _program(words: tuple[Word, ...], at: int, *, behind_srun: bool) -> tuple[str, int] | None:
    """The launcher that is named at an index, and where its options begin."""
    name = _base(words[at])
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
    """What `python ...` starts; None for python -c and the like, which trains nothing."""
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
