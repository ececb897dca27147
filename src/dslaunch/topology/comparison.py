"""Find nodes whose topology differs from most nodes, by aspect.

Each aspect is compared with the most common value, so that only nodes that differ themselves are
reported. An aspect that a node did not report is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from dslaunch.plural import first_few
from dslaunch.topology.layout import KEPT, model, summary
from dslaunch.topology.model import Topology, distance
from dslaunch.topology.notes import shown

MOST_SHOWN = 3
"""Maximum number of differences in a text."""


class Aspect(StrEnum):
    """An aspect to compare. The values are shown to users."""

    GPUS = "GPUs"
    GPU_MODELS = "GPU models"
    GPU_LINKS = "GPU links"
    NICS = "NICs"
    NIC_LINKS = "GPU-NIC links"
    NIC_NAMES = "NIC names"
    NUMA_NODES = "NUMA nodes"
    NVLINKS = "active NVLinks"


class Difference(Struct, frozen=True):
    """The value of a node, and the most common value, at one place."""

    found: str
    expected: str
    place: str = ""
    """`GPU3` or `GPU3-GPU5`; empty: the whole node."""

    @property
    def text(self) -> str:
        """Return the difference as text."""
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.found}, expected {self.expected}"


class NodeDifference(Struct, frozen=True):
    """A node that differs from most nodes in one aspect."""

    host: str
    aspect: Aspect
    differences: tuple[Difference, ...]

    @property
    def text(self) -> str:
        """Return the first differences as text: lower case, no full stop."""
        return "; ".join(first_few([each.text for each in self.differences], MOST_SHOWN))


INCOMPLETE = "incomplete"


class Unread(Struct, frozen=True):
    """A node that could not be compared."""

    host: str
    code: str
    """The kind of a `MatrixFailure`, or `incomplete`."""
    text: str


class Comparison(Struct, frozen=True):
    """The result of comparing nodes."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Each summary with the nodes that have it, the most common first."""
    odd: tuple[NodeDifference, ...]
    undecided: tuple[tuple[Aspect, tuple[tuple[str, ...], ...]], ...]
    """Aspects without a most common value, with the groups of nodes."""
    unread: tuple[Unread, ...]
    """Nodes whose matrix is missing or incomplete."""

    @property
    def equal(self) -> bool:
        """Return whether all nodes could be compared and none differs."""
        return not (self.odd or self.undecided or self.unread)


class _Compared(Struct, frozen=True):
    aspect: Aspect
    value: Callable[[Topology], Hashable | None]
    """None: unknown."""
    differ: Callable[[Topology, Topology], Sequence[Difference]]
    """Return the differences of the first node from the second one, a usual node."""
    among: Aspect | None = None
    """An aspect that must be equal before this one can be compared."""


def compare(by_host: Mapping[str, Topology]) -> Comparison:
    """Compare nodes; at least two must have a matrix, otherwise there are no differences."""
    whole = {host: t for host, t in by_host.items() if t.status == "ok"}
    odd: list[NodeDifference] = []
    undecided: list[tuple[Aspect, tuple[tuple[str, ...], ...]]] = []
    unusual: dict[Aspect, set[str]] = {}
    for compared in _COMPARED:
        left_out = unusual[compared.among] if compared.among is not None else set()
        hosts = {host: t for host, t in whole.items() if host not in left_out}
        groups = _groups(hosts, compared.value)
        unusual[compared.aspect] = left_out | {h for group in groups[1:] for h in group}
        if len(groups) > 1 and len(groups[0]) == len(groups[1]):
            undecided.append((compared.aspect, tuple(groups)))
            continue
        odd += [
            NodeDifference(
                host,
                compared.aspect,
                tuple(compared.differ(hosts[host], hosts[groups[0][0]])),
            )
            for group in groups[1:]
            for host in group
        ]
    positions = {host: position for position, host in enumerate(by_host)}
    odd.sort(key=lambda each: positions[each.host])
    return Comparison(_summaries(by_host), tuple(odd), tuple(undecided), _unread(by_host))


def _groups(
    hosts: Mapping[str, Topology], value: Callable[[Topology], Hashable | None]
) -> list[tuple[str, ...]]:
    """Group hosts by value, the largest group first."""
    found: dict[Hashable, list[str]] = {}
    value_of = lru_cache(KEPT)(value)
    for host, topology in hosts.items():
        if (seen := value_of(topology)) is not None:
            found.setdefault(seen, []).append(host)
    return sorted(map(tuple, found.values()), key=len, reverse=True)


def _summaries(by_host: Mapping[str, Topology]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for host, topology in by_host.items():
        found.setdefault(summary(topology), []).append(host)
    pairs = [(line, tuple(hosts)) for line, hosts in found.items()]
    return tuple(sorted(pairs, key=lambda pair: -len(pair[1])))


def _unread(by_host: Mapping[str, Topology]) -> tuple[Unread, ...]:
    found = []
    for host, topology in by_host.items():
        if topology.status == "ok":
            continue
        if topology.trouble:
            unread = Unread(host, topology.trouble.kind, topology.trouble.message)
        else:
            text = f"the matrix is incomplete: {shown(topology.notes)}"
            unread = Unread(host, INCOMPLETE, text)
        found.append(unread)
    return tuple(found)


def _names(topology: Topology) -> Hashable | None:
    return _all_known([gpu.name for gpu in topology.gpus])


def _all_known(values: Sequence[object]) -> Hashable | None:
    return tuple(values) if values and None not in values else None


def _gpu_pairs(topology: Topology) -> dict[tuple[str, str], str]:
    gpus = set(topology.gpu_labels)
    return {(a, b): link for a, b, link in topology.links if a in gpus and b in gpus}


def _to_nics(topology: Topology) -> dict[str, list[str]]:
    """Return the links of each GPU to NICs, from near to far: their order may differ per node."""
    found = {}
    for gpu in topology.gpu_labels:
        links = (topology.link(gpu, nic.label) for nic in topology.nics)
        found[gpu] = sorted(filter(None, links), key=distance)
    return found


def _pairs_differ(odd: Topology, usual: Topology) -> list[Difference]:
    mine, others = _gpu_pairs(odd), _gpu_pairs(usual)
    return [
        Difference(mine.get((a, b), "unknown"), link, place=f"{a}-{b}")
        for (a, b), link in others.items()
        if mine.get((a, b)) != link
    ]


def _nics_differ(odd: Topology, usual: Topology) -> list[Difference]:
    mine, others = _to_nics(odd), _to_nics(usual)
    return [
        Difference(_nearest_of(mine[gpu], links), _nearest_of(links, mine[gpu]), place=gpu)
        for gpu, links in others.items()
        if mine[gpu] != links
    ]


def _nearest_of(links: list[str], others: list[str]) -> str:
    """Return the nearest link if it is the difference, otherwise all links."""
    if links and others and links[0] != others[0]:
        return links[0]
    return " ".join(links) or "none"


def _each_differs(
    value: Callable[[Topology], Sequence[object]],
) -> Callable[[Topology, Topology], list[Difference]]:
    """Return a function that compares a value of each GPU."""

    def differ(odd: Topology, usual: Topology) -> list[Difference]:
        triples = zip(odd.gpu_labels, value(odd), value(usual), strict=False)
        return [Difference(str(a), str(b), place=gpu) for gpu, a, b in triples if a != b]

    return differ


def _whole_differs(
    value: Callable[[Topology], object],
) -> Callable[[Topology, Topology], list[Difference]]:
    """Return a function that compares a value of the node."""
    return lambda odd, usual: [Difference(str(value(odd)), str(value(usual)))]


def _devices(topology: Topology) -> list[str | None]:
    return [nic.device for nic in topology.nics]


def _short_names(topology: Topology) -> list[str]:
    return [model(gpu.name or "") for gpu in topology.gpus]


def _links(topology: Topology) -> list[str | None]:
    return [f"{g.nvlinks[0]} of {g.nvlinks[1]}" if g.nvlinks else None for g in topology.gpus]


def _numa(topology: Topology) -> list[str | None]:
    return [gpu.numa for gpu in topology.gpus]


def _listed(topology: Topology) -> str:
    return ",".join(name or "?" for name in _devices(topology))


_COMPARED = (
    _Compared(Aspect.GPUS, lambda t: len(t.gpus), _whole_differs(lambda t: len(t.gpus))),
    _Compared(Aspect.GPU_MODELS, _names, _each_differs(_short_names), among=Aspect.GPUS),
    _Compared(
        Aspect.GPU_LINKS,
        lambda t: tuple(_gpu_pairs(t).items()),
        _pairs_differ,
        among=Aspect.GPUS,
    ),
    _Compared(
        Aspect.NICS,
        lambda t: len(t.nics),
        _whole_differs(lambda t: len(t.nics)),
        among=Aspect.GPUS,
    ),
    _Compared(
        Aspect.NIC_LINKS,
        lambda t: tuple((gpu, *links) for gpu, links in _to_nics(t).items()),
        _nics_differ,
        among=Aspect.NICS,
    ),
    _Compared(
        Aspect.NIC_NAMES,
        lambda t: _all_known(_devices(t)),
        _whole_differs(_listed),
        among=Aspect.NICS,
    ),
    _Compared(
        Aspect.NUMA_NODES,
        lambda t: _all_known(_numa(t)),
        _each_differs(_numa),
        among=Aspect.GPUS,
    ),
    _Compared(
        Aspect.NVLINKS,
        lambda t: _all_known(_links(t)),
        _each_differs(_links),
        among=Aspect.GPUS,
    ),
)
