"""`dslaunch status`: how a run stands, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import lookup, slurm_runs, ui
from dslaunch.cli.ps import ago, local_data, local_state
from dslaunch.errors import DslaunchError

if TYPE_CHECKING:
    from dslaunch.run.local import LocalRun
    from dslaunch.run.state import OnNode, RunState

HEAD = ("NODE", "STATE", "RANKS", "LAST EVENT")


def status(
    run: lookup.Run,
    file: lookup.Cluster_ = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Say how a run stands, node by node, and why it failed.

    Example: dslaunch status latest
    """
    import json as jsonlib

    from dslaunch.run.reach import reach
    from dslaunch.run.state import as_data, node_runs

    found = lookup.find(run, file)
    if found.local is not None and slurm_runs.is_slurm(found.local):
        told = slurm_runs.data(found.local) if json else slurm_runs.page(found.local)
        ui.result(jsonlib.dumps(told, indent=2) if json else str(told))
        return
    with reach(found.cluster, found.nodes) as reached:
        state = node_runs(reached).get(found.agents)
    if state is not None:
        ui.result(jsonlib.dumps(as_data(state), indent=2) if json else page(state))
    elif found.local is not None:
        recorded = local_data(found.local)
        ui.result(jsonlib.dumps(recorded, indent=2) if json else recorded_page(found.local))
    else:
        raise DslaunchError(f"no node says anything of run {found.run}")


def page(state: RunState) -> str:
    """The run, its nodes, and why it failed."""
    head = f"{state.run}: {state.state}, {state.launcher}, started {ago(state.started)}"
    rows = [HEAD, *(_row(host, node) for host, node in state.nodes.items())]
    outcome = state.outcome()
    tail = [] if outcome.status == "ok" else [f"{outcome.message}"]
    tail += [f"hint: {outcome.hint}"] if outcome.hint else []
    return "\n".join([head, ui.table(rows, ui.width()), *tail])


def _row(host: str, node: OnNode) -> tuple[str, ...]:
    last = node.events[-1] if node.events else None
    words = node.why or ""
    if last is not None:
        rank = f" of rank {last.rank}" if last.rank is not None else ""
        words = f"{last.kind}{rank}, {ago(last.time)}"
    left = f"; processes left: {', '.join(map(str, node.left))}" if node.left else ""
    return (host, node.state, ranks_text(node.ranks), words + left)


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Consecutive ranks as `0-7`."""
    if not ranks:
        return ""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def recorded_page(run: LocalRun) -> str:
    """A run that is over, from this machine's record."""
    lines = [f"{run.run}: {local_state(run)}, started {ago(run.record.started)}"]
    if run.result is not None:
        lines += [run.result.message]
        lines += [f"hint: {run.result.hint}"] if run.result.hint else []
    return "\n".join([*lines, f"logs: {run.directory / 'logs'}"])
