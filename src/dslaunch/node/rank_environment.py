"""The variables of a node's processes, and the directories and hooks that the variables name."""

from __future__ import annotations

import os

from dslaunch.node import private, processes, rank_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Dict

    from dslaunch.node import frames

LOGS = "logs"
"""The directory, in that of the run, for the logs of launchers."""


def prepare(directory: str, message: frames.Message, run: str, host: str) -> Dict[str, str]:
    """Return the variables of the processes of a `start` message.

    `directory` is the run's own on this node. Raises OSError if what they name cannot be made.
    """
    logs = os.path.join(directory, LOGS)
    private.make_directory(logs)
    inherited = {name: os.environ[name] for name in os.environ if name != processes.PROGRAM}
    own = {
        processes.RUN_ID: run,
        processes.HOST: host,
        "DSLAUNCH_NODE_DIR": directory,
        "DSLAUNCH_LOGS": logs,
    }
    environment = {**inherited, **message["env"], **own}
    hooks: rank_hooks.Hooks = rank_hooks.HOOKS
    asked = message.get("rehearsal")
    if asked is not None:
        from dslaunch.node import rehearsal  # for few runs

        environment.update(
            rehearsal.prepare(directory, asked["steps"], asked["world"], message["secret"])
        )
        hooks = {**hooks, **rehearsal.HOOKS}
    environment.update(rank_hooks.arm(directory, environment, hooks))
    return environment
