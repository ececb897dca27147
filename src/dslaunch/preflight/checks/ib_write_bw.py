"""What `ib_write_bw` measures between nodes, where it is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dslaunch.preflight.check import (
    AskedOfAll,
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks import _infiniband as infiniband
from dslaunch.preflight.checks._machine import INTERFACES, address, resolve
from dslaunch.preflight.checks._measure import SLOW_MEANS, slow_findings
from dslaunch.preflight.checks.sw_dist_smoke import ROUNDS, pairings

PROGRAM = "ib_write_bw"
WHICH = Question("which", [PROGRAM])
PORT = 18515
"""The program's own; each round takes the next one."""
SECONDS = 30.0
RETRIES = 'for turn in 1 2 3 4 5; do "$@" && exit; sleep 1; done; exit 1'
"""The one that calls may be earlier than the one that listens."""
_HEAD = re.compile(r"^[ \t]*#bytes[ \t].*BW average\[(Gb/sec|MB/sec)\]", re.MULTILINE)
_UNIT = {"Gb/sec": 1e9 / 8, "MB/sec": float(1 << 20)}


def bandwidth(text: str) -> float | None:
    """Bytes per second: the average of the last row. perftest counts a MB as 2^20 bytes, and says
    its unit at the head. None: there is no figure."""
    head = _HEAD.search(text)
    if head is None:
        return None
    rows = [line.split() for line in text[head.end() :].splitlines()]
    found = [row for row in rows if 4 <= len(row) <= 5 and all(map(_number, row))]
    return float(found[-1][3]) * _UNIT[head[1]] if found else None


def _number(word: str) -> bool:
    return re.fullmatch(r"\d{1,12}(\.\d{1,12})?", word) is not None


def _ask(scope: Scope) -> AskedOfAll:
    machine: AskedOfAll = {"interfaces": INTERFACES, "resolve": resolve(scope), "which": WHICH}
    return {**machine, **infiniband.ask(scope)}


def _port(a: NodeAnswers) -> infiniband.Port | None:
    """The fastest port that is up, the first of equal ones."""
    up = [port for port in infiniband.ports(a) if port.state == "ACTIVE"] if a.has("ports") else []
    return max(up, key=lambda port: port.rate or 0.0, default=None)


def _able(nodes: Nodes) -> list[str]:
    """Who can take part."""
    return [
        host
        for host, a in nodes.items()
        if a.has("which") and a["which"][PROGRAM] and _port(a) and address(a)
    ]


def _command(a: NodeAnswers, number: int) -> list[str]:
    port = _port(a)
    assert port is not None
    where = ["-d", port.device, "-i", str(port.number), "-p", str(PORT + number)]
    return [a["which"][PROGRAM], "--report_gbits", "-F", "-D", "2", *where]


def calls(nodes: Nodes, number: int) -> dict[str, tuple[str, Question]]:
    """What each node is asked in a round, and its partner; the second of a pair calls the first."""
    hosts = _able(nodes)
    rounds = pairings(len(hosts))
    found = {}
    for one, other in rounds[number] if number < len(rounds) else ():
        serves, dials = hosts[one], hosts[other]
        argv = _command(nodes[serves], number)
        found[serves] = (dials, Question("run", {"argv": argv}, SECONDS))
        line = [*_command(nodes[dials], number), str(address(nodes[serves]))]
        argv = ["/bin/sh", "-c", RETRIES, PROGRAM, *line]
        found[dials] = (serves, Question("run", {"argv": argv}, SECONDS))
    return found


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, _ask(scope))
    count = min(ROUNDS, len(pairings(len(_able(nodes)))))
    for number in range(ROUNDS):
        named = f"write{number + 1}"
        asked = {host: {named: q} for host, (_, q) in calls(nodes, number).items()}
        nodes = yield Round(asked, alone=True, further=max(0, count - number - 1))
    return _compare(nodes)


def _rate(a: NodeAnswers, question: Question) -> float:
    """What one of a pair measured. Raises UnansweredError."""
    done = a.value(question)
    found = bandwidth(done["out"])
    if found is None or done["code"]:
        words = (done["err"].strip() or done["out"].strip()).splitlines()
        raise UnansweredError(words[-1].strip()[:200] if words else "no output")
    return found


def _compare(nodes: Nodes) -> Iterator[Finding]:
    able = _able(nodes)
    for host, a in nodes.items():
        if host not in able or len(able) < 2:
            yield Finding("skip", _lacks(a), hosts=(host,))
    rates: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    for number in range(ROUNDS):
        for host, (partner, question) in calls(nodes, number).items():
            try:
                rates[host] = [*rates.get(host, []), _rate(nodes[host], question)]
            except UnansweredError as error:
                errors[host] = f"with {partner}: {error}"
    for host, why in errors.items():
        yield Finding("unknown", f"{PROGRAM} {why}".rstrip("."), hosts=(host,))
    yield from _judge({host: max(rates[host]) for host in nodes if host in rates}, nodes)


def _lacks(a: NodeAnswers) -> str:
    if a.has("which") and not a["which"][PROGRAM]:
        return f"{PROGRAM} is not installed"
    return "no active RDMA port" if _port(a) is None else "no other node can take part"


def _judge(best: dict[str, float], nodes: Nodes) -> Iterator[Finding]:
    slow: list[Finding] = []
    if len(best) > 2:  # of two it cannot be said which one is slow
        limits = nodes[next(iter(best))].limits
        words = "RDMA write {} with its best partner"
        slow += slow_findings(best, limits, words, _span)
    yield from slow
    fine = best.keys() - {host for finding in slow for host in finding.hosts}
    if fine:
        hosts = tuple(host for host in best if host in fine)
        words = f"RDMA write {_span(best[host] for host in hosts)} between nodes"
        yield Finding("info", words, hosts=hosts)


def _span(rates: Iterable[float]) -> str:
    """As cards and switches are sold: in Gb/s."""
    values = sorted(rates)
    low, high = (round(rate * 8e-9) for rate in (values[0], values[-1]))
    return f"{low} Gb/s" if low == high else f"{low} to {high} Gb/s"


CHECK = Check(
    title="RDMA bandwidth is uniform",
    tier="deep",
    why=(
        "A cable with errors, a port at half its speed or a slow PCIe slot slows "
        "down all ranks, and NCCL reports no error."
    ),
    fix=(
        "check the port's counters with `perfquery`, its speed with `ibstat`, the "
        "NIC's PCIe link with `lspci -vv`; replace the cable"
    ),
    see=f"{PROGRAM} --report_gbits -F on one node, the same with NODE at its end on another",
    source="linux-rdma/perftest; Azure/azurehpc-health-checks, ib_write_bw",
    flow=_flow,
    limits={"warn": 0.9, "fail": 0.5},
    limits_mean=SLOW_MEANS,
)
