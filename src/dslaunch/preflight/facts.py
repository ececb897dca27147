"""What the nodes answered: recordable to a file, and read back to be judged again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dslaunch.errors import ConfigError, NodeFailure, Problem

FORMAT = 1


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node answered."""

    hello: Mapping[str, Any]
    answers: Mapping[str, Mapping[str, Any]]
    """Question key -> answer."""
    clock: tuple[float, float] | None
    """How far its clock is ahead, and by how much that may be wrong. Seconds."""
    seconds: float
    """From the connection's start to the last answer."""
    noise: str = ""
    """What the login shell wrote before anything was asked."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cluster answered."""

    cluster: str
    """The text of the cluster file."""
    file: str
    token: str
    time: float
    """When, in seconds since 1970."""
    nodes: Mapping[str, NodeFacts]
    failures: Mapping[str, NodeFailure]
    """Of nodes that did not answer."""
    launcher: str = "torchrun"
    purposes: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    root: str = ""
    files: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()
    """Checks that were asked for by name."""
    here: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the machine that dslaunch ran on answered: question key -> answer."""

    def to_json(self) -> str:
        """As a text of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def read(path: Path) -> Facts:
    """Read recorded facts. Raises ConfigError."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("format") != FORMAT:
            raise ValueError("another version of dslaunch wrote it")
        return Facts(
            nodes={host: _node(fields) for host, fields in data.pop("nodes").items()},
            failures={h: NodeFailure(**fields) for h, fields in data.pop("failures").items()},
            purposes=tuple(data.pop("purposes")),
            directories=tuple(data.pop("directories")),
            files=tuple((path, digest) for path, digest in data.pop("files")),
            named=tuple(data.pop("named", ())),
            **data,
        )
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"holds no recorded answers ({error})") from None


def _node(fields: dict[str, Any]) -> NodeFacts:
    clock = fields.pop("clock")
    return NodeFacts(clock=None if clock is None else (clock[0], clock[1]), **fields)


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError((Problem(str(path), 0, 0, "", why),), hint="`--save` writes such a file")
