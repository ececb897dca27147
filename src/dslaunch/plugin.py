"""What plugins are made of: the names that docs/howto/write-a-plugin.md describes.

Each is imported when it is asked for: a launcher does not wait for the modules of the lints.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Cluster, Node, Placement
    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.errors import (
        DslaunchError,
        FailureKind,
        NodeError,
        NodeFailure,
        PlanError,
        ToolMissingError,
        UsageError,
    )
    from dslaunch.launch.command import Command, Var
    from dslaunch.launch.interpreter import interpreter
    from dslaunch.launch.job import Job
    from dslaunch.launch.launchers import Launcher
    from dslaunch.launch.launchers.direct import Direct
    from dslaunch.launch.plan import Process, World
    from dslaunch.launch.program import piped, python_command
    from dslaunch.launch.slurm_step import SlurmStep, StepCommand
    from dslaunch.lint import Edit, Remark
    from dslaunch.lint.rules import rule
    from dslaunch.preflight.check import (
        Check,
        Finding,
        Flow,
        NodeAnswers,
        Nodes,
        Question,
        Round,
        Scope,
        UnansweredError,
        passed,
        skipped,
    )
    from dslaunch.preflight.comparison import alike
    from dslaunch.preflight.flow import compared, each, judged
    from dslaunch.render.formats import Format
    from dslaunch.render.launch import Launch, Rendered
    from dslaunch.run.known_endings import KnownEnding
    from dslaunch.slurm.script import Script
    from dslaunch.slurm.training_commands import LintedScript
    from dslaunch.transport.base import (
        Channel,
        Connection,
        Detour,
        End,
        Receiver,
        Transport,
        TransportType,
    )
    from dslaunch.transport.channel import PushChannel, QueueingChannel
    from dslaunch.transport.process import ProcessChannel, inherited

_MODULES = {
    "Allocation": "cluster.model",
    "Channel": "transport.base",
    "Check": "preflight.check",
    "Cluster": "cluster.model",
    "Command": "launch.command",
    "Connection": "transport.base",
    "Detour": "transport.base",
    "Direct": "launch.launchers.direct",
    "DslaunchError": "errors",
    "Edit": "lint",
    "End": "transport.base",
    "FailureKind": "errors",
    "Finding": "preflight.check",
    "Flow": "preflight.check",
    "Format": "render.formats",
    "Job": "launch.job",
    "KnownEnding": "run.known_endings",
    "Launch": "render.launch",
    "Launcher": "launch.launchers",
    "LintedConfig": "deepspeed.linted_config",
    "Node": "cluster.model",
    "NodeAnswers": "preflight.check",
    "NodeError": "errors",
    "NodeFailure": "errors",
    "Nodes": "preflight.check",
    "Placement": "cluster.model",
    "PlanError": "errors",
    "Process": "launch.plan",
    "ProcessChannel": "transport.process",
    "PushChannel": "transport.channel",
    "QueueingChannel": "transport.channel",
    "Question": "preflight.check",
    "LintedScript": "slurm.training_commands",
    "Receiver": "transport.base",
    "Remark": "lint",
    "Rendered": "render.launch",
    "Round": "preflight.check",
    "Scope": "preflight.check",
    "Script": "slurm.script",
    "SlurmStep": "launch.slurm_step",
    "StepCommand": "launch.slurm_step",
    "ToolMissingError": "errors",
    "Transport": "transport.base",
    "TransportType": "transport.base",
    "UnansweredError": "preflight.check",
    "UsageError": "errors",
    "Var": "launch.command",
    "World": "launch.plan",
    "alike": "preflight.comparison",
    "compared": "preflight.flow",
    "each": "preflight.flow",
    "inherited": "transport.process",
    "interpreter": "launch.interpreter",
    "judged": "preflight.flow",
    "passed": "preflight.check",
    "piped": "launch.program",
    "python_command": "launch.program",
    "rule": "lint.rules",
    "skipped": "preflight.check",
}
"""Where each name is defined."""
__all__ = [
    "Allocation",
    "Channel",
    "Check",
    "Cluster",
    "Command",
    "Connection",
    "Detour",
    "Direct",
    "DslaunchError",
    "Edit",
    "End",
    "FailureKind",
    "Finding",
    "Flow",
    "Format",
    "Job",
    "KnownEnding",
    "Launch",
    "Launcher",
    "LintedConfig",
    "LintedScript",
    "Node",
    "NodeAnswers",
    "NodeError",
    "NodeFailure",
    "Nodes",
    "Placement",
    "PlanError",
    "Process",
    "ProcessChannel",
    "PushChannel",
    "Question",
    "QueueingChannel",
    "Receiver",
    "Remark",
    "Rendered",
    "Round",
    "Scope",
    "Script",
    "SlurmStep",
    "StepCommand",
    "ToolMissingError",
    "Transport",
    "TransportType",
    "UnansweredError",
    "UsageError",
    "Var",
    "World",
    "alike",
    "compared",
    "each",
    "inherited",
    "interpreter",
    "judged",
    "passed",
    "piped",
    "python_command",
    "rule",
    "skipped",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"dslaunch.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
