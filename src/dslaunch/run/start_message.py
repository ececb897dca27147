"""Start the ranks of all nodes: the message to each, from the plan."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from dslaunch.cluster.nodeset import fold_in_order
from dslaunch.run.output_interval import output_interval
from dslaunch.transport.loop import paced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dslaunch.launch.plan import NodePlan, Plan
    from dslaunch.run.rehearsal import RehearsalLimits
    from dslaunch.run.secret import Secret
    from dslaunch.run.session import Session


def start_ranks(
    sessions: Sequence[Session],
    plan: Plan,
    secrets: dict[str, Secret],
    *,
    notice: int | None,
    rehearsal: RehearsalLimits | None,
) -> None:
    """Start the plan on all nodes, and request what the ranks print.

    `notice`: the signal that announces the end; `rehearsal`: when a rehearsal ends.
    """
    more: dict[str, Any] = {"notice": notice}
    if rehearsal is not None:
        more["rehearsal"] = rehearsal.start_message()
    starts = start_messages(plan, secrets, more)
    for session, node, start in paced(zip(sessions, plan.nodes, starts, strict=True)):
        session.expect(node.ranks)
        session.follow(hold=True)
        session.start_ranks(start)


def start_messages(
    plan: Plan, secrets: dict[str, Secret], more: Mapping[str, Any]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield what makes the message that starts a node's processes, for each node: messages take
    more memory than the plan. Secrets are in no other message. `more`: what the message of each
    node has beside."""
    about = {
        "cluster": plan.cluster,
        "launcher": plan.launcher,
        # folded: with all names, the messages of many nodes would be as large as their square
        "hosts": fold_in_order(node.host for node in plan.nodes),
        "world_size": plan.world_size,
        "started": time.time(),
    }
    for node in plan.nodes:
        yield partial(_start_message, plan=plan, node=node, secrets=secrets, about=about, more=more)


def _start_message(
    plan: Plan,
    node: NodePlan,
    secrets: dict[str, Secret],
    about: Mapping[str, Any],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """`about`: what every node records of the run, for later requests."""
    return {
        "op": "start",
        "processes": [
            {"argv": p.command.words(), "env": dict(p.env), "rank": p.rank} for p in node.processes
        ],
        "env": dict(node.env) | {name: secret.reveal() for name, secret in secrets.items()},
        "secret": list(secrets),
        "cwd": node.cwd,
        "files": [to_builtins(file) for file in node.files],
        "slots": len(node.slots),
        "first_rank": node.first_rank,
        "master_port": plan.rendezvous.port,
        "output_interval": output_interval(plan.world_size),
        "about": {**about, "ranks": list(node.ranks)},
        **more,
    }
