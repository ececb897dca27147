"""Launch multi-node DeepSpeed and PyTorch training from one cluster file.

The names of `__all__` are the public Python API (docs/reference/api.md); all else is internal.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all of this
    from types import ModuleType

    from dslaunch.api import (
        Estimate,
        allocated,
        compare_runs,
        estimate,
        find_run,
        lint_config,
        lint_script,
        plan,
        preflight,
        rehearse,
        render,
        replay_preflight,
        run,
        run_detached,
        run_details,
        runs,
        select,
        slurm_job,
        with_transport,
    )
    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.errors import (
        ConfigError,
        DslaunchError,
        Interrupted,
        NodeError,
        PlanError,
        PluginError,
        PreflightError,
        SelectionError,
        ToolMissingError,
        UsageError,
    )
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Plan
    from dslaunch.lint import Remark, Screened
    from dslaunch.preflight.judge import Report
    from dslaunch.preflight.recording import Recording
    from dslaunch.rehearsal.judge import Rehearsal
    from dslaunch.render.launch import Rendered
    from dslaunch.run.compare_runs import RunComparison
    from dslaunch.run.events import Event, Line
    from dslaunch.run.handle import RankStacks, RunHandle, Stopped
    from dslaunch.run.hardware import Hardware
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.rank_signals import Signaled
    from dslaunch.run.run_details import RunDetails
    from dslaunch.run.run_selection import RunSelection
    from dslaunch.run.started_run import Run
    from dslaunch.run.status import RunStatus
    from dslaunch.slurm.client import RefusedError
    from dslaunch.slurm.known_runs import KnownRuns
    from dslaunch.slurm.lint import ScriptLint
    from dslaunch.slurm.slurm_job import SlurmJob

else:
    ModuleType = type(sys)

__version__ = "0.1.0"
__all__ = [
    "Allocation",
    "Cluster",
    "ConfigError",
    "DslaunchError",
    "Estimate",
    "Event",
    "Hardware",
    "Interrupted",
    "Job",
    "KnownRuns",
    "Line",
    "NodeError",
    "Outcome",
    "Plan",
    "PlanError",
    "PluginError",
    "PreflightError",
    "RankStacks",
    "Recording",
    "RefusedError",
    "Rehearsal",
    "Remark",
    "Rendered",
    "Report",
    "Run",
    "RunComparison",
    "RunDetails",
    "RunHandle",
    "RunSelection",
    "RunStatus",
    "Screened",
    "ScriptLint",
    "SelectionError",
    "Signaled",
    "SlurmJob",
    "Stopped",
    "ToolMissingError",
    "UsageError",
    "__version__",
    "allocated",
    "compare_runs",
    "estimate",
    "find_run",
    "lint_config",
    "lint_script",
    "plan",
    "preflight",
    "rehearse",
    "render",
    "replay_preflight",
    "run",
    "run_detached",
    "run_details",
    "runs",
    "select",
    "slurm_job",
    "with_transport",
]
_VALUES = {
    "Allocation": "cluster.model",
    "Cluster": "cluster.model",
    "Event": "run.events",
    "Hardware": "run.hardware",
    "Job": "launch.job",
    "KnownRuns": "slurm.known_runs",
    "Line": "run.events",
    "Outcome": "run.outcome",
    "Plan": "launch.plan",
    "Remark": "lint",
    "Rehearsal": "rehearsal.judge",
    "Rendered": "render.launch",
    "RankStacks": "run.handle",
    "Recording": "preflight.recording",
    "RefusedError": "slurm.client",
    "Report": "preflight.judge",
    "Run": "run.started_run",
    "RunComparison": "run.compare_runs",
    "RunDetails": "run.run_details",
    "RunHandle": "run.handle",
    "RunSelection": "run.run_selection",
    "RunStatus": "run.status",
    "ScriptLint": "slurm.lint",
    "SlurmJob": "slurm.slurm_job",
    "Signaled": "run.rank_signals",
    "Stopped": "run.handle",
    "Screened": "lint",
}
"""Where classes are. The functions are in `api`, and the other exceptions in `errors`."""


class _Package(ModuleType):
    """This package. Its public names are imported when they are asked for.

    `run`, `render` and `preflight` are functions, and packages that Python would put in their place
    when something of them is imported.
    """

    def __getattr__(self, name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = "errors" if name.endswith(("Error", "Interrupted")) else "api"
        value: object = getattr(import_module(f"dslaunch.{_VALUES.get(name, module)}"), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
