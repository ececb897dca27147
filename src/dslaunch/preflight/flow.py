"""The flow of a check: a generator that yields questions, receives the answers, and returns what is
to be said.

While the nodes are asked it runs from answer to answer, in step with the flows of other checks.
Recorded answers are judged by running it again. What it returns is best a generator: only a judge
looks into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Generic, TypeVar

from dslaunch.preflight.check import (
    Asked,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Round,
    UnansweredError,
)

NodeFlow = Generator[Asked, NodeAnswers, Iterable[Finding]]
"""The flow of a check on one node by itself."""
MOST_FINDINGS = 200
"""Of one check on one node by itself."""
FAULT = "the check itself failed"
"""How the finding begins of a check that raised an exception: one of a third party, or a bug."""

Q = TypeVar("Q")
A = TypeVar("A")


class RunningFlow(Generic[Q, A]):
    """How far a generator of questions has come."""

    def __init__(self, flow: Generator[Q, A, Iterable[Finding]]) -> None:
        self.pending: Q | None = None
        """What is to be asked next; None: it has ended."""
        self._findings: Iterable[Finding] = ()
        self._flow = flow
        self._advance(lambda: next(flow))

    def said(self) -> Iterable[Finding]:
        """Return what the flow returned; nothing before it has ended."""
        return self._findings

    def answered(self, answers: A) -> None:
        """Go on with the answers to what was pending."""
        self._advance(lambda: self._flow.send(answers))

    def _advance(self, go_on: Callable[[], Q]) -> None:
        self.pending = None  # an exception ends it too
        try:
            self.pending = go_on()
        except StopIteration as end:
            self._findings = end.value


def said(flow: Callable[[Nodes], Flow], nodes: Nodes) -> Iterable[Finding]:
    """Run a flow through with answers that are all there."""
    progress = RunningFlow(flow(nodes))
    while progress.pending is not None:
        progress.answered(nodes)
    return progress.said()


def each(of: Callable[[NodeAnswers], NodeFlow]) -> Callable[[Nodes], Flow]:
    """Return a flow that runs one of its own on each node."""

    def flow(nodes: Nodes) -> Flow:
        flows: dict[str, RunningFlow[Asked, NodeAnswers]] = {}
        errors: dict[str, Exception] = {}
        for host, a in nodes.items():
            with _kept(errors, host):
                flows[host] = RunningFlow(of(a))
        while asked := _pending(flows, nodes):
            nodes = yield Round(asked)
            for host in asked.keys() & nodes.keys():
                with _kept(errors, host):
                    flows[host].answered(nodes[host])
        return _of_all(nodes, flows, errors)

    return flow


def _pending(
    flows: Mapping[str, RunningFlow[Asked, NodeAnswers]], nodes: Nodes
) -> dict[str, Asked]:
    return {
        host: flow.pending
        for host, flow in flows.items()
        if host in nodes and flow.pending is not None
    }


def _of_all(
    nodes: Nodes, flows: dict[str, RunningFlow[Asked, NodeAnswers]], errors: dict[str, Exception]
) -> Iterator[Finding]:
    for host in nodes:
        if host in errors:
            yield replace(unjudged(errors[host]), hosts=(host,))
        else:
            yield from of_node(host, flows[host].said)


@contextmanager
def _kept(errors: dict[str, Exception], host: str) -> Iterator[None]:
    """An exception concerns its node alone: no node may take the others with it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        errors[host] = error


def of_node(host: str, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What is said of one node by itself."""
    try:
        found = list(islice(judge(), MOST_FINDINGS))
    except Exception as error:  # noqa: BLE001 - no check may take the others with it
        found = [unjudged(error)]
    return [replace(finding, hosts=(host,)) for finding in found]


def unjudged(error: Exception) -> Finding:
    """What is said where a check raised an exception."""
    if isinstance(error, UnansweredError):
        return Finding("unknown", str(error))
    return Finding("unknown", f"{FAULT}: {type(error).__name__}")
