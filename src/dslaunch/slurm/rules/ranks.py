"""Rules for ranks: numbers that differ between nodes, and the shell that expands them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.lint import Edit, Remark
from dslaunch.lint.rules import rule
from dslaunch.slurm import sources
from dslaunch.slurm.rules.counts import gpus_per_node
from dslaunch.slurm.rules.directives import tasks_per_node
from dslaunch.slurm.script import SHELLS, Script
from dslaunch.slurm.script_mistakes import ScriptMistake
from dslaunch.slurm.shell_words import Assignment, Expansion
from dslaunch.slurm.training_commands import LintedScript, SrunStep, TrainingCommand

RANKS = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
IN_TEXT = re.compile(rf"\$\{{?({'|'.join(RANKS)})")


@rule(
    "early-rank",
    "error",
    "a rank that is expanded on the first node: 0 on every node",
    source=sources.EXPANSION,
)
def early_ranks(linted: LintedScript) -> Iterator[Remark]:
    """Find ranks that the shell of the batch script expands: 0 on every node."""
    seen: set[int] = set()
    ignored = set(_ignored_places(linted))
    for step in linted.steps:
        shown = set(_shown_places(step))
        for expansion in (one for word in step.program for one in word.expansions):
            early = expansion.name in RANKS and expansion.shell == 0
            if early and expansion.place not in seen | shown and not _one_task(linted, step):
                seen.add(expansion.place)
                yield _early(linted.script, step, expansion, idle=expansion.place in ignored)
    yield from _exported(linted, seen)


def _early(script: Script, step: SrunStep, expansion: Expansion, *, idle: bool) -> Remark:
    certain = bool(step.inner) and expansion.quoted
    on_the_node = f"srun bash -c '... {expansion.raw} ...'"
    written = f"\\{expansion.raw}" if certain else on_the_node
    mistake = ScriptMistake.EARLY_RANK
    if idle:
        mistake = ScriptMistake.EARLY_RANK_IGNORED
    elif _is_rank(script, expansion.place):
        mistake = ScriptMistake.EARLY_RANK_HANGS
    return mistake.found(
        script,
        expansion.place,
        expansion=expansion.raw,
        written=written,
        edits=(Edit(expansion.place, expansion.place, "\\"),) if certain else (),
    )


def _is_rank(script: Script, place: int) -> bool:
    """Return whether the value of a rank is at a place: `--node_rank X`, `RANK=X`."""
    before = script.text[max(0, place - 60) : place].rstrip(" \t\n=\\\"'")
    return before.lower().endswith("rank")


def _shown_places(step: SrunStep) -> Iterator[int]:
    """Yield the places where a step only prints a rank."""
    for command in step.inner:
        if command.name in ("echo", "printf"):
            yield from (expansion.place for expansion in command.expansions())


def _one_task(linted: LintedScript, step: SrunStep) -> bool:
    """Return whether a step has only one task, whose rank is 0."""
    tasks = step.options["ntasks"].text if "ntasks" in step.options else ""
    job = "" if linted.script.heterogeneous else linted.script.option_text("nodes")
    nodes = step.options["nodes"].text if "nodes" in step.options else job
    return tasks == "1" or (nodes == "1" and tasks_per_node(linted.script, step) == 1)


def _ignored_places(linted: LintedScript) -> Iterator[int]:
    """Yield the places of node ranks that the rendezvous ignores, since it assigns ranks itself."""
    for launch in linted.launches:
        backend, rank = launch.option("rdzv_backend"), launch.option("node_rank", "machine_rank")
        if backend and backend.text == "c10d" and rank and rank.value:
            yield from (expansion.place for expansion in rank.value.expansions)


def _exported(linted: LintedScript, seen: set[int]) -> Iterator[Remark]:
    """Find ranks that the batch script exports to programs which read them."""
    wanted = {name for launch in linted.launches for name in _names_read(launch)}
    wanted |= {name for step in linted.steps for name in _names_on_nodes(step)}
    given = {one.name for step in linted.steps for c in step.inner for one in c.all_assignments()}
    every = (one for c in linted.script.commands for one in c.all_assignments())
    for one in every:
        if one.name not in wanted - given or not linted.script.exported(one.name):
            continue
        for expansion in one.value.expansions:
            if expansion.name in RANKS and expansion.shell == 0 and expansion.place not in seen:
                yield ScriptMistake.EARLY_RANK_EXPORTED.found(
                    linted.script, expansion.place, variable=one.name, expansion=expansion.raw
                )


def _names_read(launch: TrainingCommand) -> tuple[str, ...]:
    """Return the rank variables that a program reads; launchers set those of their ranks."""
    if launch.step is None:
        return ()
    if launch.launcher:
        return ("PET_NODE_RANK",) if launch.torch else ()
    return ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")


def _names_on_nodes(step: SrunStep) -> Iterator[str]:
    """Yield the variables that the shell on the node expands."""
    for command in step.inner:
        if command.name not in ("echo", "printf"):
            yield from (one.name for one in command.expansions() if one.shell > 0 and one.name)


@rule("unexpanded-rank", "error", "a rank variable that no shell expands", source=sources.EXPANSION)
def late_ranks(linted: LintedScript) -> Iterator[Remark]:
    """Find ranks that no shell expands."""
    for step in linted.steps:
        shells = [word for word in step.program if (word.constant or "").endswith(SHELLS)]
        if step.inner or shells:
            continue
        for word in step.program:
            text = word.text()
            if match := IN_TEXT.search(text.chars):
                yield ScriptMistake.UNEXPANDED_RANK.found(
                    linted.script, text.places[match.start()], variable=match[1]
                )


@rule(
    "not-exported",
    "error",
    "a variable that the ranks do not get because it is not exported",
    source="POSIX, Shell Command Language, 2.5.3",
)
def not_exported(linted: LintedScript) -> Iterator[Remark]:
    """Find variables of the batch script that a shell on the node uses, and that are not
    exported."""
    script = linted.script
    found: set[str] = set()
    for step in linted.steps:
        given = {one.name for one in step.command.assignments}
        given |= {one.name for command in step.inner for one in command.all_assignments()}
        named = step.options["export"].text if "export" in step.options else ""
        for expansion in step.inner_expansions():
            name = expansion.name
            local = name in script.assigned and not script.exported(name)
            known = name in given | found or re.search(rf"\b{name}\b", named)
            if name and local and expansion.shell > 0 and not known:
                found.add(name)
                yield _not_exported(linted, expansion)


def _not_exported(linted: LintedScript, expansion: Expansion) -> Remark:
    script = linted.script
    one = script.assigned[expansion.name][-1]
    alone = any(
        command.place == one.place and not command.words and command.depth == 0
        for command in script.commands
    )
    return ScriptMistake.NOT_EXPORTED.found(
        script,
        expansion.place,
        variable=expansion.name,
        line=script.where(one.place)[0],
        edits=(Edit(one.place, one.place, "export "),) if alone else (),
    )


@rule(
    "cuda-visible-devices",
    "warning",
    "`CUDA_VISIBLE_DEVICES` is set by hand",
    source="ray-project/ray issue 61073",
)
def visible_devices(linted: LintedScript) -> Iterator[Remark]:
    """Find assignments of CUDA_VISIBLE_DEVICES."""
    for command in linted.texts():
        for one in command.all_assignments():
            if one.name == "CUDA_VISIBLE_DEVICES" and one.value.value and not _all(linted, one):
                yield ScriptMistake.CUDA_VISIBLE_DEVICES.found(linted.script, one.place)


def _all(linted: LintedScript, one: Assignment) -> bool:
    """Return whether a list contains every GPU of a node, in any order."""
    found = gpus_per_node(linted.script)
    count = found[0] if found else max(2, one.value.value.count(",") + 1)
    return sorted(one.value.value.split(",")) == sorted(map(str, range(count)))


@rule(
    "ignored-node-rank",
    "info",
    "`--node-rank`, which the c10d rendezvous ignores",
    source="PyTorch, torch.distributed.run, --node-rank; pytorch issue 137402",
)
def ignored_node_rank(linted: LintedScript) -> Iterator[Remark]:
    """Find --node-rank with the c10d rendezvous, which assigns ranks itself."""
    for launch in linted.launches:
        backend, rank = launch.option("rdzv_backend"), launch.option("node_rank")
        if launch.torch and backend and rank and backend.text == "c10d":
            yield ScriptMistake.IGNORED_NODE_RANK.found(linted.script, rank.place)
