"""Which node of many is wired differently, and in what.

Nodes are compared aspect by aspect with what most of them have, so that a node is named for its
own difference only. What a node did not say is never held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from dslaunch.topology.layout import model, summary
from dslaunch.topology.model import Topology, distance

TOLD = 3
"""The most pairs or devices that a difference names."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A node that has something else than most nodes."""

    host: str
    aspect: str
    """`GPUs`, `GPU models`, `GPU links`, `NICs`, `GPU-NIC links`, `NIC names`, `NUMA nodes` or
    `active NVLinks`."""
    difference: str
    """What it has, and what the others have: lower case, no full stop."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What many nodes have in common and what they have not."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Each summary with the nodes that have it, the most common first."""
    odd: tuple[Odd, ...]
    undecided: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    """Aspects in which nodes differ and no value is the most common one, with the nodes' groups."""
    unread: tuple[tuple[str, str], ...]
    """Nodes whose matrix was not read whole, and why."""

    @property
    def equal(self) -> bool:
        """Whether all nodes could be compared and none differs."""
        return not (self.odd or self.undecided or self.unread)


@dataclass(frozen=True, slots=True)
class _Aspect:
    name: str
    value: Callable[[Topology], Hashable | None]
    """None: not known."""
    differ: Callable[[Topology, Topology], str]
    """Say what the first has where the second, a usual node, has something else."""
    among: str | None = None
    """The aspect that must be as usual before this one can be compared."""


def compare(by_host: Mapping[str, Topology]) -> Comparison:
    """Compare nodes; with fewer than two that could be read there is nothing odd."""
    whole = {host: t for host, t in by_host.items() if t.status == "ok"}
    odd: list[Odd] = []
    undecided: list[tuple[str, tuple[tuple[str, ...], ...]]] = []
    unusual: dict[str, set[str]] = {}
    for aspect in _ASPECTS:
        left_out = unusual.get(aspect.among or "", set())
        hosts = {host: t for host, t in whole.items() if host not in left_out}
        groups = _groups(hosts, aspect.value)
        unusual[aspect.name] = left_out | {h for group in groups[1:] for h in group}
        if len(groups) > 1 and len(groups[0]) == len(groups[1]):
            undecided.append((aspect.name, tuple(groups)))
            continue
        odd += [
            Odd(host, aspect.name, aspect.differ(hosts[host], hosts[groups[0][0]]))
            for group in groups[1:]
            for host in group
        ]
    order = list(by_host)
    odd.sort(key=lambda each: order.index(each.host))
    return Comparison(_summaries(by_host), tuple(odd), tuple(undecided), _unread(by_host))


def _groups(
    hosts: Mapping[str, Topology], value: Callable[[Topology], Hashable | None]
) -> list[tuple[str, ...]]:
    """Put hosts with equal values together, the largest group first."""
    found: dict[Hashable, list[str]] = {}
    for host, topology in hosts.items():
        if (seen := value(topology)) is not None:
            found.setdefault(seen, []).append(host)
    return sorted(map(tuple, found.values()), key=len, reverse=True)


def _summaries(by_host: Mapping[str, Topology]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for host, topology in by_host.items():
        found.setdefault(summary(topology), []).append(host)
    pairs = [(line, tuple(hosts)) for line, hosts in found.items()]
    return tuple(sorted(pairs, key=lambda pair: -len(pair[1])))


def _unread(by_host: Mapping[str, Topology]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (host, t.trouble.message if t.trouble else "read in part: " + "; ".join(t.notes[:TOLD]))
        for host, t in by_host.items()
        if t.status != "ok"
    )


def _names(topology: Topology) -> Hashable | None:
    return _all_known([gpu.name for gpu in topology.gpus])


def _all_known(values: Sequence[object]) -> Hashable | None:
    return tuple(values) if values and None not in values else None


def _gpu_pairs(topology: Topology) -> dict[tuple[str, str], str]:
    gpus = set(topology.gpu_labels)
    return {(a, b): link for a, b, link in topology.links if a in gpus and b in gpus}


def _to_nics(topology: Topology) -> dict[str, list[str]]:
    """Each GPU's links to NICs, from near to far: their order may differ from node to node."""
    return {
        gpu: sorted(
            (link for nic in topology.nics if (link := topology.link(gpu, nic.label))),
            key=distance,
        )
        for gpu in topology.gpu_labels
    }


def _pairs_differ(odd: Topology, usual: Topology) -> str:
    mine, others = _gpu_pairs(odd), _gpu_pairs(usual)
    return _several(
        [
            f"{a}-{b} is {mine.get((a, b), 'unknown')} instead of {link}"
            for (a, b), link in others.items()
            if mine.get((a, b)) != link
        ]
    )


def _nics_differ(odd: Topology, usual: Topology) -> str:
    mine, others = _to_nics(odd), _to_nics(usual)
    return _several(
        [
            f"{gpu} has {_best(mine[gpu], links)} to NICs instead of {_best(links, mine[gpu])}"
            for gpu, links in others.items()
            if mine[gpu] != links
        ]
    )


def _best(links: list[str], others: list[str]) -> str:
    """The nearest link if that is the difference, else all of them."""
    if links and others and links[0] != others[0]:
        return f"at best {links[0]}"
    return " ".join(links) or "no link"


def _each_differs(value: Callable[[Topology], Sequence[object]]) -> Callable[..., str]:
    """Name the GPUs that have another value."""

    def differ(odd: Topology, usual: Topology) -> str:
        pairs = zip(odd.gpu_labels, value(odd), value(usual), strict=False)
        return _several([f"{g} has {a} instead of {b}" for g, a, b in pairs if a != b])

    return differ


def _several(differences: list[str]) -> str:
    more = len(differences) - TOLD
    shown = "; ".join(differences[:TOLD])
    return f"{shown}; and {more} more" if more > 0 else shown


def _devices(topology: Topology) -> list[str | None]:
    return [nic.device for nic in topology.nics]


def _short_names(topology: Topology) -> list[str]:
    return [model(gpu.name or "") for gpu in topology.gpus]


def _links(topology: Topology) -> list[str | None]:
    return [f"{g.nvlinks[0]} of {g.nvlinks[1]}" if g.nvlinks else None for g in topology.gpus]


def _numa(topology: Topology) -> list[str | None]:
    return [gpu.numa for gpu in topology.gpus]


_ASPECTS = (
    _Aspect(
        "GPUs",
        lambda t: len(t.gpus),
        lambda a, b: f"{len(a.gpus)} instead of {len(b.gpus)}",
    ),
    _Aspect("GPU models", _names, _each_differs(_short_names), among="GPUs"),
    _Aspect("GPU links", lambda t: tuple(_gpu_pairs(t).items()), _pairs_differ, among="GPUs"),
    _Aspect(
        "NICs",
        lambda t: len(t.nics),
        lambda a, b: f"{len(a.nics)} instead of {len(b.nics)}",
        among="GPUs",
    ),
    _Aspect(
        "GPU-NIC links",
        lambda t: tuple((gpu, *links) for gpu, links in _to_nics(t).items()),
        _nics_differ,
        among="NICs",
    ),
    _Aspect(
        "NIC names",
        lambda t: _all_known(_devices(t)),
        lambda a, b: f"{_listed(_devices(a))} instead of {_listed(_devices(b))}",
        among="NICs",
    ),
    _Aspect("NUMA nodes", lambda t: _all_known(_numa(t)), _each_differs(_numa), among="GPUs"),
    _Aspect("active NVLinks", lambda t: _all_known(_links(t)), _each_differs(_links), among="GPUs"),
)


def _listed(names: Sequence[str | None]) -> str:
    return ",".join(name or "?" for name in names)
