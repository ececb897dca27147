"""The diagrams of the documentation: `python -m tools.diagrams` (part of `make pictures`).

A diagram is a list of boxes on a grid and of arrows between them. Colors follow the reader's light
or dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs/images"
COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 215, 104, 158, 62, 16
"""Pixels: the grid's steps, the size of a box, the space around the diagram."""
STYLE = """\
.box { fill: #eef2fb; stroke: #3f51b5 }
.zone { fill: none; stroke: #8a93a3; stroke-dasharray: 6 5 }
.name { font-weight: 600 } text { fill: #1b2129; font: 13px system-ui, sans-serif }
.dim { fill: #55606e; font-size: 12px }
.arrow { stroke: #3b4454; fill: none } .head { fill: #3b4454 }
@media (prefers-color-scheme: dark) {
  .box { fill: #232b3d; stroke: #8fa2ff } text { fill: #e6e9ee } .dim { fill: #a3adba }
  .arrow { stroke: #b8c2d0 } .head { fill: #b8c2d0 }
}"""


@dataclass(frozen=True, slots=True)
class Box:
    """A part: where it is on the grid, its name, and a line about it."""

    key: str
    column: float
    row: float
    name: str
    about: str = ""

    @property
    def left(self) -> float:
        """The x of its left edge."""
        return MARGIN + self.column * COLUMN

    @property
    def top(self) -> float:
        """The y of its upper edge."""
        return MARGIN + self.row * ROW


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line from one box to another."""

    start: str
    end: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Zone:
    """A dashed frame around a part of the grid: a machine, or a boundary of trust."""

    column: float
    row: float
    columns: float
    rows: float
    name: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """One picture."""

    name: str
    label: str
    """Text for screen readers."""
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    zones: Sequence[Zone] = ()


DIAGRAMS = (
    Diagram(
        name="architecture",
        label="From the cluster file to the processes: load, select, decide, plan, then render, run"
        " or submit; the nodes answer questions and send events",
        boxes=[
            Box("file", 0, 0, "cluster.yaml", "nodes, network, storage"),
            Box("cluster", 1, 0, "Cluster", "typed, validated"),
            Box("allocation", 2, 0, "Allocation", "nodes and slots"),
            Box("plan", 3, 0, "Plan", "commands per node"),
            Box("job", 2, 1, "Job", "script, arguments"),
            Box("facts", 3, 1, "Facts", "evidence of the nodes"),
            Box("render", 4, 0, "render", "hostfile, torchrun, ..."),
            Box("run", 4, 1, "run", "over SSH or in a job"),
            Box("slurm", 5, 0, "SLURM", "submitted, followed"),
            Box("nodes", 3, 2, "agents on nodes", "one program, one wire"),
            Box("report", 2, 2, "report", "text, JSON, page"),
        ],
        arrows=[
            Arrow("file", "cluster", "load"),
            Arrow("cluster", "allocation", "select"),
            Arrow("allocation", "plan"),
            Arrow("job", "plan"),
            Arrow("facts", "plan"),
            Arrow("nodes", "facts", "answers"),
            Arrow("plan", "render"),
            Arrow("plan", "run"),
            Arrow("run", "nodes", "start"),
            Arrow("render", "slurm", "sbatch"),
            Arrow("nodes", "report", "events"),
        ],
    ),
    Diagram(
        name="life-of-a-run",
        label="Life of a run: connect, start agents, ask, decide, ship, start ranks, watch, end",
        boxes=[
            Box("connect", 0, 0, "1 connect", "host keys verified"),
            Box("agent", 1, 0, "2 start agents", "sent over SSH"),
            Box("ask", 2, 0, "3 ask", "gate checks, evidence"),
            Box("decide", 3, 0, "4 decide", "address, port, storage"),
            Box("ship", 3, 1, "5 ship", "files that differ"),
            Box("start", 2, 1, "6 start ranks", "arguments unchanged"),
            Box("watch", 1, 1, "7 watch", "output, heartbeat"),
            Box("end", 0, 1, "8 end", "TERM, grace, KILL"),
        ],
        arrows=[
            Arrow("connect", "agent"),
            Arrow("agent", "ask"),
            Arrow("ask", "decide"),
            Arrow("decide", "ship"),
            Arrow("ship", "start"),
            Arrow("start", "watch"),
            Arrow("watch", "end", ""),
        ],
    ),
    Diagram(
        name="trust",
        label="Trust boundaries: the machine of the user, the network, each node by itself",
        zones=[
            Zone(0, 0, 2, 2, "your machine: trusted"),
            Zone(2.25, 0, 1, 2, "network: not trusted"),
            Zone(3.5, 0, 1.05, 2, "each node: not trusted"),
        ],
        boxes=[
            Box("user", 0.1, 0.3, "you", "cluster file, secrets"),
            Box("launcher", 1, 0.3, "launcher", "decides, records"),
            Box("boundary", 1, 1.15, "protocol", "validates what they send"),
            Box("ssh", 2.36, 0.72, "SSH", "host key of every hop"),
            Box("node", 3.62, 0.3, "agent", "one run, your user"),
            Box("ranks", 3.62, 1.15, "ranks", "your program"),
        ],
        arrows=[
            Arrow("user", "launcher"),
            Arrow("launcher", "ssh", "plan"),
            Arrow("ssh", "node"),
            Arrow("node", "ranks"),
            Arrow("ssh", "boundary", "bytes"),
            Arrow("boundary", "launcher", "values"),
        ],
    ),
)


def as_svg(diagram: Diagram) -> str:
    """Return the picture."""
    boxes = {box.key: box for box in diagram.boxes}
    width = max(
        [box.left + WIDTH for box in diagram.boxes] + [_right(zone) for zone in diagram.zones]
    )
    height = max(
        [box.top + HEIGHT for box in diagram.boxes] + [_bottom(zone) for zone in diagram.zones]
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{diagram.label}"'
            f' viewBox="0 0 {width + MARGIN:g} {height + MARGIN:g}"'
            f' width="{width + MARGIN:g}" height="{height + MARGIN:g}">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            ' markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
            "</defs>",
            *(_zone(zone) for zone in diagram.zones),
            *(_arrow(arrow, boxes) for arrow in diagram.arrows),
            *(_box(box) for box in diagram.boxes),
            "</svg>",
            "",
        ]
    )


def _right(zone: Zone) -> float:
    return MARGIN + (zone.column + zone.columns) * COLUMN


def _bottom(zone: Zone) -> float:
    return MARGIN + (zone.row + zone.rows) * ROW


def _zone(zone: Zone) -> str:
    left, top = MARGIN + zone.column * COLUMN, MARGIN + zone.row * ROW
    width, height = zone.columns * COLUMN, zone.rows * ROW
    return (
        f'<rect class="zone" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
        f' rx="10"/><text class="dim" x="{left + 10:g}" y="{top + 18:g}">{escape(zone.name)}</text>'
    )


def _box(box: Box) -> str:
    middle = box.left + WIDTH / 2
    return (
        f'<rect class="box" x="{box.left:g}" y="{box.top:g}" width="{WIDTH}" height="{HEIGHT}"'
        f' rx="8"/><text class="name" text-anchor="middle" x="{middle:g}" y="{box.top + 26:g}">'
        f'{escape(box.name)}</text><text class="dim" text-anchor="middle" x="{middle:g}"'
        f' y="{box.top + 46:g}">{escape(box.about)}</text>'
    )


def _arrow(arrow: Arrow, boxes: dict[str, Box]) -> str:
    start, end = boxes[arrow.start], boxes[arrow.end]
    x1, y1 = _edge(start, end)
    x2, y2 = _edge(end, start)
    line = f'<path class="arrow" d="M{x1:g} {y1:g} L{x2:g} {y2:g}" marker-end="url(#head)"/>'
    if not arrow.label:
        return line
    middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
    if x1 == x2:
        place = f'x="{middle_x + 6:g}" y="{middle_y + 4:g}"'
    else:
        place = f'text-anchor="middle" x="{middle_x:g}" y="{middle_y - 6:g}"'
    return f'{line}<text class="dim" {place}>{escape(arrow.label)}</text>'


def _edge(box: Box, other: Box) -> tuple[float, float]:
    """Return the point of a box's edge at which a line to another box starts."""
    middle_x, middle_y = box.left + WIDTH / 2, box.top + HEIGHT / 2
    if box.column < other.column and abs(box.row - other.row) < 1.5:
        return box.left + WIDTH, middle_y
    if box.column > other.column and abs(box.row - other.row) < 1.5:
        return box.left, middle_y
    return middle_x, box.top + (HEIGHT if box.row < other.row else 0)


def main() -> None:
    """Write every diagram."""
    for diagram in DIAGRAMS:
        (IMAGES / f"{diagram.name}.svg").write_text(as_svg(diagram), "utf-8")
        print(f"wrote docs/images/{diagram.name}.svg")


if __name__ == "__main__":
    main()
