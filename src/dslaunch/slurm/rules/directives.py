"""Rules for `#SBATCH` lines: options, values, and lines that SLURM ignores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import also_reports, rule
from dslaunch.plural import counted
from dslaunch.slurm import sources
from dslaunch.slurm.directive_lines import DirectiveLine
from dslaunch.slurm.grammar import FORMER, SBATCH, Option
from dslaunch.slurm.script import Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.states import whole_number
from dslaunch.slurm.training_commands import LintedScript, SrunStep
from dslaunch.texts import closest

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
"""The forms of numbers for sbatch (sbatch(1)); other options have too many forms to check."""
VARIABLE = re.compile(r"\$\{?\w+")
PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]*\}\}|\{%|<[A-Za-z][\w .-]*>|(?<!\$)\{ ?[A-Za-z]\w* ?\}|@[A-Z_]+@"
)
"""What a person or a template engine must replace before the script can be submitted."""
PER_JOB = re.compile(r"%\d*[AajJNnst]")
"""Patterns in a file name whose value differs from job to job (sbatch(1))."""
FREE_TEXT = ("comment", "wrap", "extra")
ITEM = re.compile(r"[A-Za-z_]\w*(=.*)?", re.DOTALL)


@rule("no-shebang", "error", "the first line is not `#!`", source=sources.SBATCH)
@rule("dos-line-breaks", "error", "DOS line ends", source=sources.SBATCH)
def refused_files(linted: LintedScript) -> Iterator[Remark]:
    """Find a first line that is not `#!`, and DOS line ends: sbatch refuses both."""
    script = linted.script
    if not script.text.startswith("#!"):
        yield ScriptMistake.NO_SHEBANG.found(script, 0, edits=(Edit(0, 0, "#!/bin/bash\n"),))
    ends = [match.start() for match in re.finditer("\r\n", script.text)]
    if ends:
        yield ScriptMistake.DOS_LINE_BREAKS.found(
            script,
            ends[0],
            found=counted(len(ends), "line"),
            edits=tuple(Edit(at, at + 1, "") for at in ends),
        )


@rule(
    "late-directive", "error", "an #SBATCH directive after the first command", source=sources.SBATCH
)
@rule(
    "not-a-directive",
    "warning",
    "a line that looks like an #SBATCH directive",
    source=sources.SBATCH,
)
def ignored_directives(linted: LintedScript) -> Iterator[Remark]:
    """Find directives after the first command, and lines that only look like directives."""
    script = linted.script
    for line in script.late:
        yield ScriptMistake.LATE_DIRECTIVE.found(script, line.place)
    for match in NEARLY.finditer(script.text):
        yield ScriptMistake.NOT_A_DIRECTIVE.found(
            script,
            match.start(1),
            word=match[1],
            edits=(Edit(match.start(), match.end(), _corrected(match[1])),),
        )


def _corrected(found: str) -> str:
    return "#SBATCH " if found == "#SBATCH" else "#SBATCH"


@rule(
    "template",
    "warning",
    "a placeholder of a template that is not filled in",
    source=sources.SBATCH,
)
@rule(
    "cut-directive",
    "warning",
    "a directive that ends at a `#`",
    source="SLURM, src/sbatch/opt.c; NVIDIA/pyxis, usage",
)
@rule(
    "variable-in-directive",
    "error",
    "a variable in a directive, which sbatch does not expand",
    source=sources.SBATCH,
)
@rule("unknown-option", "error", "an unknown option of sbatch", source=sources.SBATCH)
@rule("stray-word", "error", "a word in a directive that is not an option", source=sources.SBATCH)
def misread_directives(linted: LintedScript) -> Iterator[Remark]:
    """Find options that sbatch does not know, words that it cannot parse, variables that it does
    not expand."""
    script = linted.script
    templates = _templates(script)
    if templates:
        yield ScriptMistake.TEMPLATE.found(
            script,
            templates[0].place,
            placeholder=placeholder(script, templates[0]),
            directives=counted(len(templates), "directive"),
        )
    for line in _checkable(script):
        yield from _strays(script, line)
        yield from _unknown(script, line)
        yield from _unexpanded(script, line)
        if line.cut >= 0:
            yield ScriptMistake.CUT_DIRECTIVE.found(script, line.cut)


def _templates(script: Script) -> list[DirectiveLine]:
    """Return the directives with placeholders, which cannot be checked."""
    return [line for line in script.lines if placeholder(script, line)]


def _checkable(script: Script) -> list[DirectiveLine]:
    """Return the directives without placeholders."""
    return [line for line in script.lines if not placeholder(script, line)]


def placeholder(script: Script, line: DirectiveLine) -> str:
    """Return the first placeholder of a template in a directive; empty for none."""
    text = script.text[line.place : line.end]
    found = PLACEHOLDER.search(text.partition(" #")[0])
    return found[0] if found else ""


def _strays(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    unknown = {option.end for option in line.options if option.name not in SBATCH.names()}
    for word in line.strays:
        before = script.text[line.place : word.place].rstrip()
        if line.place + len(before) in unknown:  # perhaps the value of a plugin's option
            continue
        if word.value not in ("hetjob", "packjob"):
            yield ScriptMistake.STRAY_WORD.found(script, word.place, word=word.value)
    for option in line.options:
        if option.text.startswith("="):
            yield ScriptMistake.STRAY_EQUALS_SIGN.found(
                script, option.place, option=option.given, value=option.text
            )


def _unknown(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    for option in line.options:
        if option.name not in SBATCH.names() and option.given.startswith("--"):
            yield _unknown_option(script, option)


def _unknown_option(script: Script, option: Option) -> Remark:
    """Return the finding for an option of no release: misspelled, or of an unknown plugin."""
    name = option.name
    own = SBATCH.names() - SBATCH.plugins
    near = FORMER.get(name) or closest(name, own, ratio=0.85)
    begun = sorted(one for one in own if one.startswith(name))
    meant = begun[:3] or ([near] if near else [])
    sure = not begun and bool(near)
    place = option.place + 2
    mistake = ScriptMistake.AMBIGUOUS_OPTION if begun else ScriptMistake.UNKNOWN_OPTION
    if not meant:
        return ScriptMistake.PLUGIN_OPTION.found(
            script, option.place, name=name, source="SLURM, spank(7): options that plugins add"
        )
    return mistake.found(
        script,
        option.place,
        name=name,
        options=" or ".join(f"--{one}" for one in meant),
        edits=(Edit(place, place + len(name), near),) if sure else (),
    )


def _unexpanded(script: Script, line: DirectiveLine) -> Iterator[Remark]:
    for option in line.options:
        found = VARIABLE.search(option.text)
        if found and option.value and option.name not in FREE_TEXT:
            plugin = option.name in SBATCH.plugins or option.name not in SBATCH.names()
            yield ScriptMistake.VARIABLE_IN_DIRECTIVE.found(
                script,
                option.value.place,
                level="warning" if plugin else "error",
                variable=found[0],
                option=option.name,
            )


@also_reports
def no_numbers(linted: LintedScript) -> Iterator[Remark]:
    """Find words where sbatch expects a number."""
    script = linted.script
    for option in (option for line in _checkable(script) for option in line.options):
        form = COUNTS.get(option.name)
        if form is None or not option.value or VARIABLE.search(option.text):
            continue
        if not form.fullmatch(option.text) and not option.text.startswith("="):
            is_time = option.name == "time"
            mistake = (
                ScriptMistake.OPTION_NOT_A_TIME if is_time else ScriptMistake.OPTION_NOT_A_NUMBER
            )
            yield mistake.found(
                script, option.value.place, value=option.text, source=sources.SBATCH
            )


@rule(
    "missing-output-directory",
    "info",
    "an output directory that older SLURM versions do not create",
    source="SLURM, CHANGELOG of 23.02: directories of output files are created",
)
def missing_directories(linted: LintedScript) -> Iterator[Remark]:
    """Find output files whose directory does not exist, and which SLURM 22.05 and older do not
    create: the job fails without any output. File systems of other machines are not checked."""
    script = linted.script
    found: set[str] = set()
    for name in ("output", "error"):
        option = script.options.get(name)
        directory = str(PurePosixPath(option.text).parent) if option else "."
        if option is None or not option.value or directory in (".", "/", "/dev", *found):
            continue
        found.add(directory)
        if VARIABLE.search(directory):
            continue
        varying = PER_JOB.search(directory) is not None
        if not varying and ("%" in directory or _elsewhere(script, directory)):
            continue
        if varying or not script.directory_exists(directory):
            mistake = (
                ScriptMistake.VARYING_OUTPUT_DIRECTORY
                if varying
                else ScriptMistake.MISSING_OUTPUT_DIRECTORY
            )
            yield mistake.found(script, option.value.place, directory=directory)


def _elsewhere(script: Script, directory: str) -> bool:
    """Return whether a directory is on a file system that this machine does not have."""
    parts = PurePosixPath(directory).parts
    return parts[0] == "/" and not script.directory_exists("".join(parts[:2]))


@rule(
    "export-list",
    "error",
    "`--export` with a list replaces the environment",
    source="SLURM, sbatch(1), --export; SmartSim pull request 104",
)
def exports(linted: LintedScript) -> Iterator[Remark]:
    """Find lists in `--export` of sbatch and srun that replace the environment or lose values."""
    script = linted.script
    options = [script.options.get("export"), *(s.options.get("export") for s in linted.steps)]
    for option in options:
        if option is None or option.value is None or option.text in ("ALL", "NONE", "NIL"):
            continue
        items = option.text.split(",")
        if PLACEHOLDER.search(option.text):
            continue
        values = [item for item in items if "=" in item]
        lost = [item for item in items[1:] if _lost(items, item)]
        if lost:
            mistake = ScriptMistake.EXPORT_LIST_CUT
        elif "ALL" not in items and not any(item.startswith("$") for item in items):
            mistake = ScriptMistake.EXPORT_LIST
        else:
            continue
        yield mistake.found(
            script,
            option.value.place,
            variable=(values or items)[0].partition("=")[0],
            value=lost[0] if lost else "",
        )


def _lost(items: list[str], item: str) -> bool:
    """Return whether SLURM parses a part of a value as a name."""
    named = ITEM.fullmatch(item) or item.startswith("$") or not item
    return not named or _continues(items, item)


def _continues(items: list[str], item: str) -> bool:
    """Return whether an item without = looks like the rest of the value before it."""
    before = items[items.index(item) - 1]
    if "$" in before + item:  # the variable may contain a list of assignments
        return False
    return "=" not in item and "=" in before and item != "ALL" and not item.isupper()


@rule(
    "gpus-per-task",
    "warning",
    "`--gpus-per-task` hides the other GPUs of a node from a rank",
    source="NVIDIA/pyxis issue 73; Lightning issue 16828",
)
def gpus_per_task(linted: LintedScript) -> Iterator[Remark]:
    """Find `--gpus-per-task`, which hides the other GPUs of a node from a rank."""
    script = linted.script
    job = script.options.get("gpus-per-task")
    unbound = _sees_all_gpus(script.options)
    options = [job] if job and not unbound and tasks_per_node(script, None) != 1 else []
    for step in linted.steps:
        own = step.options.get("gpus-per-task")
        sees_all = _sees_all_gpus(step.options)
        if own and not sees_all and tasks_per_node(script, step) != 1:
            options.append(own)
        if job in options and sees_all:
            options.remove(job)
    for option in options:
        if option is not None and option.text != "0":
            yield ScriptMistake.GPUS_PER_TASK.found(script, option.place)


def _sees_all_gpus(options: Mapping[str, Option]) -> bool:
    """Return whether each task sees the GPUs of all tasks on its node.

    `--gres-flags=allow-task-sharing` is of SLURM 23.11 (srun's manual; SchedMD bug 17875).
    """
    bind = options["gpu-bind"].text if "gpu-bind" in options else ""
    flags = options["gres-flags"].text if "gres-flags" in options else ""
    return bind == "none" or "allow-task-sharing" in flags.split(",")


def tasks_per_node(script: Script, step: SrunStep | None) -> int | None:
    """Return the number of tasks per node of a step or of the job; None: unknown."""
    own = step.options if step else {}
    for asked in (own, script.options):
        if asked is script.options and script.heterogeneous:
            return None
        texts = {name: option.text for name, option in asked.items()}
        each, tasks = texts.get("ntasks-per-node", ""), texts.get("ntasks", "")
        per_node, total = whole_number(each), whole_number(tasks)
        nodes = whole_number(texts.get("nodes", script.option_text("nodes")))
        if tasks == "1":
            return 1
        if per_node is not None and not tasks:
            return per_node
        if total is not None and nodes:
            return -(-total // nodes)
        if tasks and tasks.strip('"{}$') in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            return 1
        if per_node is not None:
            return per_node
        if tasks or each:
            return None
    return 1


@rule(
    "shared-output",
    "warning",
    "array tasks that write the same output file",
    source=sources.SBATCH_OUTPUT,
)
def shared_output(linted: LintedScript) -> Iterator[Remark]:
    """Find arrays whose tasks write the same file."""
    script = linted.script
    option = script.options.get("output")
    if "array" not in script.options or option is None or option.value is None:
        return
    if not re.search(r"%\d*[aAjJ]", option.text):
        yield ScriptMistake.SHARED_OUTPUT.found(script, option.value.place)
