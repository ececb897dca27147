"""Who is who: numbers that differ from node to node, and the shell that puts them in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.lint import Edit, Level, Remark
from dslaunch.slurm import sources
from dslaunch.slurm.rules.counts import gpus_per_node
from dslaunch.slurm.rules.directives import tasks_per_node
from dslaunch.slurm.script import Script
from dslaunch.slurm.shell_words import Assignment, Expansion
from dslaunch.slurm.training_commands import SHELLS, Reading, SrunStep, TrainingCommand

RANKS = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
IN_TEXT = re.compile(rf"\$\{{?({'|'.join(RANKS)})")


def early_ranks(reading: Reading) -> Iterator[Remark]:
    """A rank that the batch script's shell puts in: 0, on every node."""
    seen: set[int] = set()
    ignored = set(_ignored_places(reading))
    for step in reading.steps:
        shown = set(_shown_places(step))
        for expansion in (one for word in step.program for one in word.expansions):
            early = expansion.name in RANKS and expansion.shell == 0
            if early and expansion.place not in seen | shown and not _one_task(reading, step):
                seen.add(expansion.place)
                yield _early(reading.script, step, expansion, idle=expansion.place in ignored)
    yield from _exported(reading, seen)


def _early(script: Script, step: SrunStep, expansion: Expansion, *, idle: bool) -> Remark:
    certain = bool(step.inner) and expansion.quoted
    level: Level = "warning"
    follows = ""
    if idle:
        level, follows = "info", ", which c10d ignores"
    elif _is_rank(script, expansion.place):
        level, follows = "error", ", and training hangs"
    return script.remark(
        "early-rank",
        level,
        expansion.place,
        f"{expansion.raw} is put in by the batch script's shell, where it is 0: every"
        f" node gets 0{follows}",
        fix=f"write \\{expansion.raw}"
        if certain
        else f"let the node's shell do it: srun bash -c '... {expansion.raw} ...'",
        source=sources.EXPANSION,
        edits=(Edit(expansion.place, expansion.place, "\\"),) if certain else (),
    )


def _is_rank(script: Script, place: int) -> bool:
    """Whether what stands at a place is a rank's value: `--node_rank X`, `RANK=X`."""
    before = script.text[max(0, place - 60) : place].rstrip(" \t\n=\\\"'")
    return before.lower().endswith("rank")


def _shown_places(step: SrunStep) -> Iterator[int]:
    """Where a step only prints a rank."""
    for command in step.inner:
        if command.name in ("echo", "printf"):
            yield from (expansion.place for expansion in command.expansions())


def _one_task(reading: Reading, step: SrunStep) -> bool:
    """Whether a step has one task alone, whose rank is 0 in any case."""
    tasks = step.options["ntasks"].text if "ntasks" in step.options else ""
    job = "" if reading.script.heterogeneous else reading.script.asked("nodes")
    nodes = step.options["nodes"].text if "nodes" in step.options else job
    return tasks == "1" or (nodes == "1" and tasks_per_node(reading.script, step) == 1)


def _ignored_places(reading: Reading) -> Iterator[int]:
    """Where a node's rank is given to a rendezvous that deals out ranks itself."""
    for launch in reading.launches:
        backend, rank = launch.option("rdzv_backend"), launch.option("node_rank", "machine_rank")
        if backend and backend.text == "c10d" and rank and rank.value:
            yield from (expansion.place for expansion in rank.value.expansions)


def _exported(reading: Reading, seen: set[int]) -> Iterator[Remark]:
    """Ranks that programs take from the environment, and that the batch script gives them."""
    wanted = {name for launch in reading.launches for name in _names_read(launch)}
    wanted |= {name for step in reading.steps for name in _names_on_nodes(step)}
    given = {one.name for step in reading.steps for c in step.inner for one in c.all_assignments()}
    every = (one for c in reading.script.commands for one in c.all_assignments())
    for one in every:
        if one.name not in wanted - given or not reading.script.exported(one.name):
            continue
        for expansion in one.value.expansions:
            if expansion.name in RANKS and expansion.shell == 0 and expansion.place not in seen:
                yield reading.script.remark(
                    "early-rank",
                    "error",
                    expansion.place,
                    f"{one.name} is 0 on every node: {expansion.raw} is put in here, in the batch"
                    " script, where it is 0",
                    fix=f"set it behind srun: srun bash -c '{one.name}={expansion.raw} ...'",
                    source=sources.EXPANSION,
                )


def _names_read(launch: TrainingCommand) -> tuple[str, ...]:
    """The variables for ranks that a program reads: launchers set those of their ranks."""
    if launch.step is None:
        return ()
    if launch.launcher:
        return ("PET_NODE_RANK",) if launch.torch else ()
    return ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")


def _names_on_nodes(step: SrunStep) -> Iterator[str]:
    """The variables that the shell on the node takes from the environment."""
    for command in step.inner:
        if command.name not in ("echo", "printf"):
            yield from (one.name for one in command.expansions() if one.shell > 0 and one.name)


def late_ranks(reading: Reading) -> Iterator[Remark]:
    """A rank that nobody puts in: the program gets a dollar sign."""
    for step in reading.steps:
        shells = [word for word in step.program if (word.constant or "").endswith(SHELLS)]
        if step.inner or shells:
            continue
        for word in step.program:
            text = word.text()
            if match := IN_TEXT.search(text.chars):
                yield reading.script.remark(
                    "unexpanded-rank",
                    "error",
                    text.places[match.start()],
                    f"nobody puts ${match[1]} in: srun starts the program without a shell",
                    fix="start a shell on the node: srun bash -c '...'",
                    source=sources.EXPANSION,
                )


def not_exported(reading: Reading) -> Iterator[Remark]:
    """A variable of the batch script that the node's shell looks for, and that is not exported."""
    script = reading.script
    told: set[str] = set()
    for step in reading.steps:
        given = {one.name for one in step.command.assignments}
        given |= {one.name for command in step.inner for one in command.all_assignments()}
        named = step.options["export"].text if "export" in step.options else ""
        for expansion in step.inner_expansions():
            name = expansion.name
            local = name in script.assigned and not script.exported(name)
            known = name in given | told or re.search(rf"\b{name}\b", named)
            if name and local and expansion.shell > 0 and not known:
                told.add(name)
                yield _not_exported(reading, expansion)


def _not_exported(reading: Reading, expansion: Expansion) -> Remark:
    script = reading.script
    one = script.assigned[expansion.name][-1]
    alone = any(
        command.place == one.place and not command.words and command.depth == 0
        for command in script.commands
    )
    return script.remark(
        "not-exported",
        "error",
        expansion.place,
        f"{expansion.name} is empty there: line {script.where(one.place)[0]} does not export it",
        fix=f"export {expansion.name}",
        source="POSIX, Shell Command Language, 2.5.3",
        edits=(Edit(one.place, one.place, "export "),) if alone else (),
    )


def visible_devices(reading: Reading) -> Iterator[Remark]:
    """CUDA_VISIBLE_DEVICES by hand."""
    for command in reading.texts():
        for one in command.all_assignments():
            if one.name == "CUDA_VISIBLE_DEVICES" and one.value.value and not _all(reading, one):
                yield reading.script.remark(
                    "cuda-visible-devices",
                    "warning",
                    one.place,
                    "SLURM sets CUDA_VISIBLE_DEVICES to the job's GPUs; a value of one's own names"
                    " others' or, one GPU per rank, breaks peer-to-peer copies",
                    fix="leave it, and choose by LOCAL_RANK or SLURM_LOCALID in the program",
                    source="ray-project/ray issue 61073",
                )


def _all(reading: Reading, one: Assignment) -> bool:
    """Whether a list names every GPU of a node, in whatever order."""
    found = gpus_per_node(reading.script)
    count = found[0] if found else max(2, one.value.value.count(",") + 1)
    return sorted(one.value.value.split(",")) == sorted(map(str, range(count)))


def ignored_node_rank(reading: Reading) -> Iterator[Remark]:
    """--node-rank beside the c10d rendezvous, which deals out ranks itself."""
    for launch in reading.launches:
        backend, rank = launch.option("rdzv_backend"), launch.option("node_rank")
        if launch.torch and backend and rank and backend.text == "c10d":
            yield reading.script.remark(
                "ignored-node-rank",
                "info",
                rank.place,
                "the c10d rendezvous gives ranks in its own order: --node_rank does nothing, and"
                " rank 0 need not be on the first node",
                fix="leave it out, or use --master_addr and --master_port without --rdzv_backend",
                source="PyTorch, torch.distributed.run, --node-rank; pytorch issue 137402",
            )


NAMES = (
    "cuda-visible-devices",
    "early-rank",
    "ignored-node-rank",
    "not-exported",
    "unexpanded-rank",
)
RULES = (early_ranks, late_ranks, not_exported, visible_devices, ignored_node_rank)
