"""What the `#SBATCH` lines say, and what SLURM makes of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from dslaunch.lint import Edit, Remark
from dslaunch.slurm import sources
from dslaunch.slurm.grammar import FORMER, SBATCH, Option
from dslaunch.slurm.script import DirectiveLine, Script
from dslaunch.slurm.training_commands import Reading, SrunStep

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
PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]*\}\}|\{%|<[A-Za-z][\w .-]*>|(?<!\$)\{ ?[A-Za-z]\w* ?\}|@[A-Z_]+@"
)
"""What a person or a template engine must replace before the script is one."""
PER_JOB = re.compile(r"%\d*[AajJNnst]")
"""What SLURM replaces in a file's name and differs from job to job (sbatch(1))."""
FREE_TEXT = ("comment", "wrap", "extra")
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
    templates = _templates(script)
    if templates:
        found = placeholder(script, templates[0])
        count = len(templates)
        yield script.remark(
            "template",
            "warning",
            templates[0].place,
            f"{found!r} is a placeholder, in {count} {'directive' if count == 1 else 'directives'}:"
            " sbatch does not replace it",
            fix="replace it before the script is submitted",
            source=sources.SBATCH,
        )
    for line in (line for line in script.lines if line not in templates):
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


def _templates(script: Script) -> list[DirectiveLine]:
    """The directives with placeholders: what is wrong with them now says nothing."""
    return [line for line in script.lines if placeholder(script, line)]


def placeholder(script: Script, line: DirectiveLine) -> str:
    """The first placeholder of a template in a directive; empty for none."""
    said = script.text[line.place : line.end]
    found = PLACEHOLDER.search(said.partition(" #")[0])
    return found[0] if found else ""


def _strays(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    values = [option.text for option in line.options]
    unknown = {option.end for option in line.options if option.name not in SBATCH.names()}
    for word in line.strays:
        before = script.text[line.place : word.place].rstrip()
        if line.place + len(before) in unknown:  # perhaps the value of a plugin's option
            continue
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


def _unknown(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    for option in line.options:
        if option.name not in SBATCH.names() and option.given.startswith("--"):
            yield _unknown_option(script, option)


def _unknown_option(script: Script, option: Option) -> Remark:
    """An option that no release has: a misspelt one, or one of a plugin that nobody here knows."""
    name = option.name
    own = SBATCH.names() - SBATCH.plugins
    near = difflib.get_close_matches(name, own, 1, 0.85)
    near = [FORMER[name]] if name in FORMER else near
    begun = sorted(one for one in own if one.startswith(name))
    meant = begun[:3] or near
    sure = not begun and len(near) == 1
    place = option.place + 2
    if not meant:
        return script.remark(
            "unknown-option",
            "info",
            option.place,
            f"sbatch itself has no option --{name}: it is refused where no plugin adds it",
            fix=f"try it on the cluster: sbatch --test-only; sbatch --help | grep -e --{name}",
            source="SLURM, spank(7): options that plugins add",
        )
    return script.remark(
        "unknown-option",
        "error",
        option.place,
        f"sbatch has no option --{name}" + (" (several begin so)" if begun else ""),
        fix=f"did you mean {' or '.join(f'--{one}' for one in meant)}?",
        source=sources.SBATCH,
        edits=(Edit(place, place + len(name), near[0]),) if sure else (),
    )


def _unexpanded(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    for option in line.options:
        found = VARIABLE.search(option.text)
        if found and option.value and option.name not in FREE_TEXT:
            plugin = option.name in SBATCH.plugins or option.name not in SBATCH.names()
            yield script.remark(
                "variable-in-directive",
                "warning" if plugin else "error",
                option.value.place,
                f"{found[0]} stays as it is written: no shell reads #SBATCH lines",
                fix=f"write the value, use SLURM's own %j, %x or %u, or give --{option.name} to"
                " sbatch on its command line",
                source=sources.SBATCH,
            )


def no_numbers(reading: Reading) -> Iterator[Remark]:
    """Words where sbatch wants a number."""
    script = reading.script
    templates = _templates(script)
    lines = [line for line in script.lines if line not in templates]
    for option in (option for line in lines for option in line.options):
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
    """Output files whose directory SLURM 22.05 and older do not make: the job fails, and nothing
    tells why. Directories of another machine's file systems are not judged."""
    script = reading.script
    told: set[str] = set()
    for name in ("output", "error"):
        option = script.options.get(name)
        directory = str(PurePosixPath(option.text).parent) if option else "."
        if option is None or not option.value or directory in (".", "/", "/dev", *told):
            continue
        told.add(directory)
        if VARIABLE.search(directory):
            continue
        varying = PER_JOB.search(directory) is not None
        if not varying and ("%" in directory or _elsewhere(script, directory)):
            continue
        if varying or not script.directory_exists(directory):
            why = "differs from job to job" if varying else "is not here"
            yield script.remark(
                "missing-output-directory",
                "info",
                option.value.place,
                f"the directory {directory} {why}: where it is missing, SLURM before 23.02 fails"
                " the job at once and leaves no log",
                fix=f"mkdir -p {directory} before sbatch; in the script it is too late"
                if not varying
                else "put %j or %A_%a into the file's name, not the directory's",
                source="SLURM, CHANGELOG of 23.02: directories of output files are created",
            )


def _elsewhere(script: Script, directory: str) -> bool:
    """Whether a directory is on a file system that this machine does not have."""
    parts = PurePosixPath(directory).parts
    return parts[0] == "/" and not script.directory_exists("".join(parts[:2]))


def exports(reading: Reading) -> Iterator[Remark]:
    """`--export`, of sbatch and of srun: a list replaces the environment, and has commas."""
    script = reading.script
    options = [script.options.get("export"), *(s.options.get("export") for s in reading.steps)]
    for option in options:
        if option is None or option.value is None or option.text in ("ALL", "NONE", "NIL"):
            continue
        items = option.text.split(",")
        if PLACEHOLDER.search(option.text):
            continue
        values = [item for item in items if "=" in item]
        lost = [item for item in items[1:] if _lost(items, item)]
        if lost:
            problem = f"{lost[0]!r} is taken for the name of a variable: commas end a value"
        elif "ALL" not in items and not any(item.startswith("$") for item in items):
            problem = "a list without ALL is all that the job gets of the environment"
        else:
            continue
        yield script.remark(
            "export-list",
            "error" if lost else "warning",
            option.value.place,
            problem,
            fix=f"export {values[0].partition('=')[0] if values else 'them'} in the script",
            source="SLURM, sbatch(1), --export; SmartSim pull request 104",
        )


def _lost(items: list[str], item: str) -> bool:
    """Whether SLURM takes for a name what is none."""
    named = ITEM.fullmatch(item) or item.startswith("$") or not item
    return not named or _continues(items, item)


def _continues(items: list[str], item: str) -> bool:
    """Whether an item without = behind one with = looks like the rest of its value."""
    before = items[items.index(item) - 1]
    if "$" in before + item:  # what the variable holds may well be a list of assignments
        return False
    return "=" not in item and "=" in before and item != "ALL" and not item.isupper()


def gpus_per_task(reading: Reading) -> Iterator[Remark]:
    """`--gpus-per-task`, which hides a node's other GPUs from a rank."""
    script = reading.script
    job = script.options.get("gpus-per-task")
    unbound = _sees_all_gpus(script.options)
    options = [job] if job and not unbound and tasks_per_node(script, None) != 1 else []
    for step in reading.steps:
        own = step.options.get("gpus-per-task")
        sees_all = _sees_all_gpus(step.options)
        if own and not sees_all and tasks_per_node(script, step) != 1:
            options.append(own)
        if job in options and sees_all:
            options.remove(job)
    for option in options:
        if option is not None and option.text != "0":
            yield script.remark(
                "gpus-per-task",
                "warning",
                option.place,
                "each task sees its own GPUs alone, which breaks peer-to-peer copies between them",
                fix="ask for --gres=gpu:N or --gpus-per-node=N, and let LOCAL_RANK choose",
                source="NVIDIA/pyxis issue 73; Lightning issue 16828",
            )


def _sees_all_gpus(options: Mapping[str, Option]) -> bool:
    """Whether each task sees the GPUs of all tasks on its node.

    `--gres-flags=allow-task-sharing` is of SLURM 23.11 (srun's manual; SchedMD bug 17875).
    """
    bind = options["gpu-bind"].text if "gpu-bind" in options else ""
    flags = options["gres-flags"].text if "gres-flags" in options else ""
    return bind == "none" or "allow-task-sharing" in flags.split(",")


def tasks_per_node(script: Script, step: SrunStep | None) -> int | None:
    """How many tasks a node gets, of a step or of the job; None where it is not certain."""
    own = step.options if step else {}
    for asked in (own, script.options):
        if asked is script.options and script.heterogeneous:
            return None
        texts = {name: option.text for name, option in asked.items()}
        each, tasks = texts.get("ntasks-per-node", ""), texts.get("ntasks", "")
        nodes = texts.get("nodes", script.asked("nodes"))
        if tasks == "1":
            return 1
        if each.isdecimal() and not tasks:
            return int(each)
        if tasks.isdecimal() and nodes.isdecimal() and int(nodes):
            return -(-int(tasks) // int(nodes))
        if tasks and tasks.strip('"{}$') in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            return 1
        if each.isdecimal():
            return int(each)
        if tasks or each:
            return None
    return 1


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


NAMES = (
    "cut-directive",
    "dos-line-breaks",
    "export-list",
    "gpus-per-task",
    "late-directive",
    "missing-output-directory",
    "no-shebang",
    "not-a-directive",
    "not-a-number",
    "shared-output",
    "stray-word",
    "template",
    "unknown-option",
    "variable-in-directive",
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
