"""The job's environment on a node: entered as a run enters it, and what its interpreter has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from msgspec import Struct

from dslaunch.cluster.model import Node, Placement
from dslaunch.json_text import json_text
from dslaunch.launch import launchers
from dslaunch.launch.activation import Used, used
from dslaunch.launch.command import Command, Var, Word, activated
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.plan import Rendezvous, node_environment
from dslaunch.preflight.check import (
    NodeAnswers,
    Question,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks._builds import MODULES
from dslaunch.protocol import programs
from dslaunch.protocol.programs import Installed, PythonModule
from dslaunch.protocol.survey import Tried
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.registry import LAUNCHERS
from dslaunch.terminal import printable

MUST = ("torch", "deepspeed", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""Packages of which ranks with different versions do not understand each other."""
SHOULD = ("accelerate", "flash-attn", "numpy", "transformers", "triton")
CONDA_FILES = tuple(
    f"{place}/etc/profile.d/conda.sh"
    for home in ("~", "/opt", "/usr/local")
    for place in (f"{home}/miniconda3", f"{home}/miniforge3", f"{home}/anaconda3", f"{home}/conda")
)
MODULE_FILES = (
    "/etc/profile.d/modules.sh",
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/usr/share/lmod/lmod/init/bash",
    "/usr/share/modules/init/bash",
)
LIMITS: Mapping[str, float] = {"seconds": 30.0}
"""How long an activate line and the start of Python may take; a cold file server needs seconds."""
INSTALLED = Question("job", {"what": "installed"})
"""What is in the environment, to look up the answer; `ask` has what a node is asked."""
_REPORT_WORD: Word = (Var("DSLAUNCH_REPORT"),)
"""The file into which the shell and the program report; see `node/trial.py`."""
_INSTALLED_WORD: Word = (Var("DSLAUNCH_INSTALLED"),)
"""The text of `node/installed.py`, which a node has; see `node/trial.py`."""
_STAGES = 'echo activated >"$0"; command -v "$1" >"$0"; exec "$@"'
_STAGED: tuple[Word, ...] = ("/bin/sh", "-c", _STAGES, _REPORT_WORD)
"""Runs after the activate line, in place of the launcher, and reports each step that succeeded."""


@cache
def program(name: str) -> str:
    """The text of a program of `dslaunch.node`, which needs nothing else of ours."""
    return (resources.files("dslaunch") / "node" / f"{name}.py").read_text("utf-8")


def placement(scope: Scope, host: str) -> Placement:
    """Where the job is on a node: as allocated, else on all its slots."""
    return scope.once(_placements)[host]


def _placements(scope: Scope) -> dict[str, Placement]:
    found = {}
    rank = 0
    for node_rank, node in enumerate(scope.nodes):
        found[node.host] = Placement(node, node.slots, node_rank, rank)
        rank += len(node.slots)
    return found | {placed.node.host: placed for placed in scope.placements}


def variables(a: NodeAnswers, interface: str | None = None) -> dict[str, str]:
    """The variables that the job has on the node, less its secrets; `interface` as evidence gives
    it to a run."""
    return _variables(a.scope, a.host, interface)


def _variables(scope: Scope, host: str, interface: str | None = None) -> dict[str, str]:
    found = ((host, interface),) if interface else ()
    return dict(node_environment(placement(scope, host), scope.job, Rendezvous("", 0, found)))


def run(
    a: NodeAnswers,
    command: Command,
    env: Mapping[str, str],
    *,
    what: Mapping[str, Any],
    seconds: float,
) -> Question:
    """Run a command on the node as a run starts its ranks, after the activate line.

    `what` is recorded with the answer; variables, which may come from the caller's environment,
    are not.
    """
    told = _told(a.scope, a.node, command, env, seconds=seconds)
    return Question("job", dict(what), seconds + 10, json_text(told))


def _told(
    scope: Scope, node: Node, command: Command, env: Mapping[str, str], *, seconds: float
) -> dict[str, Any]:
    """Return what `node/trial.py` reads."""
    own = {"DSLAUNCH_RUN_ID": f"preflight-{scope.token}", "DSLAUNCH_HOST": node.host}
    return {
        "argv": activated(command, node.activate).words(),
        "env": {**env, **own},
        "cwd": workdir(scope),
        "seconds": seconds,
        "tidy": bool(node.activate),
    }


def python(a: NodeAnswers, name: str, told: Mapping[str, Any]) -> Command:
    """Return how the job's interpreter starts a program of ours, `node/NAME.py`: with the file that
    it writes to, and its arguments as JSON."""
    return Command((interpreter(a.node), "-c", program(name), _REPORT_WORD, json_text(told)))


def workdir(scope: Scope) -> str:
    """Where the job runs."""
    return scope.directories[0] if scope.directories else ""


def ask(scope: Scope) -> dict[str, Question]:
    """Return the question what the job's environment has, asked by its own interpreter: the same
    for all nodes, but for what the programs on them read."""
    return {"job": scope.once(_question)}


def _question(scope: Scope) -> Question:
    own_limits = dict(dict(scope.cluster.preflight.limits).get("py.activate", ()))
    seconds = own_limits.get("seconds") or LIMITS["seconds"]

    def text(host: str) -> str:
        return json_text(_installed_told(scope, placement(scope, host).node, seconds))

    return Question("job", INSTALLED.argument, seconds + 10, text)


def _installed_told(scope: Scope, node: Node, seconds: float) -> dict[str, Any]:
    asks = (interpreter(node), "-c", _INSTALLED_WORD, _REPORT_WORD, *scope.once(_wanted))
    staged = Command((*_STAGED, *asks))
    env = _variables(scope, node.host)
    told = _told(scope, node, staged, env, seconds=seconds)
    if not node.activate:
        told["python_at"] = len(_STAGED)
    else:
        uses = used(node.activate)
        told["look"] = [*files_of(scope, uses), *CONDA_FILES, *MODULE_FILES]
        told["words"] = list(uses.commands)
    return told


def _wanted(scope: Scope) -> tuple[str, ...]:
    """Return what is looked for in the environment of each node, as `node/installed.py` reads
    it."""
    wanted = {
        "module": modules(scope),
        "import": sorted({*scope.imports.certain, *scope.imports.possible}),
        "beside": [beside(scope)],
        "package": [*MUST, *SHOULD],
    }
    return tuple(f"{kind}={name}" for kind, names in wanted.items() for name in names)


def modules(scope: Scope) -> list[str]:
    """The modules that are looked for: those of all launchers, so that saved answers can be judged
    for each, and of torch's accelerators."""
    every = dict.fromkeys((*LAUNCHERS.names(), scope.launcher))
    return sorted({*MODULES, *(name for each in every for name in launchers.modules_of(each))})


def beside(scope: Scope) -> str:
    """The directory of the script, as Python finds it from the working directory."""
    root, base = scope.root or workdir(scope), workdir(scope)
    inside = root == base or root.startswith(f"{base}/")
    return root[len(base) + 1 :] if base and inside else root


def uses_of(a: NodeAnswers) -> Used:
    """What the node's activate line plainly names."""
    return used(a.kind.activate or "")


def files_of(scope: Scope, uses: Used) -> list[str]:
    """The files that an activate line reads, from the working directory on."""
    base = workdir(scope)
    return [
        path if path.startswith(("/", "~")) or not base else f"{base}/{path}" for path in uses.files
    ]


# ---------------------------------------------------------------- what was found


_NO_LIBRARY = "No module named 'encodings'"
"""CPython, Python/pylifecycle.c."""


class Entered(Struct, frozen=True):
    """How far a job's environment could be entered on a node."""

    tried: Tried
    activated: bool
    path: str
    """What the interpreter's name means there; empty: nothing."""
    installed: Installed | None
    """None: the interpreter did not report."""
    without_library: bool
    """Whether Python did not find its own library."""

    @property
    def last_words(self) -> str:
        """The last line that was written to standard error, else to standard output."""
        for text in (self.tried["err"], self.tried["out"]):
            lines = [line for line in text.splitlines() if line.strip()]
            if lines:
                return printable(lines[-1].strip()[:200])
        return ""

    @property
    def first_words(self) -> str:
        """The first line that was printed."""
        for text in (self.tried["out"], self.tried["err"]):
            for line in text.splitlines():
                if line.strip():
                    return printable(line.strip()[:120])
        return ""


def entered(a: NodeAnswers) -> Entered:
    """Return how far the job's environment could be entered. Raises UnansweredError."""
    return a.once(_entered)


def _entered(a: NodeAnswers) -> Entered:
    tried: Tried = a.value(INSTALLED)
    lines = tried["report"].splitlines()
    path, installed = "", None
    if len(lines) > 1 and not lines[1].startswith("{"):
        path = lines[1]
    if lines and lines[-1].startswith("{"):
        installed = _reported(lines[-1])
    return Entered(
        tried=tried,
        activated=lines[:1] == ["activated"],
        path=path,
        installed=installed,
        without_library=_NO_LIBRARY in tried["err"],
    )


@lru_cache(maxsize=64)
def _reported(line: str) -> Installed:
    """Return what an interpreter reports: on most nodes the same."""
    try:
        return programs.reported(programs.INSTALLED, line)
    except InvalidAnswer as error:
        raise UnansweredError(f"invalid answer: {printable(str(error))}") from None


def installed(a: NodeAnswers) -> Installed | None:
    """Return what the job's interpreter has; None: it could not be started, which `py.activate` or
    `py.interpreter` reports. Raises UnansweredError."""
    return entered(a).installed


NOT_ENTERED = "the job's interpreter could not be started"


def needed(scope: Scope) -> tuple[str, ...]:
    """The modules without which the job certainly ends."""
    return tuple(dict.fromkeys((*launchers.modules_of(scope.launcher), *scope.imports.certain)))


def version(found: Installed, package: str) -> str:
    """A package's version; empty: not installed."""
    if package in found.packages:
        return found.packages[package][0]
    return found.torch.get("__version__", "") if package == "torch" else ""


def missing(found: Installed, names: tuple[str, ...]) -> Iterator[tuple[str, PythonModule | None]]:
    """Of some modules those that cannot be imported, with what is in their place."""
    for name in names:
        module = found.modules.get(name)
        if module is None or not module.whole or ("." in name and not module.package):
            yield name, module
