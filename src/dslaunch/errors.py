"""Every error that dslaunch raises on purpose, and the exit code that each becomes.

DslaunchError                1  the run failed
├── UsageError               2  the command line is wrong
├── ConfigError              3  a file is wrong; carries every problem found in it
├── SelectionError           3  what is selected, such as nodes or a checkpoint, is not there
├── PlanError                3  cluster, job and facts do not fit together
├── PreflightError           4  a gate check failed
├── NodeError                5  nodes could not be reached; carries one failure per node
├── ToolMissingError         6  a program that is needed is not there
├── PluginError              6  an installed plugin is broken
└── Interrupted            130  the user ended it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from msgspec import Struct

from dslaunch.error_codes import ErrorCode
from dslaunch.terminal import visible
from dslaunch.texts import Value, filled

__all__ = [
    "ConfigError",
    "DslaunchError",
    "ErrorCode",
    "FailureKind",
    "Interrupted",
    "NodeError",
    "NodeFailure",
    "PlanError",
    "PluginError",
    "PreflightError",
    "Problem",
    "SelectionError",
    "ToolMissingError",
    "UsageError",
]


class DslaunchError(Exception):
    """Something that the user can understand and act on.

    `message` says where and what was found: lower case, no full stop. `hint` says what to do.
    """

    exit_code: ClassVar[int] = 1
    class_code: ClassVar[ErrorCode] = ErrorCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: ErrorCode | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.error_code = code or self.class_code
        self.values: Mapping[str, Value] = values or {}
        """The parameters of the code."""

    @classmethod
    def coded(cls, code: ErrorCode, **values: Value) -> Self:
        """Return the error of a code that has a text, with its parameters.

        Not for ConfigError and NodeError, which are made of problems and failures.
        """
        hint = filled(code.hint, values)
        return cls(filled(code.text, values), hint=hint or None, code=code, values=values)

    def __str__(self) -> str:
        """Return the message as it may be printed: parts of it may come from a node."""
        return visible(self.message)


class UsageError(DslaunchError):
    """The command line is wrong."""

    exit_code = 2
    class_code = ErrorCode.USAGE


class Problem(Struct, frozen=True, order=True):
    """One thing that is wrong in a file. Lines and columns count from 1; 0 means the whole file."""

    file: str
    line: int
    column: int
    path: str
    """Where in the data, as `nodes[2].slots`; empty for the file as a whole."""
    message: str
    rule: str = "wrong-value"
    """Its name for machines, such as `unknown-key`."""
    parameters: tuple[tuple[str, Any], ...] = ()
    """What the message was made from, for machines."""
    source: str = ""
    """The line itself, where it may be shown."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigError(DslaunchError):
    """A file is wrong. All its problems at once, sorted by place."""

    exit_code = 3
    class_code = ErrorCode.CONFIG

    def __init__(self, problems: tuple[Problem, ...], *, hint: str | None = None) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)), hint=hint)


class SelectionError(DslaunchError):
    """What is selected does not exist: nodes, slots, labels, a checkpoint."""

    exit_code = 3
    class_code = ErrorCode.SELECTION


class PlanError(DslaunchError):
    """Cluster, job and facts do not fit together."""

    exit_code = 3
    class_code = ErrorCode.PLAN


class PreflightError(DslaunchError):
    """A check that must pass before a run did not.

    `checks` are pairs of a host and a check that failed there, where checks were made.
    """

    exit_code = 4
    class_code = ErrorCode.PREFLIGHT

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: ErrorCode | None = None,
        values: Mapping[str, Value] | None = None,
        checks: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, code=code, values=values)
        self.checks = checks


FailureKind = Literal[
    "name",
    "refused",
    "timeout",
    "no-route",
    "behind-jump",
    "host-key-unknown",
    "host-key-changed",
    "host-key-revoked",
    "host-key-unlisted",
    "authentication",
    "agent-refused",
    "no-key",
    "key-missing",
    "key-unreadable",
    "key-permissions",
    "key-passphrase",
    "throttled",
    "not-ssh",
    "permissions",
    "route",
    "protocol",
    "noisy-shell",
    "no-python",
    "no-ssh",
    "no-agent",
    "stopped",
    "broken",
    "lost",
    "checkpoint",
]
"""Why a node could not be used, for machines; docs/reference/codes.md explains them."""
NODE = "NODE"
"""Stands for the name of the node in a text about several nodes."""


class NodeFailure(Struct, frozen=True):
    """Why one node could not be used."""

    host: str
    kind: FailureKind
    message: str
    hint: str | None = None
    detail: str = ""
    """What may differ from node to node, such as a fingerprint; `message` ends with it."""
    common_hint: str | None = None
    """The hint for several nodes, with NODE for the node's name; None: `hint`."""

    @property
    def common(self) -> str:
        """The message without the detail."""
        return self.message.removesuffix(f" ({self.detail})")


class NodeError(DslaunchError):
    """Nodes could not be reached. One failure per node, in the order of the nodes."""

    exit_code = 5
    class_code = ErrorCode.NODES

    def __init__(self, failures: tuple[NodeFailure, ...]) -> None:
        self.failures = failures
        hints = dict.fromkeys(f.hint for f in failures if f.hint)
        super().__init__(
            "\n".join(f"{f.host}: {f.message}" for f in failures),
            hint="\n".join(hints) or None,
        )


class ToolMissingError(DslaunchError):
    """A program that is needed is not there."""

    exit_code = 6
    class_code = ErrorCode.TOOL_MISSING


class PluginError(DslaunchError):
    """An installed plugin is broken."""

    exit_code = 6
    class_code = ErrorCode.PLUGIN


class Interrupted(DslaunchError):
    """The user ended it."""

    exit_code = 130
    class_code = ErrorCode.INTERRUPTED
