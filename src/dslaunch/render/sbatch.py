"""Render a job as a script for sbatch, of the same length for 2 and for 2,000 nodes.

It has no text per node: the nodes read their rank from SLURM's variables. What a node runs is a
quoted text in the script, so the shell of the first node expands no variable of it (accelerate
#1645, #2816). The text contains the environment and arguments of the job, so srun's `--export`,
which splits values at commas, contains only names (SmartSim PR #104).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec import Struct

from dslaunch import __version__ as VERSION
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var, document_end, exports, wrapped
from dslaunch.launch.launchers import starts_python
from dslaunch.notes import Note, note
from dslaunch.render import supervised
from dslaunch.render.batch import Batch, Origin, grouped, job_name, signal_name
from dslaunch.render.containers import ContainerEntry, container_notes, entry
from dslaunch.render.directives import PARTS, directives, step_tasks
from dslaunch.render.node_text import NodeGroup, Notice, TaskContext, node_text
from dslaunch.render.notes import RenderNote
from dslaunch.render.script_functions import (
    DECLARED,
    run_functions,
    task_functions,
    verdict_lines,
)
from dslaunch.render.templates import render
from dslaunch.terminal import one_line

TEMPLATE = "sbatch.sh.j2"
STEP_WAIT = 300
"""Seconds after the end of the first task until SLURM kills the others: as long as torch's agents
wait for each other at the end (torch 2.13, elastic/agent/server/api.py), so that the last
checkpoint is complete. srun's default is 60 seconds."""


def sbatch(batch: Batch, template: Path | None = None) -> str:
    """Return the script. Raises PlanError for jobs that SLURM or the launcher does not support.

    A template of the user gets the same values as our own.
    """
    groups = grouped(batch)
    check(batch, groups)
    if template is None:
        return render(TEMPLATE, **values(batch, groups))
    return render(template.name, directories=(template.parent,), **values(batch, groups))


def values(batch: Batch, groups: tuple[NodeGroup, ...]) -> dict[str, Any]:
    """Return the variables of a template."""
    slurm, job = batch.slurm, batch.launch.job
    how = batch.supervised
    parts = list(_parts(batch, groups)) if how is None else []
    return {
        # in comments: text after a newline would be executed
        "title": one_line(_title(batch, groups)),
        "origin": _origin(batch.origin),
        "version": VERSION,
        "job_name": job_name(batch),
        "directives": list(directives(batch, groups)),
        "requeue": slurm.requeue,
        "signal": signal_name(slurm),
        "job_verdict": verdict_lines(VERSION, nodes=_nodelists(groups)),
        "pass_on": _pass_on(signal_name(slurm)),
        "secrets": [secret.name for secret in job.secrets],
        "setup": slurm.setup,
        "teardown": slurm.teardown,
        "shell": slurm.shell,
        "srun_environment": exports(_environment(slurm.srun)),
        "master_suffix": slurm.master_suffix,
        "master_port": batch.port or "$((15000 + SLURM_JOB_ID % 10000))",
        "container": _entry(batch),
        "functions": "\n" + run_functions(signal=signal_name(slurm) is not None),
        "parts": parts,
        "step": _step(batch, groups, parts) if how is None else supervised.run_command(batch, how),
        "supervised": None if how is None else supervised.values(batch, how),
    }


def notes(batch: Batch) -> Iterator[Note]:
    """Yield notes about settings that the script does not contain."""
    slurm, job = batch.slurm, batch.launch.job
    options = dict(slurm.options)
    if batch.launch.launcher.task_per_rank and "cpus_per_task" in options:
        cpus = options["cpus_per_task"]
        yield note(RenderNote.CPUS_PER_RANK, launcher=job.launcher, cpus=cpus)
    if slurm.exclusive == "false" and "cpus_per_task" not in options:
        yield note(RenderNote.ONE_CPU_PER_TASK)
    asks_for_parts = bool(set(PARTS) & options.keys())
    whole_nodes = slurm.exclusive != "false" and (slurm.exclusive is not None or not asks_for_parts)
    if whole_nodes:
        if not {"mem", "mem_per_cpu", "mem_per_gpu"} & options.keys():
            yield note(RenderNote.DEFAULT_MEMORY)
        fewer = any(len(p.slots) < len(p.node.slots) for p in batch.launch.placements)
        if slurm.gpus != "none" and fewer:
            yield note(RenderNote.UNREQUESTED_GPUS)
    chosen = any(p.slots != tuple(range(len(p.slots))) for p in batch.launch.placements)
    if slurm.gpus != "none" and chosen:
        yield note(RenderNote.GPUS_CHOSEN_BY_SLURM)
    if "time" not in options:
        yield note(RenderNote.DEFAULT_TIME_LIMIT)
    yield from container_notes(slurm.container, batch.launch.decided.workdir)
    if batch.launch.job.secrets:
        names = tuple(secret.name for secret in job.secrets)
        yield note(RenderNote.SECRETS_IN_ENVIRONMENT, names=names)


# ---------------------------------------------------------------- checks


def check(batch: Batch, groups: tuple[NodeGroup, ...]) -> None:
    """Raise PlanError for a job that cannot be rendered."""
    name, launcher = batch.launch.job.launcher, batch.launch.launcher
    if batch.supervised is None and not launcher.has_slurm_command:
        raise PlanError(
            f"launcher `{name}` needs a supervised job", hint="submit with --supervised"
        )
    kinds = " and ".join(f"{g.nodes} x {g.slots}" for g in groups)
    if len(groups) > 1:
        if not launcher.uneven_slots:
            raise PlanError(
                f"launcher `{name}` needs the same number of GPUs on every node, found {kinds}"
            )
        if batch.slurm.nodes is not None:
            raise PlanError(f"`slurm.nodes` is ambiguous for nodes with different GPUs: {kinds}")
        if "array" in dict(batch.slurm.options):
            raise PlanError(
                f"a heterogeneous job ({kinds} GPUs) cannot be an array",
                hint="select nodes with the same number of GPUs",
            )
    for group in groups:
        _check_alike(group)


def _check_alike(group: NodeGroup) -> None:
    """Raise PlanError if nodes of a group differ: SLURM may allocate any of them."""
    first = group.members[0].node
    for placement in group.members[1:]:
        node = placement.node
        for what in ("python", "activate", "env"):
            if getattr(node, what) != getattr(first, what):
                raise PlanError(
                    f"SLURM may allocate any {group.nodes} of these nodes, but {first.host} and "
                    f"{node.host} differ in `{what}`",
                    hint="set it for the whole file, or select equal nodes with --include",
                )


# ---------------------------------------------------------------- the step


class NodeScript(Struct, frozen=True):
    """The text that the nodes of one group run, in a variable of the script."""

    name: str
    who: str
    first: str
    """The command that prints the functions that the text calls."""
    text: str
    end: str
    """The delimiter of the here-document, which is not a line of the text."""


def _parts(batch: Batch, groups: tuple[NodeGroup, ...]) -> Iterator[NodeScript]:
    """Yield the texts of the nodes; lines at the start of all components are a separate part."""
    signal = signal_name(batch.slurm)
    notice = Notice(signal, batch.slurm.requeue or 0) if signal else None
    suffix = batch.slurm.master_suffix
    contexts = [
        TaskContext(
            launch=batch.launch,
            group=group,
            groups=groups,
            suffix=suffix,
            container=batch.slurm.container,
        )
        for group in groups
    ]
    texts = [node_text(context, notice) for context in contexts]
    functions = task_functions(signal=signal is not None, python=starts_python(batch.launch.job))
    task = "rank" if batch.launch.launcher.task_per_rank else "node"
    if len(texts) == 1:
        text = f"{functions}\n{texts[0]}"
        yield _part(f"on_each_{task}", f"Every {task} runs this", DECLARED, text)
        return
    common = _common_beginning(texts)
    text = f"{functions}\n{common}"
    yield _part("on_all", f"Every {task} starts with this", DECLARED, text)
    for number, text in enumerate(texts):
        rest = text.removeprefix(common).lstrip("\n")
        who = f"Every {task} of component {number} continues with this"
        yield _part(f"on_component_{number}", who, "printf '%s\\n' \"$on_all\"", rest)


def _pass_on(signal: str | None) -> str:
    """Return the command that forwards a signal to the tasks, or to the supervised run.

    srun forwards signals, except that TERM and HUP make it kill the step, INT is Ctrl-C and CONT is
    its own (22.05, srun/libsrun/srun_job.c, _srun_signal_mgr).
    """
    if signal in ("TERM", "HUP", "INT", "CONT"):
        return f'scancel --signal={signal} "$SLURM_JOB_ID"'
    return f'kill -{signal} "$child"'


def _part(name: str, who: str, first: str, text: str) -> NodeScript:
    return NodeScript(name=name, who=who, first=first, text=text, end=document_end(text))


def _common_beginning(texts: list[str]) -> str:
    """Return the first lines that all texts have in common."""
    columns = zip(*(text.split("\n") for text in texts), strict=False)
    same = takewhile(lambda column: len(set(column)) == 1, columns)
    return "\n".join(column[0] for column in same)


def _nodelists(groups: tuple[NodeGroup, ...]) -> str:
    """Return the folded node names of the job, as shell text."""
    if len(groups) == 1:
        return "$SLURM_JOB_NODELIST"
    return ",".join(f"$SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(len(groups)))


def _step(batch: Batch, groups: tuple[NodeGroup, ...], parts: list[NodeScript]) -> str:
    """Return the srun command. `--export=ALL` overrides a submission with `--export=NONE`.

    `--cpus-per-task` is repeated, since srun of SLURM 22.05 and 23.02 ignores that of sbatch (it
    reads SRUN_CPUS_PER_TASK), and its variable has another name in a heterogeneous job.
    """
    elastic = batch.launch.world.min_nodes is not None
    fate = ["--no-kill", "--kill-on-bad-exit=0"] if elastic else ["--kill-on-bad-exit=1"]
    common = ["srun", *fate, f"--wait={STEP_WAIT}", "--label", "--export=ALL"]
    cpus = dict(batch.slurm.options).get("cpus_per_task")
    if cpus:
        common.append(f"--cpus-per-task={cpus}")
    # one launcher per node is not an MPI program, so MpiDefault of the site does not apply
    if not batch.launch.launcher.task_per_rank:
        common.append("--mpi=none")
    common += [word for word in batch.slurm.srun if word.startswith("--")]
    components = []
    run = [part for part in parts if part.name != "on_all"]
    for number, part in enumerate(run):
        het = [f"--het-group={number}"] if len(run) > 1 else []
        own = (*step_tasks(batch, groups[number]), *het, *_entry(batch).words)
        words = (*(common if number == 0 else common[1:]), *own)
        shell = ("bash", "-c", (Var(part.name),))
        components.append(wrapped(Command((*words, *shell)), together=len(shell)))
    return " : \\\n  ".join(components)


def _entry(batch: Batch) -> ContainerEntry:
    return entry(batch.slurm.container, tuple(s.name for s in batch.launch.job.secrets))


def _environment(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the variables among the words for srun."""
    for word in words:
        if not word.startswith("--"):
            name, _, value = word.partition("=")
            yield name, value


def _origin(origin: Origin | None) -> Origin | None:
    """Return the origin with texts of one line each."""
    return origin and Origin(file=one_line(origin.file), command=one_line(origin.command))


def _title(batch: Batch, groups: tuple[NodeGroup, ...]) -> str:
    kinds = " + ".join(f"{g.nodes} x {g.slots}" for g in groups)
    one_node = len(groups) == 1 and groups[0].nodes == 1
    count = str(groups[0].slots) if one_node else kinds
    return f"{batch.launch.cluster}: {batch.launch.job.launcher}, {count} ranks"
