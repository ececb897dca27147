"""The `#SBATCH` options of a rendered script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PlanError
from dslaunch.render.batch import Batch, job_name, signal_option
from dslaunch.render.node_text import NodeGroup

if TYPE_CHECKING:
    from dslaunch.cluster.model import Slurm

PLAIN = re.compile(r"[\w@%+=:,./\[\]*^-]+", re.ASCII).fullmatch
OF_THE_JOB = ("error", "comment", "wckey", "mail_type", "mail_user", "array", "dependency")
PLACES = (
    "partition",
    "account",
    "qos",
    "time",
    "reservation",
    "constraint",
    "switches",
    "licenses",
    "segment",
)
"""Options for where and how long a component of the job runs."""
PARTS = ("cpus_per_task", "cpus_per_gpu", "mem", "mem_per_cpu", "mem_per_gpu")
"""Options that request a part of a node."""
LONGEST_DIRECTIVE = 8000
"""Characters of one option, less than the buffer of sbatch (22.05, sbatch/opt.c, BUFSIZ)."""


def directives(batch: Batch, groups: tuple[NodeGroup, ...]) -> Iterator[str]:
    """Yield the `#SBATCH` options in order; those of the user replace ours.

    They are repeated for every component, since sbatch resets most options at each (22.05,
    src/common/slurm_opt.c, `reset_each_pass`).
    """
    slurm = batch.slurm
    options = dict(slurm.options)
    once = [("job-name", job_name(batch)), *_for_the_job(batch, options)]
    for number, group in enumerate(groups):
        ours = list(_for_the_group(batch, group, options))
        if number:
            yield "hetjob"
        else:
            ours = once + ours
        yield from (_option(name, value) for name, value in ours if name not in slurm.displaced)
        yield from slurm.directives


def step_tasks(batch: Batch, group: NodeGroup) -> tuple[str, ...]:
    """Return the options of srun for our number of tasks, if directives set another for the job."""
    if "ntasks-per-node" not in batch.slurm.displaced:
        return ()
    each = group.tasks(batch.launch.launcher)
    return (f"--ntasks={group.nodes * each}", f"--ntasks-per-node={each}")


def _for_the_job(batch: Batch, options: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    slurm, workdir = batch.slurm, batch.launch.decided.workdir
    if "chdir" in options or workdir.startswith("/"):
        yield "chdir", options.get("chdir", workdir)
    yield "output", output_pattern(slurm)
    yield from _set(OF_THE_JOB, options)
    if slurm.requeue:
        yield "requeue", None
    if slurm.requeue != 0:
        yield "open-mode", "append"
    if slurm.requeue == 0:
        yield "no-requeue", None
    if slurm.signal:
        yield "signal", signal_option(slurm)
    if batch.launch.world.min_nodes is not None:
        yield "no-kill", None


def _for_the_group(
    batch: Batch, group: NodeGroup, options: dict[str, str]
) -> Iterator[tuple[str, str | None]]:
    slurm = batch.slurm
    yield from _set(PLACES, options)
    yield "nodes", slurm.nodes or str(group.nodes)
    yield "ntasks-per-node", str(group.tasks(batch.launch.launcher))
    yield from _resources(batch.slurm, group, options.get("gres"))
    yield from _set(PARTS, options)
    whole = slurm.exclusive or ("false" if set(PARTS) & options.keys() else "true")
    if "tmp" in options:
        yield "tmp", options["tmp"]
    if whole != "false":
        yield "exclusive", None if whole == "true" else whole
    wanted = fold(p.node.host for p in group.members) if batch.pinned else ""
    yield from _hosts("nodelist", options.get("nodelist"), wanted)
    yield from _hosts("exclude", options.get("exclude"), fold(batch.excluded))


def _set(names: tuple[str, ...], options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return those of the options that are set."""
    return ((name.replace("_", "-"), options[name]) for name in names if name in options)


def output_pattern(slurm: Slurm) -> str:
    """Return the path of the output, with the patterns of sbatch."""
    return slurm.output or ("%x-%A_%a.out" if "array" in dict(slurm.options) else "%x-%j.out")


def _resources(slurm: Slurm, group: NodeGroup, more: str | None) -> Iterator[tuple[str, str]]:
    """Yield the GPUs of each node, and `more` generic resources (GRES), such as local disks."""
    gpus = f"{group.gpu}:{group.slots}" if group.gpu else str(group.slots)
    gres = [f"gpu:{gpus}"] if slurm.gpus == "gres" else []
    if more:
        gres.append(more)
    if gres:
        yield "gres", ",".join(gres)
    if slurm.gpus == "gpus_per_node":
        yield "gpus-per-node", gpus


def _hosts(name: str, *folded: str | None) -> Iterator[tuple[str, str]]:
    given = ",".join(filter(None, folded))
    if given:
        yield name, given


def _option(name: str, value: str | None) -> str:
    """Return an option for sbatch, which parses quotes, backslashes and `#` as a shell does (22.05,
    sbatch/opt.c, `_get_argument`)."""
    if value is None:
        return f"--{name}"
    if "\n" in value or "\0" in value or len(value) > LONGEST_DIRECTIVE:
        raise PlanError(f"--{name} cannot be set in an sbatch script: {value[:40]!r}")
    if not PLAIN(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"--{name}={value}"
