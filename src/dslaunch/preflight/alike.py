"""Judge nodes with equal answers once.

Most of ten thousand nodes give a check the same answers. What the check reads of one of them is
noted, and a node with the same in these places gets the same findings: a check follows from what it
reads alone. What it reads of the node itself, such as its name or its clock, is never the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

from dslaunch.preflight.check import Asked, Finding, NodeAnswers
from dslaunch.protocol.survey import Answer

V = TypeVar("V")
_OF_THE_NODE = frozenset({"node", "hello", "clock", "noise"})
"""What differs between nodes with equal answers."""


class AlikeNodes:
    """Applies a judge to nodes whose answers are all there, once for equal ones."""

    def __init__(self, judge: Callable[[NodeAnswers], list[Finding]]) -> None:
        """`judge` raises nothing; it may add to the names of questions."""
        self._judge = judge
        self._results: dict[_Places, dict[tuple[int, ...], _Result]] = {}
        """By what was read, and by what stood there."""
        self._differs_by_node = False

    def findings(self, a: NodeAnswers) -> list[Finding]:
        """Return what the judge finds on a node."""
        if not a.complete:
            return self._judge(a)
        known = self._known(a)
        if known is None and self._differs_by_node:
            return self._judge(a)
        result = known or self._traced(a)
        a.asked.update(result.asked)
        return result.findings

    def _known(self, a: NodeAnswers) -> _Result | None:
        for places, results in self._results.items():
            found = results.get(places.in_(a))
            if found is not None:
                return found
        return None

    def _traced(self, a: NodeAnswers) -> _Result:
        """Judge a node, and keep the result for others if it follows from its answers alone."""
        asked, recorded = _Noted(a.asked), _Noted(a.recorded)
        traced = _TracedAnswers(
            node=a.node,
            scope=a.scope,
            asked=asked,
            recorded=recorded,
            hello=a.hello,
            clock=a.clock,
            limits=a.limits,
            here=a.here,
            noise=a.noise,
            complete=True,
        )
        result = _Result(self._judge(traced), asked.added)
        if traced.read_of_node or asked.read_all or recorded.read_all:
            self._differs_by_node = True
        else:
            places = _Places(tuple(asked.read), tuple(recorded.read))
            self._results.setdefault(places, {})[places.in_(a)] = result
        return result


@dataclass(frozen=True, slots=True)
class _Result:
    """What was found on a node, and which names of questions its flow has added."""

    findings: list[Finding]
    asked: Asked


@dataclass(frozen=True, slots=True)
class _Places:
    """What a judge has read of a node's answers."""

    names: tuple[str, ...]
    keys: tuple[str, ...]

    def in_(self, a: NodeAnswers) -> tuple[int, ...]:
        """Return what stands there; nodes share equal questions and answers as one object."""
        asked, recorded = a.asked, a.recorded
        return tuple(
            [id(asked.get(name)) for name in self.names]
            + [id(recorded.get(key)) for key in self.keys]
        )


class _Noted(MutableMapping[str, V]):
    """A mapping that notes what is read of it, and keeps what is added."""

    def __init__(self, content: Mapping[str, V]) -> None:
        self._content = content
        self.added: dict[str, V] = {}
        self.read: dict[str, None] = {}
        self.read_all = False

    def __getitem__(self, key: str) -> V:
        if key in self.added:
            return self.added[key]
        self.read[key] = None
        return self._content[key]

    def __setitem__(self, key: str, value: V) -> None:
        self.added[key] = value

    def __delitem__(self, key: str) -> None:
        raise TypeError("nothing is removed from answers")

    def __iter__(self) -> Iterator[str]:
        self.read_all = True
        return iter({**self._content, **self.added})

    def __len__(self) -> int:
        self.read_all = True
        return len({**self._content, **self.added})


@dataclass(frozen=True, slots=True)
class _TracedAnswers(NodeAnswers):
    """The answers of a node; it notes what is read of the node itself."""

    read_of_node: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> object:
        if name in _OF_THE_NODE:
            object.__getattribute__(self, "read_of_node").add(name)
        return object.__getattribute__(self, name)


class SharedAnswers:
    """Equal answers of nodes as one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Answer] = {}
        self._shared: dict[int, Answer] = {}
        """By identity: nodes of a recording that was read share their answers already."""

    def of(self, answers: Mapping[str, Answer]) -> dict[str, Answer]:
        """Return the answers of a node."""
        return {key: self._one(key, answer) for key, answer in answers.items()}

    def _one(self, key: str, answer: Answer) -> Answer:
        if id(answer) in self._shared:
            return self._shared[id(answer)]
        one = self._known.setdefault((key, repr(answer)), answer)
        self._shared[id(one)] = one
        return one
