"""The output of `dslaunch run --dry-run`, made from the plan only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.launch.command import exports, quote, shell_line
from dslaunch.launch.plan import RUN_DIRECTORY
from dslaunch.plural import counted
from dslaunch.render.launch import ranks_of
from dslaunch.render.launcher_lines import directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dslaunch.launch.decisions import Decision
    from dslaunch.launch.plan import File, NodePlan, Plan

MOST_NODES = 64
"""Of more nodes than these, those that are alike are not all printed."""
FIRST_ALIKE = 2
"""Nodes that are printed of those that are alike."""


def dry_run(plan: Plan) -> str:
    """Return what a run of the plan does on each node; of more than MOST_NODES nodes, on the first
    of those that are alike.

    Commands are shell lines, quoted by `Command.shell`; secrets are shown by name only.
    """
    ranks = counted(plan.world_size, "rank")
    lines = [f"{plan.cluster}: {ranks} on {counted(len(plan.nodes), 'node')}, {plan.launcher}"]
    lines += _decisions(plan.decisions)
    is_folded = len(plan.nodes) > MOST_NODES
    groups = _alike(plan.nodes) if is_folded else [plan.nodes]
    for nodes in groups:
        shown = nodes[:FIRST_ALIKE] if is_folded else nodes
        for node in shown:
            lines += ["", *_node(node, plan.secrets)]
        lines += _others(nodes[len(shown) :])
    if is_folded:
        lines += ["", "# `dslaunch render plan` prints the commands of all nodes"]
    return "".join(f"{line}\n" for line in lines)


def _decisions(decisions: tuple[Decision, ...]) -> Iterator[str]:
    what = max((len(d.what) for d in decisions), default=0)
    value = max((len(d.value) for d in decisions), default=0)
    for d in decisions:
        assumed = "assumed: " if d.assumed else ""
        yield f"  {d.what:{what}}  {d.value:{value}}  {assumed}{d.why}".rstrip()


def _alike(nodes: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Return the nodes that differ in their name, ranks and address alone together."""
    groups: dict[object, list[NodePlan]] = {}
    for node in nodes:
        lengths = tuple(len(process.command.argv) for process in node.processes)
        same = (node.slots, node.cwd, node.env, node.files, lengths)
        groups.setdefault(same, []).append(node)
    return list(groups.values())


def _others(nodes: Sequence[NodePlan]) -> Iterator[str]:
    if nodes:
        yield ""
        yield (
            f"# {counted(len(nodes), 'more node')} with the same slots, directory, variables and "
            f"files: {fold(node.host for node in nodes)}"
        )


def _node(node: NodePlan, secrets: tuple[str, ...]) -> Iterator[str]:
    slots = f"slot{'s' * (len(node.slots) > 1)} {','.join(map(str, node.slots))}"
    ranks = ranks_of(node.first_rank, len(node.slots))
    yield f"# {node.host}: node {node.node_rank}, {ranks}, {slots}"
    yield f"cd {quote(directory(node.cwd))}"
    yield from exports(node.env)
    yield from (f"export {name}=***" for name in secrets)
    for file in node.files:
        yield from _file(file)
    for process in node.processes:
        if process.rank is not None:
            yield f"# rank {process.rank}"
        yield shell_line(process.command, env=process.env)


def _file(file: File) -> Iterator[str]:
    yield f"# file {quote((RUN_DIRECTORY, f'/{file.name}'))}"
    yield from (f"#   {line}" for line in file.text.splitlines())
