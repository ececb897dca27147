"""What the `#SBATCH` lines say, and what SLURM makes of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dslaunch.lint import Edit, Remark
from dslaunch.slurm.grammar import SBATCH
from dslaunch.slurm.launches import Reading
from dslaunch.slurm.rules import sources
from dslaunch.slurm.script import Line, Script

NEARLY = re.compile(
    r"^[ \t]*(#[ \t]+SBATCH|#SBATCH(?=-)|#SBTACH|#SBACTH|#sbatch|#Sbatch)(?=[ \t]*-)", re.M
)
COUNTS = {
    "nodes": re.compile(r"\d+[kKmM]?([-,:]\d+[kKmM]?)*"),
    "ntasks": re.compile(r"\d+[kKmM]?"),
    "ntasks-per-node": re.compile(r"\d+"),
    "cpus-per-task": re.compile(r"\d+"),
    "time": re.compile(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED|INFINITE|-1", re.IGNORECASE),
}
"""What sbatch takes for numbers (sbatch(1)); other options have more forms than can be told."""
VARIABLE = re.compile(r"\$\{?\w+")
ITEM = re.compile(r"[A-Za-z_]\w*(=.*)?", re.DOTALL)


def refused_files(reading: Reading) -> Iterator[Remark]:
    """A first line that is not `#!`, and DOS line ends: sbatch takes neither."""
    script = reading.script
    if not script.text.startswith("#!"):
        yield script.remark(
            "no-shebang",
            "error",
            0,
            "the first line is not #! with an interpreter, so that sbatch refuses the script",
            fix="begin with #!/bin/bash",
            source=sources.SBATCH,
            edits=(Edit(0, 0, "#!/bin/bash\n"),),
        )
    ends = [match.start() for match in re.finditer("\r\n", script.text)]
    if ends:
        yield script.remark(
            "dos-line-breaks",
            "error",
            ends[0],
            f"{len(ends)} lines end in \\r\\n, so that sbatch refuses the script",
            fix="write \\n alone",
            source=sources.SBATCH,
            edits=tuple(Edit(at, at + 1, "") for at in ends),
        )


def ignored_directives(reading: Reading) -> Iterator[Remark]:
    """Directives behind the first command, and lines that only look like some."""
    script = reading.script
    for line in script.late:
        yield script.remark(
            "late-directive",
            "error",
            line.place,
            "SLURM ignores this: directives end where the first command begins",
            fix="move it up, to the other #SBATCH lines",
            source=sources.SBATCH,
        )
    for match in NEARLY.finditer(script.text):
        yield script.remark(
            "not-a-directive",
            "warning",
            match.start(1),
            f"{match[1]} begins a comment: SLURM reads only lines that begin with #SBATCH",
            fix="write #SBATCH and a blank",
            source=sources.SBATCH,
            edits=(Edit(match.start(), match.end(), _mended(match[1])),),
        )


def _mended(found: str) -> str:
    return "#SBATCH " if found == "#SBATCH" else "#SBATCH"


def misread_directives(reading: Reading) -> Iterator[Remark]:
    """Options that sbatch does not know, words it cannot use, variables it does not expand."""
    script = reading.script
    for line in script.lines:
        yield from _strays(script, line)
        yield from _unknown(script, line)
        yield from _unexpanded(script, line)
        if line.cut >= 0:
            yield script.remark(
                "cut-directive",
                "warning",
                line.cut,
                "# begins a comment even within a word: what follows is not read",
                fix="put a backslash in front of it, or quotes around the value",
                source="SLURM, src/sbatch/opt.c; NVIDIA/pyxis, usage",
            )


def _strays(script: Script, line: Line) -> Iterator[Remark]:
    values = [option.text for option in line.options]
    for word in line.strays:
        if word.value not in ("hetjob", "packjob"):
            yield script.remark(
                "stray-word",
                "error",
                word.place,
                f"{word.value!r} is no option, so that sbatch refuses the script",
                fix="begin a comment with #, and write options as --name=value",
                source=sources.SBATCH,
            )
    for option in line.options:
        if option.text.startswith("=") and values:
            yield script.remark(
                "stray-word",
                "error",
                option.place,
                f"the value of {option.given} is {option.text!r}: a blank or a short option in"
                " front of = makes it part of the value",
                fix="write --name=value, or -N value",
                source=sources.SBATCH,
            )


def _unknown(script: Script, line: Line) -> Iterator[Remark]:
    for option in line.options:
        name = option.name
        if name in SBATCH.names() or not option.given.startswith("--") or "container" in name:
            continue
        near = difflib.get_close_matches(name, SBATCH.names(), 1, 0.85)
        begun = sorted(one for one in SBATCH.names() if one.startswith(name))
        meant = begun[:3] or near
        sure = not begun and len(near) == 1
        place = option.place + 2
        yield script.remark(
            "unknown-option",
            "error" if meant else "warning",
            option.place,
            f"sbatch has no option --{name}" + (" (several begin so)" if begun else ""),
            fix=f"did you mean {' or '.join(f'--{one}' for one in meant)}?" if meant else None,
            source=sources.SBATCH,
            edits=(Edit(place, place + len(name), near[0]),) if sure else (),
        )


def _unexpanded(script: Script, line: Line) -> Iterator[Remark]:
    for option in line.options:
        found = VARIABLE.search(option.text)
        if found and option.value:
            yield script.remark(
                "variable-in-directive",
                "error",
                option.value.place,
                f"{found[0]} stays as it is written: no shell reads #SBATCH lines",
                fix=f"write the value, use SLURM's own %j, %x or %u, or give --{option.name} to"
                " sbatch on its command line",
                source=sources.SBATCH,
            )


def no_numbers(reading: Reading) -> Iterator[Remark]:
    """Words where sbatch wants a number."""
    script = reading.script
    for option in (option for line in script.lines for option in line.options):
        form = COUNTS.get(option.name)
        if form is None or not option.value or VARIABLE.search(option.text):
            continue
        if not form.fullmatch(option.text) and not option.text.startswith("="):
            yield script.remark(
                "not-a-number",
                "error",
                option.value.place,
                f"{option.text!r} is no {'time' if option.name == 'time' else 'number'}, so that"
                " sbatch refuses the script",
                fix="write D-HH:MM:SS or minutes" if option.name == "time" else "write a number",
                source=sources.SBATCH,
            )


def missing_directories(reading: Reading) -> Iterator[Remark]:
    """Output files whose directory SLURM does not make: the job fails, and nothing tells why."""
    script = reading.script
    for name in ("output", "error"):
        option = script.options.get(name)
        directory = str(PurePosixPath(option.text).parent) if option else "."
        if option is None or not option.value or directory in (".", "/", "/dev"):
            continue
        if VARIABLE.search(directory):
            continue
        varying = "%" in directory
        if varying or not script.directory_exists(directory):
            why = "differs from job to job" if varying else "does not exist"
            yield script.remark(
                "missing-output-directory",
                "warning",
                option.value.place,
                f"the directory {directory} {why}, and SLURM makes none: the job would fail at once"
                " and leave no log",
                fix=f"mkdir -p {directory} before sbatch; in the script it is too late"
                if not varying
                else "put %j or %A_%a into the file's name, not the directory's",
                source=sources.SBATCH_OUTPUT,
            )


def exports(reading: Reading) -> Iterator[Remark]:
    """`--export`, of sbatch and of srun: a list replaces the environment, and has commas."""
    script = reading.script
    options = [script.options.get("export"), *(s.options.get("export") for s in reading.steps)]
    for option in options:
        if option is None or option.value is None or option.text in ("ALL", "NONE", "NIL"):
            continue
        items = option.text.split(",")
        values = [item for item in items if "=" in item]
        lost = [item for item in items[1:] if not ITEM.fullmatch(item) or _continues(items, item)]
        if lost:
            problem = f"{lost[0]!r} is taken for the name of a variable: commas end a value"
        elif "ALL" not in items:
            problem = "a list without ALL is all that the job gets of the environment"
        else:
            continue
        yield script.remark(
            "export-list",
            "error" if lost else "warning",
            option.value.place,
            problem,
            fix=f"export {values[0].partition('=')[0] if values else 'them'} in the script",
            source=sources.SBATCH_EXPORT,
        )


def _continues(items: list[str], item: str) -> bool:
    """Whether an item without = behind one with = looks like the rest of its value."""
    before = items[items.index(item) - 1]
    return "=" not in item and "=" in before and item != "ALL" and not item.isupper()


def gpus_per_task(reading: Reading) -> Iterator[Remark]:
    """`--gpus-per-task`, which hides a node's other GPUs from a rank."""
    script = reading.script
    options = [script.options.get("gpus-per-task")]
    options += [step.options.get("gpus-per-task") for step in reading.steps]
    for option in options:
        if option is not None and option.text != "0":
            yield script.remark(
                "gpus-per-task",
                "warning",
                option.place,
                "each task sees its own GPUs alone, which breaks peer-to-peer copies between them",
                fix="ask for --gres=gpu:N or --gpus-per-node=N, and let LOCAL_RANK choose",
                source=sources.GPUS_PER_TASK,
            )


def shared_output(reading: Reading) -> Iterator[Remark]:
    """An array whose jobs write one file."""
    script = reading.script
    option = script.options.get("output")
    if "array" not in script.options or option is None or option.value is None:
        return
    if not re.search(r"%\d*[aAjJ]", option.text):
        yield script.remark(
            "shared-output",
            "warning",
            option.value.place,
            "every job of the array writes this file, over what the others wrote",
            fix="put %A_%a into its name",
            source=sources.SBATCH_OUTPUT,
        )


RULES = (
    refused_files,
    ignored_directives,
    misread_directives,
    no_numbers,
    missing_directories,
    exports,
    gpus_per_task,
    shared_output,
)
