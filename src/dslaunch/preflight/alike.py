"""Judge nodes with equal answers once.

Most of ten thousand nodes give a check the same answers, so it judges groups of nodes, by the
answers of the first node of each. If it reads an answer that is not the same on all nodes of a
group, the group is divided by that answer, and the parts are judged instead. Many answers have
serial numbers, temperatures or counters in them, so that they differ on all nodes: a check reads a
part of such an answer (`NodeAnswers.part`), and the group is divided by this part. If a check reads
what only one node has, such as a name or a clock, the nodes are judged one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar, cast

from msgspec.structs import replace

from dslaunch.preflight.check import (
    DifferError,
    NodeAnswers,
    NodeKind,
    Nodes,
    Question,
    Read,
    Round,
    UnansweredError,
)
from dslaunch.protocol.survey import Answer

R = TypeVar("R")


class NodeGroup:
    """Nodes of one kind whose answers are the same, as far as they have been compared."""

    def __init__(self, nodes: tuple[NodeAnswers, ...]) -> None:
        self.hosts = tuple(answers.host for answers in nodes)
        self.parsed: dict[Callable[..., Any], Any] = {}
        """What checks have made of the answers that all of the nodes have in common."""
        self._nodes = nodes
        self._parts: dict[str | Read, tuple[NodeGroup, ...]] = {}
        """By question, or what is read of the answers; empty: it is the same on all nodes. A group
        that named itself here, or what names it, would be left to the garbage collector, with the
        answers of all its nodes."""

    @property
    def first(self) -> NodeAnswers:
        """Return the answers of the first node."""
        return self._nodes[0]

    def differs(self, key: str) -> bool:
        """Whether the nodes have different answers to the question with this key."""
        return len(self.parts(key)) > 1

    def part(self, read: Read) -> Hashable:
        """Return what a function makes of the answers of each node. Raises DifferError if that is
        not the same for all, UnansweredError."""
        if len(self.parts(read)) > 1:
            raise DifferError(read)
        return self.first.once(read)

    def parts(self, by: str | Read | None) -> tuple[NodeGroup, ...]:
        """Return the groups with equal answers to a question, by its key, or of whose answers a
        function makes equal values; None: a group for each node. All checks share them."""
        if by is None:
            return tuple(NodeGroup((node,)) for node in self._nodes)
        if by not in self._parts:
            self._parts[by] = self._divided(by) if isinstance(by, str) else self._divided_by(by)
        return self._parts[by] or (self,)

    def answers(self, asked: dict[str, Question], limits: Mapping[str, float]) -> NodeAnswers:
        """Return what the nodes have in common, with a check's names of questions and its limits.
        Using more raises DifferError."""
        return replace(
            self.first,
            node=cast(Any, _OF_ONE_NODE),
            hello=cast(Any, _OF_ONE_NODE),
            clock=cast(Any, _OF_ONE_NODE),
            asked=asked,
            limits=limits,
            parsed=self.parsed,
            group=self,
            common=self.first.kind,
        )

    @cached_property
    def _recorded(self) -> list[Mapping[str, Answer]]:
        """What each of the nodes answered."""
        return [answers.recorded for answers in self._nodes]

    def _divided(self, key: str) -> tuple[NodeGroup, ...]:
        """Return the groups with equal answers to a question; empty: all answers are equal."""
        answers = [recorded.get(key) for recorded in self._recorded]
        if len(set(map(id, answers))) == 1:  # so it is with most questions
            return ()
        objects = {id(answer): answer for answer in answers}
        compared = {number: _compared(answer) for number, answer in objects.items()}
        by_answer: dict[object, list[NodeAnswers]] = {}
        for node, answer in zip(self._nodes, answers, strict=True):
            by_answer.setdefault(compared[id(answer)], []).append(node)
        if len(by_answer) == 1:
            return ()
        return tuple(NodeGroup(tuple(nodes)) for nodes in by_answer.values())

    def _divided_by(self, read: Read) -> tuple[NodeGroup, ...]:
        """Return the groups of whose answers a function makes equal values; empty: all."""
        values = dict(self._values(read))
        if len(set(values.values())) == 1:
            return ()
        by_value: dict[Hashable, list[NodeAnswers]] = {}
        for node in self._nodes:
            by_value.setdefault(values[node.host], []).append(node)
        return tuple(NodeGroup(tuple(nodes)) for nodes in by_value.values())

    def _values(self, read: Read) -> Iterator[tuple[str, Hashable]]:
        """Yield what a function makes of the answers of each node, once of equal answers."""
        groups = [self]
        while groups:
            group = groups.pop()
            try:
                value = group._value(read)
            except DifferError as differ:
                groups += group.parts(differ.by)
                continue
            for host in group.hosts:
                yield host, value

    def _value(self, read: Read) -> Hashable:
        """Return what a function makes of the answers of all nodes, or why there is no answer."""
        a = self.first if len(self.hosts) == 1 else self.answers({}, {})
        try:
            return a.once(read)
        except UnansweredError as error:
            return UnansweredError, error.reason, str(error)


def _compared(answer: Answer | None) -> object:
    """Return what is equal for equal answers, however long a node took for them; it may differ for
    equal ones too.

    Equal values are one object (`KnownAnswers`, `SharedAnswers`): most have many members.
    """
    if answer is None or "value" not in answer:
        return repr(answer)
    return id(answer["value"])


class AnswersByHost(dict[str, NodeAnswers]):
    """What all nodes have answered so far, or all their answers: then they are judged, and no node
    is asked any more."""

    def __init__(self, answers: Mapping[str, NodeAnswers], *, complete: bool) -> None:
        super().__init__(answers)
        self.complete = complete

    @cached_property
    def kinds(self) -> tuple[NodeGroup, ...]:
        """The nodes of each kind."""
        by_kind: dict[NodeKind, list[NodeAnswers]] = {}
        for answers in self.values():
            by_kind.setdefault(answers.kind, []).append(answers)
        return tuple(NodeGroup(tuple(nodes)) for nodes in by_kind.values())


class CheckAnswers(Mapping[str, NodeAnswers]):
    """The answers of all nodes by host, with a check's names of questions and its limits.

    Those of a node are made when they are used: most nodes are judged in their group.
    """

    def __init__(self, nodes: Nodes, rounds: Iterable[Round], limits: Mapping[str, float]) -> None:
        """`rounds`: what the check has asked."""
        self._nodes, self._rounds, self._limits = nodes, tuple(rounds), limits
        self._made: dict[str, NodeAnswers] = {}

    def __getitem__(self, host: str) -> NodeAnswers:
        if host not in self._made:
            self._made[host] = self._nodes[host].named(self._names(host), self._limits)
        return self._made[host]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def are_complete(self) -> bool:
        """Whether all answers are there, and no node is asked any more."""
        return isinstance(self._nodes, AnswersByHost) and self._nodes.complete

    def from_the_start(self) -> CheckAnswers:
        """Return the answers with the names of the questions of the first round alone."""
        return CheckAnswers(self._nodes, self._rounds[:1], self._limits)

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Nodes to judge together; none if a check asks every node something else."""
        is_same = all(_has_common(each) for each in self._rounds)
        return self._nodes.kinds if isinstance(self._nodes, AnswersByHost) and is_same else ()

    def of_group(self, group: NodeGroup) -> NodeAnswers:
        """Return what the nodes of a group have in common. Using more raises DifferError."""
        names: dict[str, Question] = {}
        for each in self._rounds:
            names.update(each.asked.get(group.hosts[0], {}) if each.common is None else each.common)
        return group.answers(names, self._limits)

    def _names(self, host: str) -> dict[str, Question]:
        names: dict[str, Question] = {}
        for each in self._rounds:
            names.update(each.asked.get(host, {}))
        return names


def _has_common(asked: Round) -> bool:
    """Return whether it is known what all nodes were asked in a round."""
    return asked.common is not None or len(set(map(id, asked.asked.values()))) <= 1


class _OfOneNode:
    """In place of what only one node has: to use it raises DifferError."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by Python itself, which expects this
            raise AttributeError(name)
        raise DifferError

    def __getitem__(self, key: object) -> NoReturn:
        raise DifferError


_OF_ONE_NODE = _OfOneNode()


def judge_alike(nodes: Nodes, work: Callable[[NodeAnswers], R]) -> list[tuple[tuple[str, ...], R]]:
    """Return what `work` makes of the answers of all nodes, those with equal answers together, in
    the order of the first node of each. `work` raises DifferError alone."""
    groups = list(nodes.groups) if isinstance(nodes, CheckAnswers) else []
    if not groups:
        return [((host,), work(a)) for host, a in nodes.items()]
    assert isinstance(nodes, CheckAnswers)
    found: list[tuple[tuple[str, ...], R]] = []
    while groups:
        group = groups.pop()
        if len(group.hosts) == 1:
            found.append((group.hosts, work(nodes[group.hosts[0]])))
            continue
        try:
            found.append((group.hosts, work(nodes.of_group(group))))
        except DifferError as differ:
            if differ.by is None:
                found += [((host,), work(nodes[host])) for host in group.hosts]
            else:
                groups += group.parts(differ.by)
    by_first = {hosts[0]: (hosts, result) for hosts, result in found}
    return [by_first[host] for host in nodes if host in by_first]


def by_host(nodes: Nodes, work: Callable[[NodeAnswers], R]) -> dict[str, R]:
    """Return what `work` makes of the answers of each node; see `judge_alike`."""
    found = {host: result for hosts, result in judge_alike(nodes, work) for host in hosts}
    return {host: found[host] for host in nodes}
