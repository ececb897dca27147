"""The flow of a check: a generator that yields questions, receives the answers, and returns the
findings.

While the nodes are asked it runs from answer to answer, in step with the flows of other checks.
Recorded answers are judged by running it again. Let it return a generator: only a judge iterates
over the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Generic, TypeVar

from dslaunch.preflight.alike import CheckAnswers, judge_alike
from dslaunch.preflight.check import (
    LEVELS,
    Asked,
    AskedOfAll,
    Check,
    DifferError,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.registry import described, place_of

Ask = Callable[[Scope], AskedOfAll]
"""The questions that all nodes are asked in the first round."""
NodeFlow = Generator[Asked, NodeAnswers, Iterable[Finding]]
"""The flow of a check on one node by itself, after the first round."""
NodeJudge = Callable[[NodeAnswers], Iterable[Finding]]
Compare = Callable[[Nodes], Iterable[Finding]]
MOST_FINDINGS = 200
"""Of one check on one node by itself."""
FAULT = "the check itself failed"
"""How the finding begins of a check that raised an exception: one of a third party, or a bug."""

Q = TypeVar("Q")
A = TypeVar("A")


# ---------------------------------------------------------------- flows of simple checks


def judged(
    judge: NodeJudge, ask: Ask | None = None, *, fine: str = "", compare: Compare | None = None
) -> Callable[[Scope], Flow]:
    """Return a flow that asks all nodes, and judges each by itself.

    `fine`: what is found on a node for which `judge` returns nothing.
    `compare`: further findings, from the answers of all nodes; they name their hosts.
    """

    def flow(scope: Scope) -> Flow:
        nodes = yield Round.of_all(scope, ask(scope) if ask else {})
        return _with_comparison(of_nodes(nodes, judge, fine=fine), nodes, compare)

    return flow


def compared(compare: Compare, ask: Ask | None = None) -> Callable[[Scope], Flow]:
    """Return a flow that asks all nodes, and compares their answers."""

    def flow(scope: Scope) -> Flow:
        nodes = yield Round.of_all(scope, ask(scope) if ask else {})
        return compare(nodes)

    return flow


def each(
    of: Callable[[NodeAnswers], NodeFlow],
    ask: Ask | None = None,
    *,
    fine: str = "",
    compare: Compare | None = None,
) -> Callable[[Scope], Flow]:
    """Return a flow that asks all nodes, then runs a separate flow on each; see `judged`."""

    def flow(scope: Scope) -> Flow:
        nodes = yield Round.of_all(scope, ask(scope) if ask else {})
        rounds = 0
        while asked := _asked_next(nodes, of, rounds):
            nodes = yield Round(asked)
            rounds += 1
        return _with_comparison(with_fine(_of_flows(nodes, of), nodes, fine), nodes, compare)

    return flow


def of_nodes(nodes: Nodes, judge: NodeJudge, *, fine: str = "") -> Iterator[Finding]:
    """Yield what is found on each node by itself; an exception concerns its node alone."""
    found = judge_alike(nodes, lambda a: _of_node(partial(judge, a)))
    yield from with_fine(together(nodes, found), nodes, fine)


def with_fine(found: Iterable[Finding], nodes: Nodes, fine: str) -> Iterator[Finding]:
    """Yield findings, and one that passes for the nodes that these do not name."""
    named: set[str] = set()
    for finding in found:
        named.update(finding.hosts)
        yield finding
    if fine and len(named) < len(nodes):
        rest = tuple(host for host in nodes if host not in named)
        yield Finding("pass", fine, hosts=rest)


def _with_comparison(
    found: Iterable[Finding], nodes: Nodes, compare: Compare | None
) -> Iterator[Finding]:
    yield from found
    if compare is not None:
        yield from of_comparison(nodes, compare)


def of_comparison(nodes: Nodes, compare: Compare) -> list[Finding]:
    """Return what is found when the nodes are compared."""
    if not nodes:
        return []
    try:
        return findings(compare(nodes))
    except Exception as error:  # noqa: BLE001 - no check may take the others with it
        return [unjudged(error).of(*nodes)]


def _of_flows(nodes: Nodes, of: Callable[[NodeAnswers], NodeFlow]) -> Iterator[Finding]:
    """Yield what the flows of nodes find, each run from its beginning."""
    yield from together(nodes, judge_alike(_from_the_start(nodes), partial(_alone, of)))


def _asked_next(
    nodes: Nodes, of: Callable[[NodeAnswers], NodeFlow], rounds: int
) -> dict[str, Asked]:
    """Return what the flow of each node asks after so many rounds; those that ask nothing more are
    left out. Nodes with equal answers are asked the same, so the flow of one of them is run."""
    if isinstance(nodes, CheckAnswers) and nodes.are_complete:
        return {}
    pending = judge_alike(_from_the_start(nodes), partial(_pending, of, rounds))
    return {host: asked for hosts, asked in pending if asked is not None for host in hosts}


def _pending(of: Callable[[NodeAnswers], NodeFlow], rounds: int, a: NodeAnswers) -> Asked | None:
    """Return what the flow of a node asks after so many rounds, run from its beginning; None: it
    has ended. If it raises an exception, its findings will say so."""
    try:
        flow = RunningFlow(of(a))
        for _ in range(rounds):
            if flow.pending is not None:
                a.asked.update(flow.pending)
                flow.answered(a)
    except DifferError:
        raise  # not by the check: its nodes are to be asked in smaller groups
    except Exception:  # noqa: BLE001 - see above
        return None
    return flow.pending


def _from_the_start(nodes: Nodes) -> Nodes:
    """Return the answers with the questions of the first round alone: the flows of nodes ask the
    others themselves."""
    return nodes.from_the_start() if isinstance(nodes, CheckAnswers) else nodes


def _alone(of: Callable[[NodeAnswers], NodeFlow], a: NodeAnswers) -> list[Finding]:
    """Return what the flow of a node finds whose answers are all there."""

    def run() -> Iterable[Finding]:
        flow = RunningFlow(of(a))
        while flow.pending is not None:
            a.asked.update(flow.pending)
            flow.answered(a)
        return flow.findings()

    return _of_node(run)


def together(
    nodes: Nodes, found: Iterable[tuple[tuple[str, ...], list[Finding]]]
) -> Iterator[Finding]:
    """Yield the findings of single nodes and of groups, equal ones once with all of their nodes, in
    the order of the nodes."""
    groups: dict[Finding, list[tuple[str, ...]]] = {}
    for hosts, own in found:
        for finding in own:
            groups.setdefault(finding, []).append(hosts)
    for finding, several in groups.items():
        hosts = several[0] if len(several) == 1 else _in_order(nodes, several)
        yield finding.of(*hosts)


def _in_order(nodes: Nodes, groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the nodes of several groups in the order of all nodes."""
    named = set(chain.from_iterable(groups))
    return tuple(host for host in nodes if host in named)


def _of_node(judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what is found on one node by itself; an exception concerns this node alone."""
    try:
        return findings(islice(judge(), MOST_FINDINGS))
    except DifferError:
        raise  # not by the check: its nodes are to be judged in smaller groups
    except Exception as error:  # noqa: BLE001 - no check may take the others with it
        return [unjudged(error)]


def findings(said: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a check. Raises TypeError for a value that is not a finding."""
    found = list(said)
    for finding in found:
        if not _is_finding(finding):
            raise TypeError(f"{finding!r:.80} is not a Finding")
    return found


def _is_finding(said: object) -> bool:
    """Return whether a value, which may be a plugin's, is a finding that can be shown."""
    if not isinstance(said, Finding) or said.level not in LEVELS:
        return False
    return (
        isinstance(said.found, str)
        and isinstance(said.expected, str)
        and isinstance(said.fix, str)
        and isinstance(said.see, str)
    )


def unjudged(error: Exception) -> Finding:
    """Return the finding of a check that raised an exception."""
    if isinstance(error, UnansweredError):
        return Finding("unknown", str(error))
    return Finding("unknown", f"{FAULT}: {described(error)} ({place_of(error)})")


# ---------------------------------------------------------------- a flow that runs


class RunningFlow(Generic[Q, A]):
    """How far a generator of questions has come."""

    def __init__(self, flow: Generator[Q, A, Iterable[Finding]]) -> None:
        self.pending: Q | None = None
        """What is to be asked next; None: it has ended."""
        self._findings: Iterable[Finding] = ()
        self._flow = flow
        self._advance(lambda: next(flow))

    def findings(self) -> Iterable[Finding]:
        """Return what the flow returned; nothing before it has ended."""
        return self._findings

    def answered(self, answers: A) -> None:
        """Continue with the answers to what was pending."""
        self._advance(lambda: self._flow.send(answers))

    def _advance(self, go_on: Callable[[], Q]) -> None:
        self.pending = None  # an exception ends it too
        try:
            self.pending = go_on()
        except StopIteration as end:
            self._findings = end.value


class RunningCheck:
    """How far the flow of a check has come, and under which names it has asked its questions."""

    def __init__(self, name: str, check: Check, scope: Scope) -> None:
        """Raise what the check raises before its first questions."""
        self.name = name
        own_limits = dict(scope.cluster.preflight.limits).get(name, ())
        self._limits = {**check.limits, **dict(own_limits)}
        self._flow = RunningFlow(check.flow(scope))
        self._rounds: list[Round] = []
        """What it has asked."""
        self._note_round()

    @property
    def pending(self) -> Round | None:
        """What is to be asked next; None: the flow has ended."""
        return self._flow.pending

    def answered(self, nodes: Nodes) -> None:
        """Continue with all that the nodes have answered so far. Raise what the check raises."""
        self._flow.answered(self.named(nodes))
        self._note_round()
        if self.pending is not None and (self.pending.here or self.pending.last):
            raise ValueError("`here` and `last` belong to the first round")

    def named(self, nodes: Nodes) -> Nodes:
        """Return the nodes' answers with the check's names of questions, and its limits."""
        return CheckAnswers(nodes, self._rounds, self._limits)

    def findings(self) -> Iterable[Finding]:
        """Return the findings; nothing before the flow has ended."""
        return self._flow.findings()

    def _note_round(self) -> None:
        if self.pending is not None:
            self._rounds.append(self.pending)


def findings_of(name: str, check: Check, scope: Scope, nodes: Nodes) -> list[Finding]:
    """Run a check through with answers that are all there. Raise what it raises before its first
    questions."""
    if not nodes:
        return []
    running = RunningCheck(name, check, scope)
    try:
        while running.pending is not None:
            running.answered(nodes)
        return findings(running.findings())
    except Exception as error:  # noqa: BLE001 - no check may take the others with it
        return [unjudged(error).of(*nodes)]
