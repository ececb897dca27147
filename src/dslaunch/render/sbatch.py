"""A job for SLURM: one script for sbatch, as long for 2,000 nodes as for 2.

Nothing in it is written per node: the nodes find their place by SLURM's own variables. What a
node runs is a quoted text in the script, so that no variable is filled in too early by the shell
of the first node (accelerate #1645, #2816), and holds the job's environment and arguments, so
that srun's `--export`, which splits values at commas, carries names alone (SmartSim PR #104).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var
from dslaunch.render.node_text import STEPS, Group, Notice, Seat, node_text, wrapped
from dslaunch.render.templates import render

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement, Slurm
    from dslaunch.render.launch import Launch

TEMPLATE = "sbatch.sh.j2"
PLAIN = re.compile(r"[\w@%+=:,./\[\]*^-]+", re.ASCII).fullmatch
LONGEST_DIRECTIVE = 8000
"""Characters of one option, less than the buffer of sbatch (22.05, sbatch/opt.c, BUFSIZ)."""
LAST_ONES_WAIT = 300
"""Seconds that nodes may go on after the first is done, before SLURM ends them: it is as long as
torch's agents wait for each other at the end (torch 2.13, elastic/agent/server/api.py), so that a
last checkpoint is not cut off, as the usual 60 seconds would."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A launch as a SLURM job."""

    launch: Launch
    slurm: Slurm
    port: int | None = None
    """Where the ranks meet; None: one that follows from the job's number."""
    pinned: bool = False
    """The very nodes that were chosen, not any that are like them."""
    excluded: tuple[str, ...] = ()
    """Nodes that SLURM must not give."""


def sbatch(batch: Batch, template: Path | None = None) -> str:
    """The script. Raises PlanError for what SLURM, or this launcher on SLURM, cannot do.

    A template of the user's is filled with the same values as our own.
    """
    groups = grouped(batch)
    check(batch, groups)
    if template is None:
        return render(TEMPLATE, **values(batch, groups))
    return render(template.name, directories=(template.parent,), **values(batch, groups))


def values(batch: Batch, groups: tuple[Group, ...]) -> dict[str, Any]:
    """What a template can use."""
    slurm, job = batch.slurm, batch.launch.job
    parts = list(_parts(batch, groups))
    return {
        "title": _title(batch, groups),
        "job_name": job_name(batch),
        "directives": list(directives(batch, groups)),
        "requeue": slurm.requeue,
        "signal": signal_name(slurm),
        "secrets": [secret.name for secret in job.secrets],
        "setup": slurm.setup,
        "master_suffix": slurm.master_suffix,
        "master_port": batch.port or "$((15000 + SLURM_JOB_ID % 10000))",
        "parts": parts,
        "step": _step(batch, parts),
    }


def job_name(batch: Batch) -> str:
    """The name in the queue: as given, else the script's."""
    program = batch.launch.job.program
    stem = program if batch.launch.job.kind == "module" else PurePosixPath(program).stem
    return batch.slurm.job_name or re.sub(r"[^\w.-]+", "-", stem) or "job"


def signal_name(slurm: Slurm) -> str | None:
    """`USR1` of `USR1@600`."""
    return slurm.signal.partition("@")[0] if slurm.signal else None


def notes(batch: Batch) -> Iterator[str]:
    """What a person should know and the script does not say."""
    slurm, job = batch.slurm, batch.launch.job
    options = dict(slurm.options)
    if job.launcher == "direct" and "cpus_per_task" in options:
        yield f"with `direct` every rank is a task: each gets {options['cpus_per_task']} CPUs"
    if slurm.exclusive == "false" and "cpus_per_task" not in options:
        yield "SLURM gives a task one CPU where `slurm.cpus_per_task` does not say more"
    if slurm.gpus != "none" and any(_few(p) for p in batch.launch.placements):
        yield "SLURM chooses which GPUs of a node the job gets; only their number is asked for"
    if "time" not in options:
        yield "without `slurm.time` the partition's default limit holds"
    if batch.launch.job.secrets:
        names = ", ".join(secret.name for secret in job.secrets)
        yield f"secrets are handed on by sbatch's environment, not by the script: {names}"


def _few(placement: Placement) -> bool:
    return placement.slots != tuple(range(len(placement.slots)))


# ---------------------------------------------------------------- who is alike


def grouped(batch: Batch) -> tuple[Group, ...]:
    """The nodes by how many GPUs of which type they have: each is a component of the job.

    One per type and not per node, since each counts as a job for limits (SLURM's page on
    heterogeneous jobs).
    """
    kinds: dict[tuple[int, str | None], list[Placement]] = {}
    label = batch.slurm.gpu_label
    for placement in batch.launch.placements:
        gpu = dict(placement.node.labels).get(label) if label else None
        kinds.setdefault((len(placement.slots), gpu), []).append(placement)
    count = batch.slurm.nodes
    return tuple(
        Group(slots, gpu, count or len(members), tuple(members))
        for (slots, gpu), members in kinds.items()
    )


def check(batch: Batch, groups: tuple[Group, ...]) -> None:
    """Raise PlanError for what cannot be."""
    launcher = batch.launch.job.launcher
    if launcher not in STEPS:
        known = ", ".join(STEPS)
        raise PlanError(f"launcher `{launcher}` is not known to SLURM jobs", hint=f"use: {known}")
    kinds = " and ".join(f"{g.nodes} x {g.slots}" for g in groups)
    if len(groups) > 1:
        alone = {"accelerate": "needs as many GPUs on every node"}
        if launcher in alone:
            raise PlanError(f"launcher `{launcher}` {alone[launcher]}, not {kinds}")
        if batch.slurm.nodes is not None:
            raise PlanError(f"`slurm.nodes` does not say of which kind: there are {kinds}")
        if "array" in dict(batch.slurm.options):
            raise PlanError(
                f"a heterogeneous job ({kinds} GPUs) cannot be an array",
                hint="choose nodes of one kind",
            )
    for group in groups:
        _check_alike(group)


def _check_alike(group: Group) -> None:
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


# ---------------------------------------------------------------- directives


def directives(batch: Batch, groups: tuple[Group, ...]) -> Iterator[str]:
    """What stands behind `#SBATCH`, in order; the user's own come last, and so win."""
    slurm = batch.slurm
    options = dict(slurm.options)
    once = [("job-name", job_name(batch)), *_for_the_job(batch, options)]
    for number, group in enumerate(groups):
        if number:
            yield "hetjob"
        else:
            yield from (_option(name, value) for name, value in once)
        yield from (_option(name, value) for name, value in _for_the_group(batch, group, options))
    yield from slurm.directives


def _for_the_job(batch: Batch, options: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    slurm, workdir = batch.slurm, batch.launch.decided.workdir
    if workdir.startswith("/"):
        yield "chdir", workdir
    yield "output", slurm.output or ("%x-%A_%a.out" if "array" in options else "%x-%j.out")
    for name in ("mail_type", "mail_user", "array", "dependency"):
        if name in options:
            yield name.replace("_", "-"), options[name]
    if slurm.requeue:
        yield "requeue", None
        yield "open-mode", "append"
    else:
        yield "no-requeue", None
    if slurm.signal:
        yield "signal", f"B:{slurm.signal}"
    if batch.launch.world.min_nodes is not None:
        yield "no-kill", None


def _for_the_group(
    batch: Batch, group: Group, options: dict[str, str]
) -> Iterator[tuple[str, str | None]]:
    slurm = batch.slurm
    for name in ("partition", "account", "qos", "time", "reservation", "constraint", "switches"):
        if name in options:
            yield name, options[name]
    yield "nodes", str(group.nodes)
    yield "ntasks-per-node", str(group.tasks(batch.launch.job))
    if slurm.gpus != "none":
        kind = f"{group.gpu}:" if group.gpu else ""
        of = "gpu:" if slurm.gpus == "gres" else ""
        yield slurm.gpus.replace("_", "-"), f"{of}{kind}{group.slots}"
    for name in ("cpus_per_task", "mem"):
        if name in options:
            yield name.replace("_", "-"), options[name]
    whole = slurm.exclusive or ("false" if {"cpus_per_task", "mem"} & options.keys() else "true")
    if whole != "false":
        yield "exclusive", None if whole == "true" else whole
    wanted = fold(p.node.host for p in group.members) if batch.pinned else ""
    yield from _hosts("nodelist", options.get("nodelist"), wanted)
    yield from _hosts("exclude", options.get("exclude"), fold(batch.excluded))


def _hosts(name: str, *folded: str | None) -> Iterator[tuple[str, str]]:
    given = ",".join(filter(None, folded))
    if given:
        yield name, given


def _option(name: str, value: str | None) -> str:
    """An option as sbatch reads it: quotes, backslashes and `#` mean what they do in a shell
    (22.05, sbatch/opt.c, `_get_argument`)."""
    if value is None:
        return f"--{name}"
    if "\n" in value or "\0" in value or len(value) > LONGEST_DIRECTIVE:
        raise PlanError(f"sbatch cannot be told --{name} in a script: {value[:40]!r}")
    if not PLAIN(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"--{name}={value}"


# ---------------------------------------------------------------- the step


@dataclass(frozen=True, slots=True)
class Part:
    """What the nodes of one group run, as a variable of the script."""

    name: str
    who: str
    text: str
    end: str
    """The line that ends it, which is no line of the text."""


def _parts(batch: Batch, groups: tuple[Group, ...]) -> Iterator[Part]:
    signal = signal_name(batch.slurm)
    notice = Notice(signal, batch.slurm.requeue) if signal else None
    for number, group in enumerate(groups):
        seat = Seat(batch.launch, group, groups, batch.slurm.master_suffix)
        text = node_text(seat, notice)
        end = "END"
        while end in text.splitlines():
            end += "_"
        task = "rank" if batch.launch.job.launcher == "direct" else "node"
        many = len(groups) > 1
        who = f"{task} of component {number}" if many else task
        yield Part(f"on_component_{number}" if many else f"on_each_{task}", who, text, end)


def _step(batch: Batch, parts: list[Part]) -> str:
    """The srun command. `--export=ALL` holds also where the job was submitted with NONE.

    It does not take the CPUs over from sbatch (SLURM 22.05), whose variable for them has another
    name in a heterogeneous job.
    """
    elastic = batch.launch.world.min_nodes is not None
    fate = ["--no-kill", "--kill-on-bad-exit=0"] if elastic else ["--kill-on-bad-exit=1"]
    common = ["srun", *fate, f"--wait={LAST_ONES_WAIT}", "--label", "--export=ALL"]
    cpus = dict(batch.slurm.options).get("cpus_per_task")
    common += [f"--cpus-per-task={cpus}"] if cpus else []
    components = []
    for number, part in enumerate(parts):
        het = [f"--het-group={number}"] if len(parts) > 1 else []
        words = (*(common if number == 0 else common[1:]), *het, *_container(batch))
        components.append(wrapped(Command((*words, "bash", "-c", (Var(part.name),)))))
    return " : \\\n  ".join(components)


def _container(batch: Batch) -> list[str]:
    """pyxis takes its options from srun, where a `#` in an image's name is no comment; with
    `--container-env` the job's value of a variable wins over the image's."""
    box, job = batch.slurm.container, batch.launch.job
    if box is None:
        return []
    if box.runtime == "apptainer":
        binds = [f"--bind={mount}" for mount in box.mounts]
        return ["apptainer", "exec", "--nv", *binds, *box.options, box.image]
    mounts = ",".join(m if ":" in m else f"{m}:{m}" for m in box.mounts)
    names = ",".join(["MASTER_ADDR", "MASTER_PORT", *(secret.name for secret in job.secrets)])
    return [
        f"--container-image={box.image}",
        *([f"--container-mounts={mounts}"] if mounts else []),
        f"--container-env={names}",
        *box.options,
    ]


def _title(batch: Batch, groups: tuple[Group, ...]) -> str:
    kinds = " + ".join(f"{g.nodes} x {g.slots}" for g in groups)
    count = (
        f"{kinds} ranks" if len(groups) > 1 or groups[0].nodes > 1 else f"{groups[0].slots} ranks"
    )
    return f"{batch.launch.cluster}: {batch.launch.job.launcher}, {count}; written by dslaunch"
