"""A job for SLURM: one script for sbatch, as long for 2,000 nodes as for 2.

Nothing in it is written per node: the nodes find their place by SLURM's own variables. What a
node runs is a quoted text in the script, so that no variable is filled in too early by the shell
of the first node (accelerate #1645, #2816), and holds the job's environment and arguments, so
that srun's `--export`, which splits values at commas, carries names alone (SmartSim PR #104).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from dslaunch import __version__ as VERSION
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var, exports, wrapped
from dslaunch.launch.launchers import starts_python
from dslaunch.render import supervised
from dslaunch.render.batch import Batch, Origin, grouped, job_name, signal_name
from dslaunch.render.containers import ContainerEntry, container_notes, entry
from dslaunch.render.directives import PARTS, directives, step_tasks
from dslaunch.render.node_text import NodeGroup, Notice, TaskContext, node_text
from dslaunch.render.script_functions import (
    DECLARED,
    run_functions,
    task_functions,
    verdict_lines,
)
from dslaunch.render.templates import render
from dslaunch.terminal import one_line

TEMPLATE = "sbatch.sh.j2"
LAST_ONES_WAIT = 300
"""Seconds that nodes may go on after the first is done, before SLURM ends them: it is as long as
torch's agents wait for each other at the end (torch 2.13, elastic/agent/server/api.py), so that a
last checkpoint is not cut off, as the usual 60 seconds would."""


def sbatch(batch: Batch, template: Path | None = None) -> str:
    """The script. Raises PlanError for what SLURM, or this launcher on SLURM, cannot do.

    A template of the user's is filled with the same values as our own.
    """
    groups = grouped(batch)
    check(batch, groups)
    if template is None:
        return render(TEMPLATE, **values(batch, groups))
    return render(template.name, directories=(template.parent,), **values(batch, groups))


def values(batch: Batch, groups: tuple[NodeGroup, ...]) -> dict[str, Any]:
    """What a template can use."""
    slurm, job = batch.slurm, batch.launch.job
    how = batch.supervised
    parts = list(_parts(batch, groups)) if how is None else []
    return {
        # comments: what follows a line feed would be run
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


def notes(batch: Batch) -> Iterator[str]:
    """What a person should know and the script does not say."""
    slurm, job = batch.slurm, batch.launch.job
    options = dict(slurm.options)
    if batch.launch.launcher.task_per_rank and "cpus_per_task" in options:
        cpus = "1 CPU" if options["cpus_per_task"] == "1" else f"{options['cpus_per_task']} CPUs"
        yield f"with `{job.launcher}` every rank is a task: each gets {cpus}"
    if slurm.exclusive == "false" and "cpus_per_task" not in options:
        yield "SLURM gives a task one CPU where `slurm.cpus_per_task` does not say more"
    asks_for_parts = bool(set(PARTS) & options.keys())
    whole_nodes = slurm.exclusive != "false" and (slurm.exclusive is not None or not asks_for_parts)
    if whole_nodes:
        if not {"mem", "mem_per_cpu", "mem_per_gpu"} & options.keys():
            yield "whole nodes without `slurm.mem`: memory is the site's default; `mem: 0` is all"
        fewer = any(len(p.slots) < len(p.node.slots) for p in batch.launch.placements)
        if slurm.gpus != "none" and fewer:
            yield "whole nodes are reserved, and not all of their GPUs are asked for"
    chosen = any(p.slots != tuple(range(len(p.slots))) for p in batch.launch.placements)
    if slurm.gpus != "none" and chosen:
        yield "SLURM chooses which GPUs of a node the job gets; only their number is asked for"
    if "time" not in options:
        yield "without `slurm.time` the partition's default limit holds"
    yield from container_notes(slurm.container, batch.launch.decided.workdir)
    if batch.launch.job.secrets:
        names = ", ".join(secret.name for secret in job.secrets)
        yield f"secrets are handed on by sbatch's environment, not by the script: {names}"


# ---------------------------------------------------------------- what cannot be


def check(batch: Batch, groups: tuple[NodeGroup, ...]) -> None:
    """Raise PlanError for what cannot be."""
    name, launcher = batch.launch.job.launcher, batch.launch.launcher
    if batch.supervised is None and not launcher.has_slurm_command:
        raise PlanError(
            f"launcher `{name}` cannot be started by SLURM alone", hint="submit with --supervised"
        )
    kinds = " and ".join(f"{g.nodes} x {g.slots}" for g in groups)
    if len(groups) > 1:
        if not launcher.uneven_slots:
            raise PlanError(f"launcher `{name}` needs as many GPUs on every node, not {kinds}")
        if batch.slurm.nodes is not None:
            raise PlanError(f"`slurm.nodes` does not say of which kind: there are {kinds}")
        if "array" in dict(batch.slurm.options):
            raise PlanError(
                f"a heterogeneous job ({kinds} GPUs) cannot be an array",
                hint="choose nodes of one kind",
            )
    for group in groups:
        _check_alike(group)


def _check_alike(group: NodeGroup) -> None:
    """SLURM gives any nodes of a kind, so that what one node alone needs cannot be met."""
    first = group.members[0].node
    for placement in group.members[1:]:
        node = placement.node
        for what in ("python", "activate", "env"):
            if getattr(node, what) != getattr(first, what):
                raise PlanError(
                    f"SLURM gives any {group.nodes} of these nodes, but {first.host} and "
                    f"{node.host} differ in `{what}`",
                    hint="write it for the whole file, or choose one kind with --include",
                )


# ---------------------------------------------------------------- the step


@dataclass(frozen=True, slots=True)
class NodeScript:
    """What the nodes of one group run, as a variable of the script."""

    name: str
    who: str
    first: str
    """The command that prints what stands before the text: the functions that it calls."""
    text: str
    end: str
    """The line that ends it, which is no line of the text."""


def _parts(batch: Batch, groups: tuple[NodeGroup, ...]) -> Iterator[NodeScript]:
    """What the nodes run; lines with which all components begin stand in a part of their own."""
    signal = signal_name(batch.slurm)
    notice = Notice(signal, batch.slurm.requeue or 0) if signal else None
    suffix = batch.slurm.master_suffix
    seats = [TaskContext(batch.launch, g, groups, suffix, batch.slurm.container) for g in groups]
    texts = [node_text(seat, notice) for seat in seats]
    functions = task_functions(signal=signal is not None, python=starts_python(batch.launch.job))
    task = "rank" if batch.launch.launcher.task_per_rank else "node"
    if len(texts) == 1:
        text = f"{functions}\n{texts[0]}"
        yield _part(f"on_each_{task}", f"Every {task} runs this", DECLARED, text)
        return
    common = _common_beginning(texts)
    text = f"{functions}\n{common}"
    yield _part("on_all", f"Every {task} begins so", DECLARED, text)
    for number, text in enumerate(texts):
        rest = text.removeprefix(common).lstrip("\n")
        who = f"Every {task} of component {number} goes on so"
        yield _part(f"on_component_{number}", who, "printf '%s\\n' \"$on_all\"", rest)


def _pass_on(signal: str | None) -> str:
    """How the batch script hands a signal on to the tasks, or to the run that it supervises.

    srun passes signals on, but TERM and HUP make it kill the step, INT it takes for Ctrl-C and CONT
    for its own (22.05, srun/libsrun/srun_job.c, _srun_signal_mgr).
    """
    if signal in ("TERM", "HUP", "INT", "CONT"):
        return f'scancel --signal={signal} "$SLURM_JOB_ID"'
    return f'kill -{signal} "$child"'


def _part(name: str, who: str, first: str, text: str) -> NodeScript:
    end = "END"
    while end in text.splitlines():
        end += "_"
    return NodeScript(name, who, first, text, end)


def _common_beginning(texts: list[str]) -> str:
    """The lines with which all texts begin."""
    columns = zip(*(text.split("\n") for text in texts), strict=False)
    same = takewhile(lambda column: len(set(column)) == 1, columns)
    return "\n".join(column[0] for column in same)


def _nodelists(groups: tuple[NodeGroup, ...]) -> str:
    """SLURM's names of the job's nodes, folded, as shell text."""
    if len(groups) == 1:
        return "$SLURM_JOB_NODELIST"
    return ",".join(f"$SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(len(groups)))


def _step(batch: Batch, groups: tuple[NodeGroup, ...], parts: list[NodeScript]) -> str:
    """The srun command. `--export=ALL` holds also where the job was submitted with NONE.

    It takes the CPUs over from sbatch except in SLURM 22.05 and 23.02 (which read
    SRUN_CPUS_PER_TASK instead), and the variable for them has another name in a heterogeneous job.
    """
    elastic = batch.launch.world.min_nodes is not None
    fate = ["--no-kill", "--kill-on-bad-exit=0"] if elastic else ["--kill-on-bad-exit=1"]
    common = ["srun", *fate, f"--wait={LAST_ONES_WAIT}", "--label", "--export=ALL"]
    cpus = dict(batch.slurm.options).get("cpus_per_task")
    common += [f"--cpus-per-task={cpus}"] if cpus else []
    # one launcher for each node is no MPI program, whatever the site's MpiDefault prepares
    common += [] if batch.launch.launcher.task_per_rank else ["--mpi=none"]
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
    """The variables among the words for srun."""
    for word in words:
        if not word.startswith("--"):
            name, _, value = word.partition("=")
            yield name, value


def _origin(origin: Origin | None) -> Origin | None:
    """The origin as text of one line each."""
    return origin and Origin(file=one_line(origin.file), command=one_line(origin.command))


def _title(batch: Batch, groups: tuple[NodeGroup, ...]) -> str:
    kinds = " + ".join(f"{g.nodes} x {g.slots}" for g in groups)
    one_node = len(groups) == 1 and groups[0].nodes == 1
    count = str(groups[0].slots) if one_node else kinds
    return f"{batch.launch.cluster}: {batch.launch.job.launcher}, {count} ranks"
