"""How fast TCP is between the nodes, in both directions of every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

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
from dslaunch.preflight.checks._machine import address
from dslaunch.preflight.checks._measure import (
    SLOW,
    SLOW_MEANS,
    rate_of,
    shifts,
    slow,
    span,
    speed,
)
from dslaunch.preflight.checks.net_mesh import ask, port

ROUNDS = 3
"""In each, every node sends to one other and receives from one other: no link carries two."""
BYTES = 256 << 20
SECONDS = 2.0
Pair = tuple[str, str]
"""A sender and its receiver."""
Rates = dict[Pair, float]


def _partners(scope: Scope) -> list[dict[str, str]]:
    """To whom each node sends, round by round; nodes that do not answer keep their place."""
    hosts = [node.host for node in scope.nodes]
    steps = shifts(len(hosts), ROUNDS)
    return [{h: hosts[(at + step) % len(hosts)] for at, h in enumerate(hosts)} for step in steps]


def _question(nodes: Nodes, host: str, to: str) -> Question | None:
    """None: one of the two cannot take part."""
    there = nodes.get(to)
    if host not in nodes or there is None:
        return None
    where, held = address(there), port(there)
    if where is None or held is None:
        return None
    told = {"target": [where, held], "token": there.scope.token, "bytes": BYTES, "seconds": SECONDS}
    return Question("send_rate", told, 3 * SECONDS + 5)


def _questions(nodes: Nodes, partners: Mapping[str, str]) -> dict[Pair, Question]:
    """Return what the nodes are asked in a round, without those that cannot take part."""
    asked = {pair: _question(nodes, *pair) for pair in partners.items()}
    return {pair: question for pair, question in asked.items() if question is not None}


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, ask(scope))
    partners = _partners(scope)
    sent: dict[Pair, Question] = {}
    for number, told in enumerate(partners, 1):
        questions = _questions(nodes, told)
        asked = {host: {f"send{number}": question} for (host, _), question in questions.items()}
        nodes = yield Round(asked, alone=True, further=len(partners) - number)
        sent |= questions
    return _compare(nodes, sent)


def measured(nodes: Nodes) -> tuple[Rates, dict[Pair, str]]:
    """Bytes per second by sender and receiver; and why there are none."""
    partners = _partners(next(iter(nodes.values())).scope)
    sent = {
        pair: question for told in partners for pair, question in _questions(nodes, told).items()
    }
    return _rates(nodes, sent)


def _rates(nodes: Nodes, sent: Mapping[Pair, Question]) -> tuple[Rates, dict[Pair, str]]:
    rates: Rates = {}
    errors: dict[Pair, str] = {}
    for pair, question in sent.items():
        try:
            rates[pair] = rate_of(nodes[pair[0]], question)
        except UnansweredError as error:
            errors[pair] = str(error)
    return rates, errors


def _compare(nodes: Nodes, sent: Mapping[Pair, Question]) -> Iterator[Finding]:
    if len(next(iter(nodes.values())).scope.nodes) < 2:
        yield Finding("skip", "one node", hosts=tuple(nodes))
        return
    rates, errors = _rates(nodes, sent)
    for (host, to), why in errors.items():
        yield Finding("unknown", f"no data sent to {to}: {why.lower()}", hosts=(host,))
    taking_part = {host for pair in sent for host in pair}
    left_out = tuple(host for host in nodes if host not in taking_part)
    yield Finding("unknown", "not reached by the other nodes", hosts=left_out)
    if rates:
        yield from _judge(rates, next(iter(nodes.values())))


def _judge(rates: Rates, a: NodeAnswers) -> Iterator[Finding]:
    """A node is slow if even its best figure in one direction is: its partners are then not."""
    bests = [("sends", _best(rates, 0)), ("receives", _best(rates, 1))]
    middle, bad = median(rate for _, best in bests for rate in best.values()), set()
    expected = f"at least {speed(a.limits['warn'] * middle)}; the median is {speed(middle)}"
    for host in dict.fromkeys(host for _, best in bests for host in best):
        own = {word: best[host] for word, best in bests if host in best}
        levels = [level for _, level in slow(own, a.limits, middle)]
        if levels and len(bests[0][1]) > 2:  # of two it cannot be said which one is slow
            bad.add(host)
            level: Level = "fail" if "fail" in levels else "warn"
            found = ", ".join(f"{word} {speed(rate)}" for word, rate in own.items())
            yield Finding(level, f"{found} at best", expected, hosts=(host,))
    good = {pair: rate for pair, rate in rates.items() if not bad & set(pair)}
    for pair, level in _slow_pairs(good, a.limits, middle):
        found = f"{speed(good.pop(pair))} from {pair[0]} to {pair[1]}"
        bad |= set(pair)
        yield Finding(level, found, expected, hosts=pair)
    fine = tuple(host for host in dict(bests)["sends"] if host not in bad)
    if good and fine:
        yield Finding("pass", f"{span(good.values())} between nodes", hosts=fine)


def _best(rates: Rates, end: int) -> dict[str, float]:
    """Each node's best figure at one end."""
    best: dict[str, float] = {}
    for pair, rate in rates.items():
        best[pair[end]] = max(rate, best.get(pair[end], 0.0))
    return best


def _slow_pairs(
    rates: Rates, limit: Mapping[str, float], middle: float
) -> Iterator[tuple[Pair, Level]]:
    """Pairs that no slow node explains."""
    named = {f"{host} {to}": (host, to) for host, to in rates}
    for name, level in slow({name: rates[pair] for name, pair in named.items()}, limit, middle):
        yield named[name], level


CHECK = Check(
    title="TCP bandwidth is uniform",
    tier="deep",
    why=(
        "All ranks wait for the slowest link: one port that fell back to 1 Gb/s, or "
        "one cable with errors, slows down the whole training."
    ),
    fix=(
        "check speed and errors with `ethtool INTERFACE`, and limits with `tc "
        "qdisc`; try another cable or switch port"
    ),
    see="iperf3 -s on one node, iperf3 -c NODE on another",
    source="own measurement: one TCP stream per direction, 256 MiB or 2 s",
    flow=_flow,
    limits=SLOW,
    limits_mean=SLOW_MEANS,
)
