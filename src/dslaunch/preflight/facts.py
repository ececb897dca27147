"""What the nodes answered: recordable to a file, and read back to be judged again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dslaunch.errors import ConfigError, NodeFailure, Problem
from dslaunch.preflight.check import Tier

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the checks need of `NodeFacts.hello`; see `node/questions.py`, `identity`."""

    uid: int
    python: list[int]
    executable: str
    boot: str
    network: str
    umask: int
    cores: int


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
    tier: Tier = "static"
    """What was asked where no check was named."""
    here: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the machine that dslaunch ran on answered: question key -> answer."""

    def to_json(self) -> str:
        """As a text of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def read(path: Path) -> Facts:
    """Read recorded facts. Raises ConfigError with the place of what is not as it was written."""
    from pydantic import TypeAdapter, ValidationError

    try:
        data = json.loads(_text(path))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"expected an object with `format` {FORMAT}")
        facts = TypeAdapter(Facts).validate_python(data)
        greetings = {host: node.hello for host, node in facts.nodes.items()}
        TypeAdapter(dict[str, Greeting]).validate_python(greetings)
        datetime.fromtimestamp(facts.time, UTC)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"holds no recorded answers: {where}: {first['msg']}") from None
    except (ValueError, OverflowError, OSError, RecursionError) as error:
        raise _unreadable(path, f"holds no recorded answers: {error}") from None
    return facts


def _text(path: Path) -> str:
    """The file's text; of a device there might be no end. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            raise _unreadable(path, "is no regular file")
        return path.read_text("utf-8")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError((Problem(str(path), 0, 0, "", why),), hint="`--save` writes such a file")
