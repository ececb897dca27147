"""What the nodes answered: written to a file, and read again to be judged."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import Field

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, NodeFailure, Problem, UsageError
from dslaunch.json_text import json_text, members
from dslaunch.launch.job import Job, Kind
from dslaunch.preflight.check import Scope, Tier
from dslaunch.protocol import survey
from dslaunch.protocol.survey import Answer, Identity
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.pysource.imports import Imports
from dslaunch.recorded import RecordedValue

FORMAT = 2
MOST_BYTES = 1 << 30
"""Bytes of a recording that is read: 100 kB for each of 10,000 nodes. Parsed, it takes several
times as much memory."""


class NodeRecording(Struct, frozen=True):
    """What one node answered."""

    hello: Identity
    answers: Mapping[str, Answer]
    """Question key -> answer."""
    clock: tuple[float, float] | None
    """How far its clock is ahead, and by how much that may be wrong. Seconds."""
    seconds: float
    """From the connection's start to the last answer."""
    noise: str = ""
    """What the login shell wrote before anything was asked."""


class Recording(Struct, frozen=True):
    """What was asked of a cluster, and what it answered."""

    scope: Scope
    time: float
    """When, in seconds since 1970."""
    nodes: Mapping[str, NodeRecording]
    failures: Mapping[str, NodeFailure]
    """Of nodes that did not answer."""
    here: Mapping[str, Answer] = field(default_factory=dict)
    """What the machine that dslaunch ran on answered: question key -> answer."""
    tier: Tier = "static"
    """What was asked where no check was named."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording from a file.

        Raises ConfigError with the place of what is not as it was written.
        """
        return read(Path(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that only this user can read; `dslaunch preflight --from` reads it.

        Raises UsageError as `as_json` does, OSError.
        """
        # names that are not UTF-8 are spelled out
        data = self.as_json().encode("utf-8", errors="backslashreplace")
        with open(path, "wb", opener=_private) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)

    def as_json(self) -> str:
        """Return it as JSON, with the text of the cluster file, and `env` in it. What the job gets
        from the caller's environment is not included.

        Raises UsageError for a cluster that was not read from a text.
        """
        scope = self.scope
        source = scope.cluster.source
        if source is None:
            raise UsageError(
                f"cluster {scope.cluster.name!r} was not read from a file: its recording could not "
                "be replayed",
                hint="make the cluster by Cluster.load or Cluster.parse",
            )
        nodes, answers = _written(self.nodes)
        recording = _RecordingFile(
            cluster=source.text,
            file=source.file,
            time=self.time,
            answers=answers,
            nodes=nodes,
            failures=self.failures,
            launcher=scope.job.launcher,
            program=scope.job.program,
            kind=scope.job.kind,
            purposes=tuple(sorted(scope.purposes)),
            named=tuple(sorted(scope.named)),
            tier=self.tier,
            here=self.here,
            **{name: getattr(scope, name) for name in _AS_IN_SCOPE},
        )
        return json_text({"format": FORMAT, **members(recording)}, indent=1, default=members) + "\n"


_AS_IN_SCOPE = ("token", "imports", "directories", "root", "files")
"""Fields that a recording has as the scope has them."""


class _NodeOfFile(RecordedValue, frozen=True):
    """What one node answered, as a file has it."""

    hello: dict[str, Any]
    answers: tuple[Annotated[int, Field(ge=0)], ...]
    """Positions in the answers of the file."""
    clock: tuple[float, float] | None
    seconds: float
    noise: str = ""


class _RecordingFile(RecordedValue, frozen=True):
    """A recording as a file has it."""

    cluster: str
    file: str
    token: str
    time: float
    answers: tuple[tuple[str, Any], ...]
    """Keys of questions with an answer, each once: most nodes give equal ones."""
    nodes: Mapping[str, _NodeOfFile]
    failures: Mapping[str, NodeFailure]
    launcher: str = "torchrun"
    program: str = ""
    kind: Kind = "script"
    imports: Imports = field(default_factory=Imports)
    purposes: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    root: str = ""
    files: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()
    tier: Tier = "static"
    here: Mapping[str, Answer] = field(default_factory=dict)

    def facts(self) -> Recording:
        """Return what was asked and answered. Raises ConfigError for the cluster file, ValueError
        for answers of a node that the file does not have."""
        cluster = parse_cluster(self.cluster, self.file)
        hosts = {*self.nodes, *self.failures}
        scope = Scope(
            cluster=cluster,
            nodes=tuple(node for node in cluster.nodes if node.host in hosts),
            job=Job(self.program, kind=self.kind, launcher=self.launcher),
            purposes=frozenset(self.purposes),
            named=frozenset(self.named),
            **{name: getattr(self, name) for name in _AS_IN_SCOPE},
        )
        return Recording(
            scope=scope,
            time=self.time,
            nodes=self._nodes(),
            failures=self.failures,
            here=self.here,
            tier=self.tier,
        )

    def _nodes(self) -> dict[str, NodeRecording]:
        """Return what each node answered; nodes share equal answers. Raises ValueError."""
        shared = SharedAnswers()
        several = Counter(key for key, _ in self.answers)
        answers: list[tuple[str, Answer | None]] = []
        for key, sent in self.answers:
            answer = survey.recorded(key, sent)
            if answer is not None and several[key] > 1:
                answer = shared.one(key, answer)
            answers.append((key, answer))
        unknown = {key for key, answer in answers if answer is None}
        found = {}
        for host, node in self.nodes.items():
            if node.answers and max(node.answers) >= len(answers):
                raise ValueError(f"nodes.{host}.answers: a position is not in `answers`")
            given = dict(map(answers.__getitem__, node.answers))
            for key in unknown & given.keys():
                del given[key]
            found[host] = NodeRecording(
                hello=cast(Identity, node.hello),
                answers=cast("dict[str, Answer]", given),
                clock=node.clock,
                seconds=node.seconds,
                noise=node.noise,
            )
        return found


class SharedAnswers:
    """Answers to a question with equal values as one object, that of the first node: checks judge
    nodes with the same values together."""

    def __init__(self) -> None:
        self._by_text: dict[tuple[str, str], Answer] = {}
        self._by_identity: dict[tuple[str, int], tuple[Any, Answer]] = {}
        """Most values are one object already, of nodes that were just asked (`KnownAnswers`). Each
        value is kept: otherwise another one could get its identity."""

    def one(self, key: str, answer: Answer) -> Answer:
        """Return the answer for all that are equal to this one, to the question with this key."""
        if "value" not in answer:
            return answer
        value = answer["value"]
        if (key, id(value)) not in self._by_identity:
            one = self._by_text.setdefault((key, repr(value)), answer)
            self._by_identity[key, id(value)] = value, one
        _, shared = self._by_identity[key, id(value)]
        return shared

    def of(self, node: NodeRecording) -> NodeRecording:
        """Return what a node answered, with its answers shared."""
        return replace(node, answers={key: self.one(key, a) for key, a in node.answers.items()})


def _written(
    nodes: Mapping[str, NodeRecording],
) -> tuple[dict[str, _NodeOfFile], tuple[tuple[str, Answer], ...]]:
    """Return the nodes as a file has them, and their answers, each once."""
    answers: list[tuple[str, Answer]] = []
    positions: dict[str, int] = {}
    found = {}
    for host, node in nodes.items():
        own = []
        for answer in node.answers.items():
            position = positions.setdefault(json_text(answer, default=members), len(answers))
            if position == len(answers):
                answers.append(answer)
            own.append(position)
        found[host] = _NodeOfFile(
            hello=dict(node.hello),
            answers=tuple(own),
            clock=node.clock,
            seconds=node.seconds,
            noise=node.noise,
        )
    return found, tuple(answers)


def read(path: Path) -> Recording:
    """Read recorded facts. Raises ConfigError with the place of what is not as it was written."""
    from pydantic import TypeAdapter, ValidationError

    try:
        data = json.loads(_text(path))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"expected an object with `format` {FORMAT}")
        recording = TypeAdapter(_RecordingFile).validate_python(_parsed(data))
        datetime.fromtimestamp(recording.time, UTC)
        return recording.facts()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"not recorded results: {where}: {first['msg']}") from None
    except json.JSONDecodeError as error:
        place = Problem(
            str(path), error.lineno, error.colno, "", "not recorded results: invalid JSON"
        )
        hint = "pass a file written by `dslaunch preflight --save FILE`"
        raise ConfigError((place,), hint=hint) from None
    except (ValueError, OverflowError, OSError, RecursionError) as error:
        raise _unreadable(path, f"not recorded results: {error}") from None


def _parsed(data: dict[str, Any]) -> dict[str, Any]:
    """Parse what nodes said as when it was sent, also from a file that another user recorded.
    Raises ValueError with the node of a greeting that is none."""
    nodes = data.get("nodes")
    if isinstance(nodes, dict):
        data = {**data, "nodes": {host: _node(host, node) for host, node in nodes.items()}}
    return {**data, "here": _answers(data["here"])} if "here" in data else data


def _node(host: str, node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    try:
        hello = survey.hello(node.get("hello"))
    except InvalidAnswer as error:
        raise ValueError(f"nodes.{host}.hello: {error}") from None
    return {**node, "hello": hello}


def _answers(sent: Any) -> Any:
    if not isinstance(sent, dict):
        return sent
    found = {key: survey.recorded(key, answer) for key, answer in sent.items()}
    return {key: answer for key, answer in found.items() if answer is not None}


def _text(path: Path) -> str:
    """The file's text; of a device there might be no end. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            raise _unreadable(path, "not a regular file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            why = f"file too large: {size:,} bytes, expected at most {MOST_BYTES:,}"
            raise _unreadable(path, why)
        return path.read_text("utf-8")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _unreadable(path, "not recorded results: not UTF-8 text") from None


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        (Problem(str(path), 0, 0, "", why),),
        hint="pass a file written by `dslaunch preflight --save FILE`",
    )


def _private(path: str, flags: int) -> int:
    """Open a file, which only this user can read if it is made. For `open`."""
    return os.open(path, flags, 0o600)
