"""What the nodes answered: written to a file, and read again to be judged."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, NodeFailure, Problem, UsageError
from dslaunch.json_text import json_text, members
from dslaunch.launch.job import Job, Kind
from dslaunch.preflight.check import Scope, Tier
from dslaunch.protocol import survey
from dslaunch.protocol.survey import Answer, Identity
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.pysource.imports import Imports
from dslaunch.recorded import InvalidValue, checked, parsed
from dslaunch.whole_file import write_whole

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
    """From the start of the program on it to the last answer."""
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
        write_whole(Path(path), self.as_json().encode("ascii"), private=True)

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


class _NodeOfFile(Struct, frozen=True):
    """What one node answered, as a file has it."""

    hello: dict[str, Any]
    answers: tuple[Annotated[int, Meta(ge=0)], ...]
    """Positions in the answers of the file."""
    clock: tuple[float, float] | None
    seconds: float
    noise: str = ""


class _RecordingFile(Struct, frozen=True):
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
    here: Mapping[str, Any] = field(default_factory=dict)
    """As `answers`, by the key of the question."""

    def facts(self) -> Recording:
        """Return what was asked and answered, which is parsed as when nodes sent it: another user
        may have recorded the file. Raises ConfigError for the cluster file, InvalidValue."""
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
            here=self._here(),
            tier=self.tier,
        )

    def _nodes(self) -> dict[str, NodeRecording]:
        """Return what each node answered; nodes share equal answers. Raises InvalidValue."""
        shared = SharedAnswers()
        several = Counter(key for key, _ in self.answers)
        answers: list[tuple[str, Answer | None]] = []
        for key, sent in self.answers:
            answer = survey.recorded(key, sent)
            if answer is not None and several[key] > 1:
                answer = shared.one(key, answer)
            answers.append((key, answer))
        found = {}
        for host, node in self.nodes.items():
            if node.answers and max(node.answers) >= len(answers):
                raise InvalidValue("a position is not in `answers`", f"nodes.{host}.answers")
            given = (answers[position] for position in node.answers)
            found[host] = NodeRecording(
                hello=_hello(host, node),
                answers={key: answer for key, answer in given if answer is not None},
                clock=node.clock,
                seconds=node.seconds,
                noise=node.noise,
            )
        return found

    def _here(self) -> dict[str, Answer]:
        """Return what the machine answered that dslaunch ran on."""
        found = {key: survey.recorded(key, sent) for key, sent in self.here.items()}
        return {key: answer for key, answer in found.items() if answer is not None}


def _hello(host: str, node: _NodeOfFile) -> Identity:
    """Return the greeting of a node. Raises InvalidValue."""
    try:
        return survey.hello(node.hello)
    except InvalidAnswer as error:
        raise InvalidValue(str(error), f"nodes.{host}.hello") from None


class SharedAnswers:
    """Answers to a question with equal values as one object, that of the first node: checks judge
    nodes with the same values together."""

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, bytes], Answer] = {}
        self._by_identity: dict[tuple[str, int], tuple[Any, Answer]] = {}
        """Most values are one object already, of nodes that were just asked (`KnownAnswers`). Each
        value is kept: otherwise another one could get its identity."""

    def one(self, key: str, answer: Answer) -> Answer:
        """Return the answer for all that are equal to this one, to the question with this key."""
        if "value" not in answer:
            return answer
        value = answer["value"]
        if (key, id(value)) not in self._by_identity:
            one = self._by_value.setdefault((key, survey.packed(value)), answer)
            self._by_identity[key, id(value)] = value, one
        _, shared = self._by_identity[key, id(value)]
        return shared

    def share(self, answers: dict[str, Answer]) -> None:
        """Replace the answers of a node by those for all."""
        for key, answer in answers.items():
            answers[key] = self.one(key, answer)


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
    try:
        data = parsed(_content(path))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise InvalidValue(f"expected an object with `format` {FORMAT}")
        data = _checked_by_name(_NodeOfFile, data, "nodes")
        data = _checked_by_name(NodeFailure, data, "failures")
        recording = checked(_RecordingFile, data)
        datetime.fromtimestamp(recording.time, UTC)
        return recording.facts()
    except InvalidValue as error:
        raise _unreadable(
            path, f"not recorded results: {error}", error.line, error.column
        ) from None
    except (ValueError, OverflowError, OSError) as error:
        raise _unreadable(path, f"not recorded results: {error}") from None


def _checked_by_name(kind: type[Struct], data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the data of a file with the values of an object: an error in one has its name. Raises
    InvalidValue."""
    found = data.get(name)
    if not isinstance(found, dict):
        return data
    values = {key: checked(kind, value, f"{name}.{key}") for key, value in found.items()}
    return {**data, name: values}


def _content(path: Path) -> bytes:
    """The file's bytes; of a device there might be no end. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            raise _unreadable(path, "not a regular file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            why = f"file too large: {size:,} bytes, expected at most {MOST_BYTES:,}"
            raise _unreadable(path, why)
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None


def _unreadable(path: Path, why: str, line: int = 0, column: int = 0) -> ConfigError:
    return ConfigError(
        (Problem(str(path), line, column, "", why),),
        hint="pass a file written by `dslaunch preflight --save FILE`",
    )
