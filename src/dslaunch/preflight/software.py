"""The versions of software on the nodes, by what they answered in a preflight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dslaunch.preflight.alike import CheckAnswers, by_host
from dslaunch.preflight.check import NodeAnswers, UnansweredError
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.recording import Recording

PACKAGES = (*job.MUST, *job.SHOULD)
DRIVER = "NVIDIA driver"
Value = TypeVar("Value")


def versions(facts: Recording) -> dict[str, dict[str, str]]:
    """Return for each node the versions of its interpreter, packages and driver, by name.

    What a node was not asked, or did not answer, is not included.
    """
    return by_host(CheckAnswers(node_answers(facts), rounds=(), limits={}), _of_node)


def _of_node(answers: NodeAnswers) -> dict[str, str]:
    found: dict[str, str] = {}
    installed = _answered(job.installed, answers)
    if installed is not None:
        found["python"] = ".".join(map(str, installed.version))
        found |= _packages({name: job.version(installed, name) for name in PACKAGES})
        found |= _packages({f"torch {kind}": text for kind, text in installed.torch.items()})
    gpus = _answered(nvidia.gpus, answers) or ()
    driver = gpus[0].text("driver_version") if gpus else None
    return found | ({DRIVER: driver} if driver else {})


def _packages(found: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that are known; torch names what it is not built for `None`."""
    return {
        name: version
        for name, version in found.items()
        if version not in ("", "None") and not name.startswith("torch __")
    }


def _answered(read: Callable[[NodeAnswers], Value], answers: NodeAnswers) -> Value | None:
    try:
        return read(answers)
    except UnansweredError:
        return None
