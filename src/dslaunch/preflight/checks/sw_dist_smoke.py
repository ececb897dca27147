"""A small job of PyTorch over all nodes: do the ranks meet, is all-reduce right, how fast is it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.preflight.check import (
    Check,
    Finding,
    Flow,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._machine import INTERFACES, address, interface_of, resolve
from dslaunch.preflight.checks._measure import (
    SLOW,
    SLOW_MEANS,
    limits,
    shifts,
    slow_findings,
    span,
    speed,
)
from dslaunch.preflight.unanswered import CallFailure, UnansweredReason, reason_of
from dslaunch.protocol import programs
from dslaunch.protocol.programs import JOB_RESULT, TORCH, Torch
from dslaunch.protocol.survey import Tried
from dslaunch.protocol.values import InvalidAnswer, Model

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NAME = "sw.dist-smoke"
LIMITS: Mapping[str, float] = {**SLOW, "seconds": 60}
LOOK = 60.0
"""Seconds for PyTorch's first import from a busy file server."""
ROUNDS = 3
SIZES = {"gloo": (4 << 20, 2), "nccl": (256 << 20, 5)}
"""Bytes, and how often a figure is measured."""


def _question(a: NodeAnswers, told: Mapping[str, Any], timeout: float) -> Question:
    """Run it as the node runs a job: interpreter, activation, variables, interface."""
    env = {"OMP_NUM_THREADS": "1", **job.variables(a, interface_of(a))}
    command = job.python(a, "smoke", told)
    return job.run(a, command, env, what={"what": "smoke", **told}, seconds=timeout)


class SmokeJob(Struct, frozen=True):
    """Who takes part, and with what."""

    hosts: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    backend: str
    meet: tuple[str, int]
    rounds: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def world(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks))

    def asked(self, a: NodeAnswers) -> Question:
        """A node's part."""
        seconds = limits(a.scope, NAME, LIMITS)["seconds"]
        size, repeat = SIZES[self.backend]
        told = {
            "ranks": self.ranks[self.hosts.index(a.host)],
            "nodes": self.ranks,
            "rounds": self.rounds,
            "master": self.meet,
            "backend": self.backend,
            "size": size,
            "repeat": repeat,
            "seconds": seconds,
            "timeout": seconds / 2,
        }
        return _question(a, told, seconds + 5)


def _reported(a: NodeAnswers, question: Question, adapter: TypeAdapter[Model]) -> Model:
    """Return what the program reported. Raises UnansweredError."""
    done: Tried = a.value(question)
    last = done["err"].strip().rpartition("\n")[2][:200]
    if done["code"]:
        raise UnansweredError(last or f"the program ended with {done['code']}", reason_of(last))
    try:
        return programs.reported(adapter, done["report"])
    except InvalidAnswer as error:
        raise UnansweredError(last or f"the program reported no figures ({error})") from None


def _seen(a: NodeAnswers) -> Torch:
    """What a node has of PyTorch. Raises UnansweredError."""
    return _reported(a, _question(a, {}, LOOK), TORCH)


def _without(nodes: Nodes) -> dict[str, CallFailure]:
    """Who cannot take part, and why."""
    why = {}
    for host, a in nodes.items():
        try:
            found = _seen(a)
        except UnansweredError as error:
            why[host] = CallFailure(str(error), error.reason)
            continue
        if not (found.gloo or found.nccl):
            lacks = "PyTorch was built without torch.distributed"
            why[host] = CallFailure(lacks, UnansweredReason.NOT_INSTALLED)
        elif address(a) is None:
            why[host] = CallFailure("no address that other nodes can reach")
    return why


def _job(nodes: Nodes, without: Mapping[str, CallFailure]) -> SmokeJob | None:
    """The job, of all that can take part: NCCL where every node has a GPU for it."""
    hosts = tuple(host for host in nodes if host not in without)
    if not hosts:
        return None
    seen = [_seen(nodes[host]) for host in hosts]
    fast = all(found.gpus and found.nccl for found in seen)
    counts = [1] * len(hosts)
    if fast:
        counts = [
            max(1, min(f.gpus, len(nodes[h].node.slots))) for h, f in zip(hosts, seen, strict=True)
        ]
    starts = [sum(counts[:at]) for at in range(len(counts))]
    ranks = [tuple(range(s, s + count)) for s, count in zip(starts, counts, strict=True)]
    meet = (str(address(nodes[hosts[0]])), seen[0].port)
    backend = "nccl" if fast else "gloo"
    return SmokeJob(hosts, tuple(ranks), backend, meet, pairings(len(hosts)))


def pairings(count: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Rounds of disjoint pairs: a tournament by turning all but one round in a circle."""
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    all_rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], seats[: half - 1 : -1], strict=True)
        all_rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    steps = [0, *shifts(len(all_rounds), ROUNDS - 1)]
    return tuple(all_rounds[step] for step in steps if step < len(all_rounds) and count > 1)


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {"interfaces": INTERFACES, "resolve": resolve(scope)})
    look = {host: {"look": _question(a, {}, LOOK)} for host, a in nodes.items()}
    nodes = yield Round(look, alone=True, further=1)
    without = _without(nodes)
    job = _job(nodes, without)
    if job is not None:
        work = {host: {"work": job.asked(nodes[host])} for host in job.hosts}
        nodes = yield Round(work, alone=True)
    return _compare(nodes, job, without)


class SmokeResult(Struct, frozen=True):
    """What became of a node's ranks."""

    error: str = ""
    stage: str = ""
    late: bool = False
    missing: frozenset[int] = frozenset()
    sums: frozenset[float] = frozenset()
    init: float = 0.0
    single: float | None = None
    whole: float = 0.0
    pairs: Mapping[int, float] | None = None


def _part(a: NodeAnswers, job: SmokeJob) -> SmokeResult:
    """Of a node's ranks those that failed first count. Raises UnansweredError."""
    ranks = _reported(a, job.asked(a), JOB_RESULT).ranks
    first = ranks[0]
    bad = sorted((r for r in ranks if r.error is not None), key=lambda r: r.late)
    sums = (n for r in ranks for n in (r.low, r.high))
    return SmokeResult(
        error=(bad[0].error or "an error without a message") if bad else "",
        stage=(bad or ranks)[0].stage,
        late=bool(bad) and bad[0].late,
        missing=frozenset(n for r in ranks for n in r.missing),
        sums=frozenset(n for n in sums if n is not None),
        init=max(r.init for r in ranks),
        single=first.single,
        whole=first.all,
        pairs={int(at): rate for at, rate in first.pairs.items()},
    )


def _compare(
    nodes: Nodes, job: SmokeJob | None, without: Mapping[str, CallFailure]
) -> Iterator[Finding]:
    for host, why in without.items():
        level: Level = "skip" if why.reason is UnansweredReason.NOT_INSTALLED else "unknown"
        yield Finding(level, f"does not take part: {why.text}", hosts=(host,))
    if job is None:
        return
    parts: dict[str, SmokeResult] = {}
    for host in job.hosts:
        try:
            parts[host] = _part(nodes[host], job)
        except UnansweredError as error:
            yield Finding("fail", f"ranks did not exit: {error}", "an end", hosts=(host,))
    if len(parts) == len(job.hosts) and not any(part.error for part in parts.values()):
        yield from _judge(job, parts, nodes)
    else:
        yield from _failed(job, parts)


def _failed(job: SmokeJob, parts: dict[str, SmokeResult]) -> Iterator[Finding]:
    """Who did not come, or fell; those who only waited for them are no culprits."""
    absent = frozenset(rank for part in parts.values() for rank in part.missing)
    missing = [h for h, ranks in zip(job.hosts, job.ranks, strict=True) if absent & set(ranks)]
    unreached_master = job.hosts[0] if 1 < len(missing) == len(job.hosts) - 1 else ""
    if unreached_master:
        words = f"no node reaches the rendezvous at {job.meet[0]}, port {job.meet[1]}"
        yield Finding("fail", words, "all nodes joined", hosts=(unreached_master,))
        missing = [unreached_master]
    for host, part in parts.items():
        if part.error and (host in missing or not missing) and host != unreached_master:
            words = f"ranks failed in `{part.stage}`: {part.error}".rstrip(".")
            yield Finding("fail", words, "ranks that exit successfully", hosts=(host,))
    waited = tuple(h for h, part in parts.items() if h not in missing and missing)
    if waited:
        yield Finding(
            "unknown", f"rendezvous timeout: {', '.join(missing)} did not join", hosts=waited
        )


def _judge(job: SmokeJob, parts: dict[str, SmokeResult], nodes: Nodes) -> Iterator[Finding]:
    """Of a job that came to its end."""
    bad: set[str] = set()
    for host, part in parts.items():
        if part.sums != {float(job.world)}:
            bad.add(host)
            found = (
                f"all-reduce of ones returned {' and '.join(f'{n:g}' for n in sorted(part.sums))}"
            )
            yield Finding("fail", found, f"{job.world}", _WRONG, hosts=(host,))
    limit = nodes[job.hosts[0]].limits
    for finding in _slow(job, parts, limit):
        bad |= set(finding.hosts)
        yield finding
    if fine := tuple(host for host in parts if host not in bad):
        yield Finding("pass", _figures(job, parts, fine), hosts=fine)


def _slow(
    job: SmokeJob, parts: dict[str, SmokeResult], limit: Mapping[str, float]
) -> Iterator[Finding]:
    """Who is slow with every partner, or by itself."""
    best = {h: max(part.pairs.values()) for h, part in parts.items() if part.pairs}
    single = {h: part.single for h, part in parts.items() if part.single is not None}
    for rates, words in ((best, "with its best partner"), (single, "by itself")):
        if len(rates) > 2:
            yield from slow_findings(rates, limit, f"all-reduce {words} {{}}")


def _figures(job: SmokeJob, parts: dict[str, SmokeResult], hosts: tuple[str, ...]) -> str:
    words = [f"all-reduce correct: {job.world} ranks over {job.backend}"]
    words.append(f"initialized in {max(part.init for part in parts.values()):.1f} s")
    singles = [s for h in hosts if (s := parts[h].single) is not None]
    mine = {job.hosts.index(host) for host in hosts}
    partners = [(parts[host].pairs or {}).items() for host in hosts]
    pairs = [rate for rates in partners for partner, rate in rates if partner in mine]
    if singles:
        words.append(f"each node alone {span(singles)}")
    if pairs:
        words.append(f"pairs of nodes {span(pairs)}")
    if job.world > 1:
        words.append(f"all {speed(min(p.whole for p in parts.values()))}")
    return "; ".join(words)


_WRONG = "take the node out of service: a GPU, a driver or a NIC corrupts data"
CHECK = Check(
    title="PyTorch all-reduce is correct and uniform across nodes",
    tier="deep",
    why=(
        "Tests interpreter, PyTorch, NCCL or gloo, names, ports and links together, "
        "as a training uses them. One slow node makes all wait at every step."
    ),
    fix=(
        "run the node's static checks; check its interface with `ethtool` and its "
        "GPUs with `nvidia-smi -q`; set NCCL_DEBUG=INFO in `env:` to see what NCCL "
        "does"
    ),
    see="torchrun --nnodes ... of a script with init_process_group and all_reduce",
    source="PyTorch, torch.distributed; nccl-tests, PERFORMANCE.md for the bus bandwidth",
    flow=_flow,
    limits=LIMITS,
    limits_mean=f"seconds: for the whole job; warn, fail: {SLOW_MEANS}",
)
