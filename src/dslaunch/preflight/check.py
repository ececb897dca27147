"""What a check is: texts, and a flow that asks nodes and judges their answers."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.cluster.model import Cluster, Node, Placement
from dslaunch.json_text import json_text
from dslaunch.launch.job import Job
from dslaunch.preflight.unanswered import UnansweredError as UnansweredError
from dslaunch.preflight.unanswered import UnansweredReason, reason_of
from dslaunch.pysource.imports import Imports

if TYPE_CHECKING:
    from dslaunch.protocol.survey import Answer, Identity

Level = Literal["fail", "warn", "unknown", "info", "skip", "pass"]
"""`unknown`: it was not answered, and is never shown as passed."""
LEVELS: tuple[Level, ...] = ("fail", "warn", "unknown", "info", "skip", "pass")
"""The worst first."""
Tier = Literal["gate", "static", "deep"]
TIERS: tuple[Tier, ...] = ("gate", "static", "deep")
"""`gate`: before every run; `static`: all that needs no GPU work; `deep`: measures, for minutes."""


QUESTION_TIMEOUT = 10.0
"""Seconds that a question may take on a node if it does not say."""


class Question(Struct, frozen=True, dict=True):
    """Asked of a node; see `node/questions.py` for the kinds. Equal ones are asked once."""

    kind: str
    argument: Any = None
    """Fit for JSON."""
    timeout: float = QUESTION_TIMEOUT
    """Seconds that it may take on the node."""
    text: str | Callable[[str], str] = ""
    """What the program reads, or returns that for a host: nodes whose questions differ in this
    alone are judged together. No part of the key, so that what was recorded is found by versions of
    dslaunch that send another text."""

    @cached_property
    def key(self) -> str:
        """The name under which its answer is recorded. Looked up for every node, and made once."""
        return f"{self.kind} {json_text(self.argument, sort_keys=True)}"

    def spelt(self, host: str) -> dict[str, Any]:
        """Return it as a node is asked, in the form of `node/survey.py`. Nodes that are asked the
        same have one object."""
        if callable(self.text):
            return {**self._spelt_alike, "text": self.text(host)}
        return self._spelt_alike

    @cached_property
    def _spelt_alike(self) -> dict[str, Any]:
        """What all nodes are asked."""
        return {
            "kind": self.kind,
            "argument": self.argument,
            "timeout": self.timeout,
            "text": self.text,
        }


Asked = Mapping[str, Question]
"""Questions by the names that a check gives them."""


class QuestionPerNode(Struct, frozen=True):
    """A question with another argument for each node."""

    of: Mapping[str, Question]
    """By host."""


AskedOfAll = Mapping[str, Question | QuestionPerNode]
"""Questions to all nodes, by the names that a check gives them."""


class Scope(Struct, frozen=True, dict=True):
    """What is checked, and what the nodes are to be fit for."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    job: Job = field(default_factory=lambda: Job(""))
    """What is to run, with the variables that it has; without a program: nothing certain."""
    purposes: frozenset[str] = frozenset()
    """What a job needs beside, such as `zero-infinity`; see `PURPOSES`."""
    directories: tuple[str, ...] = ()
    """The working directory, and where checkpoints go if that is another."""
    root: str = ""
    """The nodes' directory that holds the job's files."""
    files: tuple[tuple[str, str], ...] = ()
    """The job's files below it, with their SHA-256 on this machine; empty for a file that is not on
    this machine."""
    named: frozenset[str] = frozenset()
    """Checks requested by name."""
    token: str = "0"
    """New for each preflight: names marks and proves who answers at a port."""
    placements: tuple[Placement, ...] = ()
    """Where the job's ranks are; empty: on all slots of the nodes."""
    imports: Imports = field(default_factory=Imports)
    """What the job's script imports."""

    @cached_property
    def made(self) -> dict[Callable[..., Any], Any]:
        """The results of `once`."""
        return {}

    def once(self, make: Callable[[Scope], T]) -> T:
        """Return what a function makes of the scope; it is called once. For what takes time in
        proportion to the nodes and is needed for each of them."""
        if make not in self.made:
            self.made[make] = make(self)
        found: T = self.made[make]
        return found

    @property
    def launcher(self) -> str:
        """The job's launcher."""
        return self.job.launcher

    def by_hand(self, node: Node) -> str:
        """The command with which a person sees whether a node can be reached."""
        if self.once(_by_steps):
            return f"srun --overlap --nodes=1 --nodelist={node.host} true"
        port = f"-p {node.port} " if node.port else ""
        user = f"{node.user}@" if node.user else ""
        return f"ssh {port}{user}{node.host} true"


def _by_steps(scope: Scope) -> bool:
    return scope.cluster.by_steps


PURPOSES = {
    "zero-infinity": "parameters or optimizer states on local NVMe disks",
    "offload": "optimizer states in host memory",
    "mpi": "a launcher that connects from node to node by SSH",
}


T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
Read = Callable[["NodeAnswers"], Hashable]
"""Makes a value of answers, which it looks up by their questions: checks name these differently."""


class DifferError(Exception):
    """A check reads something in which nodes differ that are judged together."""

    def __init__(self, by: str | Read | None = None) -> None:
        """`by`: the key of a question to which they have different answers, or a function that
        makes different values of their answers; None: what only one node has, such as a name."""
        super().__init__(by)
        self.by = by


class AnswersOfGroup(Protocol):
    """What several nodes have answered that are judged together."""

    def differs(self, key: str) -> bool:
        """Return whether their answers to a question differ, by its key."""
        ...

    def part(self, read: Read) -> Any:
        """Return what a function makes of the answers of each of them. Raises DifferError if that
        is not the same for all, UnansweredError."""
        ...


class NodeKind(Struct, frozen=True):
    """What most nodes have in common besides their answers."""

    slots: tuple[int, ...]
    python: str | None
    activate: str | None
    uid: int
    """As whom we run on it."""
    umask: int
    cores: int
    kernel: str
    """The release of its Linux; empty: not known."""
    noise: str
    """What the login shell printed before anything was asked."""

    @classmethod
    def of(cls, node: Node, hello: Identity, noise: str) -> NodeKind:
        """Return the kind of a node."""
        return cls(
            slots=node.slots,
            python=node.python,
            activate=node.activate,
            uid=hello["uid"],
            umask=hello["umask"],
            cores=hello["cores"],
            kernel=hello.get("kernel", ""),
            noise=noise,
        )


_NONE: Mapping[str, Any] = MappingProxyType({})
"""One object for all nodes."""


class NodeAnswers(Struct):
    """What one node answered to one check's questions, or what several have in common. It is not
    changed, and only not frozen since that takes five times as long to make, which counts with all
    checks on thousands of nodes.

    Of several nodes, to read more than they have in common raises DifferError; see `alike`.
    """

    node: Node
    scope: Scope
    asked: MutableMapping[str, Question]
    """By the names that the check gives them; added to while it asks."""
    recorded: Mapping[str, Answer]
    """Question key -> its value, of the type of its kind in `protocol/survey.py`, or an error."""
    hello: Identity
    """Who the node is."""
    clock: tuple[float, float] | None = None
    """How far its clock is ahead of ours, and by how much that may be wrong. Seconds."""
    limits: Mapping[str, float] = _NONE
    here: Mapping[str, Answer] = _NONE
    """What this machine answered itself, in the form of `recorded`."""
    noise: str = ""
    """What the login shell printed before anything was asked."""
    parsed: dict[Callable[..., Any], Any] = field(default_factory=dict)
    """The results of `once`; all checks of a node share them."""
    group: AnswersOfGroup | None = None
    """Of several nodes: what they have answered."""
    common: NodeKind | None = None
    """Of several nodes: their kind."""

    @property
    def kind(self) -> NodeKind:
        """What the node has in common with most others."""
        return self.common or NodeKind.of(self.node, self.hello, self.noise)

    @property
    def host(self) -> str:
        """The node's name."""
        return self.node.host

    def __getitem__(self, name: str) -> Any:
        """The answer to a question. Raises UnansweredError."""
        return self.value(self._question(name))

    def value(self, question: Question) -> Any:
        """The answer to a question. Raises UnansweredError."""
        return _value(self._answer(question), "not asked")

    def found(self, question: Question) -> Any:
        """The answer to a question; None: there is none."""
        return (self._answer(question) or _NOTHING).get("value")

    def why(self, question: Question) -> str:
        """Why a question that was asked has no answer; empty: it has, or was not asked."""
        return (self._answer(question) or _NOTHING).get("error", "")

    def reason(self, question: Question) -> UnansweredReason | None:
        """The code of `why`; None: it has an answer, or was not asked."""
        why = self.why(question)
        return reason_of(why) if why else None

    def answered(self, question: Question) -> bool:
        """Whether a question has an answer."""
        return "value" in (self._answer(question) or _NOTHING)

    def _answer(self, question: Question) -> Answer | None:
        if self.group is not None and self.group.differs(question.key):
            raise DifferError(question.key)
        return self.recorded.get(question.key)

    def has(self, name: str) -> bool:
        """Whether a question of the check has an answer."""
        return self.answered(self._question(name))

    def _question(self, name: str) -> Question:
        if self.group is not None and name not in self.asked:
            raise DifferError  # each of the nodes is asked another one
        return self.asked[name]

    def once(self, parse: Callable[[NodeAnswers], T]) -> T:
        """Return what a function makes of the node's answers; it is called once for all checks, so
        it uses no limits, which are the check's own."""
        if parse not in self.parsed:
            self.parsed[parse] = parse(self)
        found: T = self.parsed[parse]
        return found

    def part(self, read: Callable[[NodeAnswers], H]) -> H:
        """Return what a function makes of the node's answers, such as one column of a table, as
        `once` does. Nodes for which this is equal are judged together, however else their answers
        differ. Raises UnansweredError."""
        if self.group is None:
            return self.once(read)
        found: H = self.group.part(read)
        return found

    def named(
        self, asked: MutableMapping[str, Question], limits: Mapping[str, float]
    ) -> NodeAnswers:
        """Return the same answers with a check's names of questions and its limits."""
        return replace(self, asked=asked, limits=limits, group=None, common=None)

    def from_here(self, question: Question) -> Any:
        """This machine's own answer to a question of `here`. Raises UnansweredError."""
        return _value(self.here.get(question.key), "not asked on this machine")


_NOTHING: Answer = {}


def _value(answer: Answer | None, not_asked: str) -> Any:
    if answer is None:
        raise UnansweredError(not_asked, UnansweredReason.NOT_ASKED)
    if "error" in answer:
        raise UnansweredError(answer["error"], reason_of(answer["error"]))
    return answer["value"]


class Finding(Struct, frozen=True):
    """What a check found on a node, or on several when they are compared."""

    level: Level
    found: str
    """What was measured: lower case, no full stop; the same words for equal nodes, so that these
    fold."""
    expected: str = ""
    fix: str = ""
    """What to do; empty: the check's own."""
    see: str = ""
    """The command that shows it on the node; empty: the check's own."""
    hosts: tuple[str, ...] = ()
    """The nodes. A comparison names them; of one node by itself they are filled in."""
    check: str = ""
    """The check's name; filled in for all findings."""
    code: str = ""
    """What was found, where a check finds what other tables have codes for; else empty."""
    of_job: bool = False
    """Whether it is about the job: no node is unfit for it."""

    def of(self, *hosts: str) -> Finding:
        """Return the same finding of these nodes."""
        return replace(self, hosts=hosts)


def passed(found: str) -> Finding:
    """All is well."""
    return Finding("pass", found)


def skipped(why: str) -> Finding:
    """The question does not arise."""
    return Finding("skip", why)


Nodes = Mapping[str, NodeAnswers]
"""Of all nodes that answered, in their order."""


NOT_ASKED_OF_NODES = frozenset({"rehearsal"})
"""Kinds of questions that the caller of a survey answers after it, for this machine."""


class Round(Struct, frozen=True):
    """Questions that nodes are asked at the same time."""

    asked: Mapping[str, Asked]
    """By host."""
    alone: bool = False
    """Asked while no other check asks anything: measurements must not be disturbed."""
    further: int = 0
    """How many such rounds of the check follow, as far as is known: for those who wait."""
    here: Asked = field(default_factory=dict)
    """Asked of the machine that dslaunch runs on, in a first round only. The answers are there
    when the findings are made; see `NodeAnswers.from_here`."""
    common: Asked | None = None
    """What all nodes are asked, if some questions are others for each node; None: not known."""
    last: Mapping[str, Asked] = field(default_factory=dict)
    """By host, in a first round only: what each node does when the survey ends for any reason, to
    leave nothing behind."""

    @classmethod
    def of_all(cls, scope: Scope, asked: AskedOfAll, *, here: Asked | None = None) -> Round:
        """Return a round in which all nodes are asked the same, but for `QuestionPerNode`."""
        own = {name: one for name, one in asked.items() if isinstance(one, QuestionPerNode)}
        # also what a plugin returns that is no question, which is found where it is checked
        same = {name: one for name, one in asked.items() if not isinstance(one, QuestionPerNode)}
        hosts = scope.once(_hosts)
        by_host: Mapping[str, Asked] = _SameForAll(hosts, same)
        if own:
            by_host = {
                host: same | {name: one.of[host] for name, one in own.items()} for host in hosts
            }
        return cls(by_host, common=same, here=here or {})


class _SameForAll(Mapping[str, Asked]):
    """What all nodes are asked, by host. A dictionary for each check would take 0.4 KiB for each
    node."""

    __slots__ = ("_asked", "_hosts")

    def __init__(self, hosts: Mapping[str, None], asked: Asked) -> None:
        self._hosts, self._asked = hosts, asked

    def __getitem__(self, host: str) -> Asked:
        self._hosts[host]  # raises KeyError
        return self._asked

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)


def _hosts(scope: Scope) -> dict[str, None]:
    return dict.fromkeys(node.host for node in scope.nodes)


Flow = Generator[Round, Nodes, Iterable[Finding]]
"""Yields questions, receives what the nodes have answered so far, and returns the findings."""


class Check(Struct, frozen=True, kw_only=True):
    """One thing to verify. Its name is its module's, with `.` for `_`, or its row's."""

    title: str
    """What holds where the check passes; under 60 characters."""
    tier: Tier = "static"
    why: str
    """What happens to a training where it fails."""
    fix: str
    see: str
    """A command that shows the same on the node."""
    source: str
    flow: Callable[[Scope], Flow]
    """What is asked, and what follows from the answers. `dslaunch.preflight.flow` and
    `dslaunch.preflight.comparison` make the flows of simple checks."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Thresholds that a cluster file may set, with their units in `limits_mean`."""
    limits_mean: str = ""

    def left_out(self, why: str) -> Check:
        """Return a check that asks nothing, and is skipped on all nodes for this reason."""

        def flow(scope: Scope) -> Flow:
            nodes = yield Round.of_all(scope, {})
            return [Finding("skip", why, hosts=tuple(nodes))]

        return replace(self, flow=flow)
