"""The output of `dslaunch run --dry-run`, made from the plan only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import exports, quote, shell_line
from dslaunch.launch.plan import RUN_DIRECTORY
from dslaunch.plural import counted
from dslaunch.render.launch import ranks_of
from dslaunch.render.launcher_lines import directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.launch.decisions import Decision
    from dslaunch.launch.plan import File, NodePlan, Plan


def dry_run(plan: Plan) -> str:
    """Return what a run of the plan does on each node.

    Commands are shell lines, quoted by `Command.shell`; secrets are shown by name only.
    """
    ranks = counted(plan.world_size, "rank")
    lines = [f"{plan.cluster}: {ranks} on {counted(len(plan.nodes), 'node')}, {plan.launcher}"]
    lines += _decisions(plan.decisions)
    for node in plan.nodes:
        lines += ["", *_node(node, plan.secrets)]
    return "".join(f"{line}\n" for line in lines)


def _decisions(decisions: tuple[Decision, ...]) -> Iterator[str]:
    what = max((len(d.what) for d in decisions), default=0)
    value = max((len(d.value) for d in decisions), default=0)
    for d in decisions:
        assumed = "assumed: " if d.assumed else ""
        yield f"  {d.what:{what}}  {d.value:{value}}  {assumed}{d.why}".rstrip()


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
