"""Rules for numbers that contradict each other, and for SLURM variables that are unset or not
numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.plural import counted
from dslaunch.slurm import sources
from dslaunch.slurm.grammar import Option
from dslaunch.slurm.rules.directives import tasks_per_node
from dslaunch.slurm.script import Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.shell_words import Expansion, Literal, Word
from dslaunch.slurm.states import whole_number
from dslaunch.slurm.training_commands import LintedScript, TrainingCommand

NODE_OPTIONS = ("nnodes", "nnode", "num_machines", "num_nodes")
SOME_NODES = {"nodelist", "nodefile", "exclude", "relative", "het-group", "jobid"}
"""Options of srun that may give a step fewer nodes than the job has."""
OWN_GPUS = {"gpus", "gres", "gpus-per-node", "gpus-per-task", "het-group", "jobid"}
"""Options of srun that give a step other GPUs than the job has."""
GPU_OPTIONS = ("gres", "tres-per-task", "gpus-per-task")
GPU_KIND = re.compile(r"(?i)gpu|[ahblv]\d{2,3}|mi\d{3}|dgx|cuda|boost|ml|accel")
"""Names of partitions, features and accounts that may include GPUs."""
GPU_WORDS = re.compile(r"NCCL|CUDA|cuda|GPU|nvidia|rocm|deepspeed")
CPU_WORDS = re.compile(r"gloo|use_cpu|--cpu\b|\bccl\b|mpi4py")
RANK_OPTIONS = ("nproc_per_node", "num_gpus")
GPUS = re.compile(r"(?:gpu:)?(?:([A-Za-z]\w*):)?([0-9]{1,9})")
SET_BY = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_GPUS": ("gpus",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_ARRAY_TASK_ID": ("array",),
    "SLURM_NTASKS": ("ntasks", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-gpu"),
}
"""Variable -> the options of which one must be used for SLURM to set it."""
RUN_LENGTH = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
TESTS = ("[", "[[", "test", "echo", "printf")


@rule(
    "nodes-mismatch",
    "error",
    "the launcher and SLURM have different numbers of nodes",
    source="stas00/ml-engineering, orchestration/slurm, mismatching nodes number",
)
def nodes_twice(linted: LintedScript) -> Iterator[Remark]:
    """Find a launcher with another number of nodes than SLURM's."""
    script = linted.script
    for launch in linted.launches:
        option = launch.option(*NODE_OPTIONS)
        value = _number_of(script, option)
        source = _nodes_asked(script, launch)
        nodes = whole_number(source.text) if source else None
        if nodes and option and option.value and value is not None and value != nodes:
            line = script.where(source.place)[0] if source else 0
            yield ScriptMistake.NODES_MISMATCH.found(
                script,
                option.value.place,
                option=option.given,
                value=value,
                line=line,
                nodes=counted(nodes, "node"),
                edits=_replaced(script, option.value, "$SLURM_NNODES"),
            )


def _number_of(script: Script, option: Option | None) -> int | None:
    """Return the number that an option of a launcher has; None: not set, or not a constant."""
    text = script.constant(option.value) if option else None
    return whole_number(text or "")


def _nodes_asked(script: Script, launch: TrainingCommand) -> Option | None:
    """Return the option that sets the number of nodes of a launch: of its step, or of the job. A
    step on one node may be one of several steps of the training."""
    step = launch.step.options if launch.step else {}
    own = step.get("nodes")
    if own is not None:
        number = script.constant(own.value)
        many = (whole_number(number or "") or 0) > 1
        return replace(own, value=_literal(number, own)) if many and number else None
    if SOME_NODES & step.keys() or script.number("nodes") is None:
        return None
    return script.options["nodes"]


def _literal(text: str, option: Option) -> Word:
    places = tuple(option.place for _ in text)
    return Word((Literal(text, places, ""),), option.place, option.end)


def _replaced(script: Script, word: Word, text: str) -> tuple[Edit, ...]:
    """Return an edit that replaces a word, if the script contains it literally."""
    start, end = word.place, word.place + len(word.value)
    return (Edit(start, end, text),) if script.text[start:end] == word.value else ()


def gpus_per_node(script: Script) -> tuple[int, Option] | None:
    """Return how many GPUs per node the directives request, and which one does."""
    for name in ("gpus-per-node", "gres"):
        match = GPUS.fullmatch(script.option_text(name))
        if match and not script.heterogeneous:
            return int(match[2]), script.options[name]
    each, tasks = script.number("gpus-per-task"), tasks_per_node(script, None)
    has_tasks = {"nodes", "ntasks", "ntasks-per-node"} & script.options.keys()
    if each and tasks and has_tasks:
        return each * tasks, script.options["gpus-per-task"]
    total, nodes = GPUS.fullmatch(script.option_text("gpus")), script.number("nodes")
    if total and nodes and int(total[2]) % nodes == 0:
        return int(total[2]) // nodes, script.options["gpus"]
    return None


@rule(
    "gpus-mismatch",
    "error",
    "the launcher and SLURM have different numbers of GPUs per node",
    source=sources.GRES,
)
def gpus_twice(linted: LintedScript) -> Iterator[Remark]:
    """Find a launcher that starts another number of ranks than a node has GPUs."""
    script = linted.script
    found = gpus_per_node(script)
    for launch in linted.launches:
        option = launch.option(*RANK_OPTIONS)
        ranks = _number_of(script, option)
        if not found or ranks is None or option is None or option.value is None:
            continue
        if launch.step and OWN_GPUS & launch.step.options.keys():
            continue
        if _shares_node(linted, launch) and ranks < found[0]:
            continue
        gpus, asked = found
        if ranks != gpus:
            line = script.where(asked.place)[0]
            is_total = asked.name == "gpus"
            mistake = (
                ScriptMistake.GPUS_MISMATCH_IN_TOTAL if is_total else ScriptMistake.GPUS_MISMATCH
            )
            yield mistake.found(
                script,
                option.value.place,
                level="error" if ranks > gpus else "warning",
                option=option.given,
                value=ranks,
                line=line,
                gpus=counted(gpus, "GPU"),
                edits=_replaced(script, option.value, "$SLURM_GPUS_ON_NODE"),
            )


def _shares_node(linted: LintedScript, launch: TrainingCommand) -> bool:
    """Return whether other launches may use the remaining GPUs of a node: several launches in the
    background, or one that selects its devices."""
    chosen = any(one.name == "CUDA_VISIBLE_DEVICES" for one in launch.command.all_assignments())
    behind = sum(one.command.operator == "&" for one in linted.launches)
    return chosen or (launch.command.operator == "&" and behind > 1)


@rule(
    "no-gpu-request",
    "warning",
    "a GPU training in a job that requests no GPUs",
    source=sources.GRES,
)
def no_gpus(linted: LintedScript) -> Iterator[Remark]:
    """Find a training with several ranks per node in a job that requests no GPUs."""
    script = linted.script
    asked = {name for name in script.options if name.startswith("gpu") or name in GPU_OPTIONS}
    kind = " ".join(
        script.option_text(name) for name in ("partition", "constraint", "account", "qos")
    )
    free = "exclusive" in script.options or GPU_KIND.search(kind)
    if not script.lines or "nodes" not in script.options or asked or free or script.heterogeneous:
        return
    for launch in linted.launches:
        ranks = launch.option(*RANK_OPTIONS)
        own = launch.step.options.keys() if launch.step else set()
        several = ranks is not None and script.constant(ranks.value) not in ("1", "0", None)
        if several and ranks and not own & OWN_GPUS and _for_gpus(script, launch):
            yield ScriptMistake.NO_GPU_REQUEST.found(
                script, ranks.place, option=ranks.given, value=script.constant(ranks.value) or ""
            )
            return


def _for_gpus(script: Script, launch: TrainingCommand) -> bool:
    """Return whether a script uses GPUs, and does not train on CPUs."""
    cpu = CPU_WORDS.search(script.text) or launch.option("cpu")
    return launch.program == "deepspeed" or bool(GPU_WORDS.search(script.text) and not cpu)


@rule("two-gpu-requests", "error", "two requests for GPUs that differ", source=sources.GRES)
def two_requests(linted: LintedScript) -> Iterator[Remark]:
    """Find GPUs requested by two options that differ."""
    script = linted.script
    one = GPUS.fullmatch(script.option_text("gres"))
    other = GPUS.fullmatch(script.option_text("gpus-per-node"))
    if one and other and one[2] != other[2] and not script.heterogeneous:
        yield ScriptMistake.TWO_GPU_REQUESTS.found(
            script, script.options["gpus-per-node"].place, gres=one[2], gpus_per_node=other[2]
        )


@rule(
    "launcher-per-task",
    "error",
    "srun starts a launcher more than once per node",
    source="bigscience, train/tr11-176B-ml; huggingface/transformers, DeepSpeed guide",
)
def launchers_per_node(linted: LintedScript) -> Iterator[Remark]:
    """Find a launcher that srun starts more than once per node."""
    script = linted.script
    for launch in linted.launches:
        too_many = _too_many(script, launch)
        if launch.launcher and launch.step and too_many is not None:
            count, nodes = too_many
            mistake = (
                ScriptMistake.LAUNCHERS_PER_NODE
                if nodes is None
                else ScriptMistake.LAUNCHERS_ON_NODES
            )
            end = launch.step.end
            words = ' --ntasks="$SLURM_NNODES" --ntasks-per-node=1'
            own = {"ntasks", "ntasks-per-node"} & launch.step.options.keys()
            yield mistake.found(
                script,
                launch.step.place,
                options=words,
                count=count,
                program=launch.program,
                nodes=counted(nodes or 0, "node"),
                edits=() if own else (Edit(end, end, words),),
            )


def _too_many(script: Script, launch: TrainingCommand) -> tuple[int, int | None] | None:
    """Return how many launchers srun starts on how many nodes, if these are more; without a number
    of nodes: on each of them."""
    step = launch.step.options if launch.step else {}
    per_node = step["ntasks-per-node"].text if "ntasks-per-node" in step else None
    if per_node is None and "ntasks" not in step:
        per_node = script.option_text("ntasks-per-node") or None
    on_each = whole_number(per_node or "") or 0
    if on_each > 1:
        return on_each, None
    tasks = step["ntasks"].text if "ntasks" in step else script.option_text("ntasks")
    own = step["nodes"].text if "nodes" in step else ""
    nodes = whole_number(own) if own else script.number("nodes")
    count = whole_number(tasks) or 0
    if nodes is None or per_node or count <= nodes:
        return None
    return count, nodes


@rule(
    "unset-variable",
    "warning",
    "a SLURM variable that is not set in this job",
    source=sources.SBATCH_VARIABLES,
)
def unset_variables(linted: LintedScript) -> Iterator[Remark]:
    """Find variables that SLURM sets only with an option that the job does not use."""
    script = linted.script
    if not script.lines or script.heterogeneous:
        return
    found: set[str] = set()
    for expansion in _uses(linted):
        for name in expansion.names:
            wanted = SET_BY.get(name, ())
            given = any(option in script.options for option in wanted)
            mine = name in script.assigned or re.search(rf"\$\{{{name}:?[-+=?]", script.text)
            inside = name == "SLURM_NTASKS" and expansion.shell > 0
            if wanted and not given and not mine and not inside and name not in found:
                found.add(name)
                yield _unset(script, expansion, name, wanted[0])


def _unset(script: Script, expansion: Expansion, name: str, option: str) -> Remark:
    """Return the finding for a variable that is set only with an option."""
    gpus = name == "SLURM_GPUS_PER_NODE" and bool(script.option_text("gres"))
    at = expansion.place + expansion.raw.index(name)
    certain = gpus and script.text[at : at + len(name)] == name
    mistake = ScriptMistake.UNSET_GPUS_PER_NODE if gpus else ScriptMistake.UNSET_VARIABLE
    return mistake.found(
        script,
        expansion.place,
        level="info" if name == "SLURM_ARRAY_TASK_ID" else "warning",
        variable=name,
        option=option,
        edits=(Edit(at, at + len(name), "SLURM_GPUS_ON_NODE"),) if certain else (),
    )


@rule("not-a-number", "error", "text where a number is expected", source=sources.GRES)
def not_numbers(linted: LintedScript) -> Iterator[Remark]:
    """Find variables that are used as a number but are not one."""
    script = linted.script
    typed = re.match(r"[A-Za-z]", script.option_text("gpus-per-node"))
    for expansion in _uses(linted):
        for name in expansion.names:
            at = expansion.place + expansion.raw.index(name)
            if name == "SLURM_GPUS_PER_NODE" and typed and "%" not in expansion.raw:
                plain = script.text[at : at + len(name)] == name and not expansion.operation
                yield ScriptMistake.TYPED_GPUS_PER_NODE.found(
                    script,
                    expansion.place,
                    variable=name,
                    value=script.option_text("gpus-per-node"),
                    edits=(Edit(at, at + len(name), "SLURM_GPUS_ON_NODE"),) if plain else (),
                )
            if name in RUN_LENGTH and script.several_nodes and not expansion.operation:
                yield ScriptMistake.NUMBER_PER_NODE.found(
                    script, expansion.place, variable=name, source=sources.SBATCH_VARIABLES
                )


def _uses(linted: LintedScript) -> Iterator[Expansion]:
    """Yield uses of variables by value; not tests and output."""
    for command in linted.texts():
        if command.name in TESTS:
            continue
        for expansion in command.expansions():
            if expansion.commands is None:
                yield expansion
