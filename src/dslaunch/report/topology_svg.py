"""A drawing of one machine: GPUs and NICs as boxes, links as lines that differ in stroke and label.

Color is never the only distinction, there are no external resources, and the same facts are in the
drawing's description for those who cannot see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dslaunch.report.markup import escaped
from dslaunch.topology.layout import DIRECT, islands, linked, mesh, model, nearest, summary
from dslaunch.topology.model import Gpu, Nic, Topology

BOX, HIGH, GAP, EDGE = 104, 44, 14, 24
"""Pixels: width and height of a box, the gap between boxes, the margin."""
TOP = 84
"""Pixels from the top to where links between GPUs may begin."""
NARROWEST = 780
"""Pixels for the legend."""
ARC = 26
"""Pixels that an arc rises for each box it passes."""
MOST_LINES = 4
"""Maximum number of NICs with lines from one GPU; more would hide each other."""
_STROKES = {"near": "", "host": "9 5", "far": "2 5"}
_STYLE = "".join(
    f".wiring {selector}{{{rules}}}"
    for selector, rules in (
        ("text", "font:13px system-ui,sans-serif;fill:#111"),
        (".small", "font-size:11px"),
        (".head", "font-weight:600;font-size:15px"),
        (".gpu", "fill:#fff;stroke:#111;stroke-width:1.5"),
        (".nic", "fill:#e4e4e4;stroke:#111;stroke-width:1.5"),
        (".numa", "fill:#f3f3f3;stroke:#777"),
        (".link", "fill:none;stroke:#111"),
    )
)
"""Below their own class, so that the rules do nothing to the page that the drawing is in."""


def drawing(topology: Topology, name: str = "") -> str:
    """Return a drawing of a machine as SVG, for an HTML page or a file."""
    gpus, cards = _ordered(topology), _under(topology)
    columns = max(len(gpus), len(_places_of_nics(topology)))
    row_width = max(2 * EDGE + columns * (BOX + GAP) - GAP, NARROWEST)
    above = _spread([gpu.label for gpu in gpus], row_width)
    below = _below(topology, cards, above)
    width = max(row_width, *(x + BOX + EDGE for x in below.values()), 0)
    row = TOP + _rise(topology, gpus)
    nics = row + HIGH + 96
    height = (nics if cards else row) + HIGH + 70
    parts = [
        *_frames(gpus, above, row),
        *_between(topology, gpus, above, row),
        *_to_nics(topology, above, below, row + HIGH, nics),
        *_numa_names(gpus, above, row),
        *(_gpu(gpu, above[gpu.label], row) for gpu in gpus),
        *(_nic(nic, below[nic.label], nics) for nic in cards),
        *_legend(height - 26),
    ]
    title = " ".join(filter(None, [f"{name}:" if name else "", summary(topology)]))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="wiring" role="img" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-label="{escaped(title)}">'
        f"<title>{escaped(title)}</title><desc>{escaped(_told(topology))}</desc>"
        f"<style>{_STYLE}</style>"
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f"{_words(EDGE, 34, name or 'node', 'head')}{_words(EDGE, 56, summary(topology))}"
        f"{''.join(parts)}</svg>\n"
    )


def _spread(labels: list[str], width: int) -> dict[str, float]:
    """Return the left edges of the boxes of a row, with equal gaps."""
    each = (width - 2 * EDGE + GAP) / max(len(labels), 1)
    return {label: EDGE + each * at + (each - BOX - GAP) / 2 for at, label in enumerate(labels)}


def _places_of_nics(topology: Topology) -> dict[str, float]:
    """Return for each NIC with lines the mean place of its nearest GPUs in their row."""
    place = {gpu.index: at for at, gpu in enumerate(_ordered(topology))}
    above: dict[str, list[int]] = {}
    for near in nearest(topology):
        for nic in near.nics if len(near.nics) <= MOST_LINES else ():
            above.setdefault(nic.label, []).append(place[near.gpu])
    return {label: sum(places) / len(places) for label, places in above.items()}


def _under(topology: Topology) -> list[Nic]:
    """Return the NICs in the order of their nearest GPUs; those near none, or all, at the end."""
    places = _places_of_nics(topology)
    return sorted(topology.nics, key=lambda nic: places.get(nic.label, len(topology.gpus)))


def _below(topology: Topology, cards: list[Nic], above: dict[str, float]) -> dict[str, float]:
    """Return where the boxes of NICs begin: below their nearest GPUs, as far as there is space."""
    gpus = [above[gpu.label] for gpu in _ordered(topology)]
    step = gpus[1] - gpus[0] if len(gpus) > 1 else BOX + GAP
    places = _places_of_nics(topology)
    together = Counter(places.values())
    begins: dict[str, float] = {}
    free = float(EDGE)
    for nic in cards:
        place = places.get(nic.label)
        if place is not None:
            beside = (together[place] - 1) * (BOX + GAP) / 2  # several NICs below the same GPU
            free = max(free, gpus[0] + place * step - beside)
        begins[nic.label] = free
        free += BOX + GAP
    return begins


def _told(topology: Topology) -> str:
    """Return the drawing as text."""
    links = [f"{a}-{b} {link}" for a, b, link in topology.links]
    return "; ".join(links) or "no known links"


def _ordered(topology: Topology) -> list[Gpu]:
    """GPUs of one NUMA node beside each other, and of one island within it."""
    island = {gpu: at for at, group in enumerate(islands(topology)) for gpu in group}
    first = {gpu.numa: gpu.index for gpu in reversed(topology.gpus)}
    return sorted(topology.gpus, key=lambda g: (first[g.numa], island.get(g.index, 0), g.index))


def _words(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{named} text-anchor="{anchor}">{escaped(text)}</text>'


def _box(x: float, y: int, style: str, name: str, detail: str) -> str:
    lines = [name, detail] if detail else [name]
    middle = x + BOX / 2
    first = y + HIGH / 2 + 4 - 7 * (len(lines) - 1)
    texts = [
        _words(middle, first + 15 * at, _cut(line), "small" if at else "", "middle")
        for at, line in enumerate(lines)
    ]
    shape = f'<rect class="{style}" x="{x:g}" y="{y}" width="{BOX}" height="{HIGH}" rx="6"/>'
    return shape + "".join(texts)


def _cut(line: str) -> str:
    return line if len(line) <= 15 else line[:14] + "…"


def _gpu(gpu: Gpu, x: float, y: int) -> str:
    return _box(x, y, "gpu", gpu.label, _short(gpu.name) if gpu.name else "")


def _short(name: str) -> str:
    return model(name).removeprefix("GeForce ").removeprefix("Quadro ")


def _nic(nic: Nic, x: float, y: int) -> str:
    speed = f"{nic.rate:g} Gb/s" if nic.rate else ""
    state = "down" if nic.active is False else speed
    return _box(x, y, "nic", nic.shown, state)


def _numa_places(gpus: list[Gpu], spots: dict[str, float]) -> Iterable[tuple[str, float, float]]:
    """The GPUs' NUMA nodes with the left and right ends of their GPUs."""
    for numa in dict.fromkeys(gpu.numa for gpu in gpus if gpu.numa is not None):
        places = [spots[gpu.label] for gpu in gpus if gpu.numa == numa]
        yield numa, min(places) - 6, max(places) + BOX + 6


def _frames(gpus: list[Gpu], spots: dict[str, float], row: int) -> Iterable[str]:
    for _, left, right in _numa_places(gpus, spots):
        yield (
            f'<rect class="numa" x="{left:g}" y="{row - 6}" width="{right - left:g}" '
            f'height="{HIGH + 30}" rx="8"/>'
        )


def _numa_names(gpus: list[Gpu], spots: dict[str, float], row: int) -> Iterable[str]:
    for numa, left, _ in _numa_places(gpus, spots):
        yield _tag(left + 32, row + HIGH + 17, f"NUMA {numa}", "#f3f3f3")


def _tag(x: float, y: float, words: str, ground: str = "#fff") -> str:
    """Return text with a background that covers the lines below it."""
    wide = 7 * len(words) + 6
    return (
        f'<rect x="{x - wide / 2:g}" y="{y - 12:g}" width="{wide}" height="15" fill="{ground}"/>'
        f"{_words(x, y, words, 'small', 'middle')}"
    )


def _rise(topology: Topology, gpus: list[Gpu]) -> int:
    """Return the height of the links between GPUs in pixels."""
    if mesh(topology):
        return 46
    order = [gpu.index for gpu in gpus]
    spans = [
        b - a
        for a in range(len(order))
        for b in range(a + 1, len(order))
        if linked(topology, order[a], order[b])
    ]
    return ARC * max(spans, default=0) + (20 if spans else 0)


def _between(
    topology: Topology, gpus: list[Gpu], spots: dict[str, float], row: int
) -> Iterable[str]:
    if code := mesh(topology):
        yield from _bar(code, [spots[gpu.label] for gpu in gpus], row)
        return
    for a, first in enumerate(gpus):
        for b in range(a + 1, len(gpus)):
            if count := linked(topology, first.index, gpus[b].index):
                yield _arc(spots[first.label], spots[gpus[b].label], row, b - a, count)


def _bar(code: str, places: list[float], row: int) -> Iterable[str]:
    """Return one bar that connects all GPUs: all pairs have the same link."""
    left, right, y = min(places) + BOX / 2, max(places) + BOX / 2, row - 32
    stubs = "".join(f"M{x + BOX / 2:g} {row}V{y}" for x in places)
    yield f'<path class="link" stroke-width="4" d="M{left:g} {y}H{right:g}{stubs}"/>'
    count = len(places)
    words = f"{code} between all {count} GPUs" if count > 2 else code
    yield _words((left + right) / 2, y - 8, words, "", "middle")


def _arc(left: float, right: float, row: int, span: int, count: int) -> str:
    a, b, top = left + BOX / 2, right + BOX / 2, row - ARC * span
    curve = f"M{a:g} {row}C{a:g} {top} {b:g} {top} {b:g} {row}"
    path = f'<path class="link" stroke-width="{min(1 + count, 6)}" d="{curve}"/>'
    return path + _tag((a + b) / 2, (row + 3 * top) / 4 + 4, f"NV{count}")


def _to_nics(
    topology: Topology, above: dict[str, float], below: dict[str, float], top: int, bottom: int
) -> Iterable[str]:
    """Return lines to the nearest NICs with the kind of link; only text where there are many."""
    tags = []
    for near in nearest(topology):
        x = above[f"GPU{near.gpu}"] + BOX / 2
        if near.link is None:
            continue
        many = len(near.nics) > MOST_LINES
        words = f"{near.link} to {len(near.nics)} NICs" if many else near.link
        tags.append(_tag(x, top + 42, words))
        if not many:
            ends = [below[nic.label] + BOX / 2 for nic in near.nics]
            yield from _lines(near.link, x, top, ends, bottom)
    yield from tags


def _lines(link: str, x: float, top: int, ends: list[float], bottom: int) -> Iterable[str]:
    dash = _STROKES[_kind(link)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    for end in ends:
        yield f'<path class="link" stroke-width="1.5"{dashed} d="M{x:g} {top}L{end:g} {bottom}"/>'


def _kind(link: str) -> str:
    if link in DIRECT:
        return "near"
    return "far" if link == "SYS" else "host"


def _legend(y: int) -> Iterable[str]:
    entries = (
        ("thick: NVLink", 4, ""),
        ("PCIe switches (PIX, PXB)", 1.5, _STROKES["near"]),
        ("through the host (PHB, NODE)", 1.5, _STROKES["host"]),
        ("between sockets (SYS)", 1.5, _STROKES["far"]),
    )
    x = EDGE
    for words, wide, dash in entries:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<path class="link" stroke-width="{wide}"{dashed} d="M{x} {y - 4}h28"/>'
        yield _words(x + 34, y, words, "small")
        x += 52 + 6 * len(words)
