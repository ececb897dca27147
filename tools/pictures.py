"""The pictures of terminals and pages in the documentation, made from real runs.

`python -m tools.pictures` (`make pictures`) runs the commands of `PICTURES` in a terminal and
writes an SVG for each, in which lines appear when they appeared. `report.png` is
a page in Chromium.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path
from time import monotonic

import pyte

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
COLUMNS = 116
ROWS = 200
"""More than any picture has, so that nothing scrolls."""
LINE, CHARACTER, MARGIN = 20, 8.43, 18
"""Pixels."""
USERS_VENV = b"/opt/venv"
"""What a picture shows in place of the environment that draws it."""
NO_BREAK_SPACE = "\xa0"
LONGEST_PAUSE = 1.5
"""Seconds that a picture waits between two lines; a real run may wait for longer."""
COLORS = {
    "default": "#d4dae3",
    "black": "#6b7686",
    "red": "#ff8a80",
    "green": "#6fcf97",
    "brown": "#f0b95a",
    "blue": "#8fb8ff",
    "magenta": "#c9a6f2",
    "cyan": "#7fd4e6",
    "white": "#e8ecf2",
}
"""The names of pyte. `brown` is the yellow of terminals."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: what is typed."""

    name: str
    label: str
    """Text for screen readers."""
    commands: Sequence[str]


PICTURES = (
    Picture(
        name="run",
        label="dslaunch run in a terminal: decisions, output of the ranks, and the end",
        commands=["dslaunch run -l direct clusters/local.yaml examples/train_ddp.py --steps 40"],
    ),
    Picture(
        name="failure",
        label="dslaunch run in a terminal: a rank fails, and the root cause is named",
        commands=["dslaunch run -l direct clusters/local.yaml crash.py; echo $?"],
    ),
    Picture(
        name="preflight",
        label="dslaunch preflight in a terminal: findings, and the verdict",
        commands=["dslaunch preflight clusters/local.yaml --tier gate --all"],
    ),
)
CRASH = """\
import os, time

rank = int(os.environ["RANK"])
print(f"rank {rank} is training", flush=True)
time.sleep(1 if rank == 2 else 60)
raise RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB.")
"""


FALLING_LOSS = """\
import os, time

rank = int(os.environ["RANK"])
for step in range(120):
    time.sleep(0.05 if rank != 2 else 0.06)
    print(f"step {step} loss {0.3 + 6 / (step + 3):.4f}", flush=True)
    if rank == 3 and step == 110:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB.")
"""
PAGE_SIZE = "1100,1560"
"""Pixels of a picture of a page."""


@dataclass
class Terminal:
    """A screen, and when each of its lines was last changed."""

    screen: pyte.Screen = field(default_factory=lambda: pyte.Screen(COLUMNS, ROWS))
    changed: dict[int, float] = field(default_factory=dict)
    """Row -> seconds since the beginning."""

    def __post_init__(self) -> None:
        """Let the stream write to the screen."""
        self.stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes, at: float) -> None:
        """Show what a program wrote."""
        self.screen.dirty.clear()
        self.stream.feed(data)
        self.changed.update(dict.fromkeys(self.screen.dirty, at))

    def rows(self) -> Iterator[tuple[int, list[tuple[str, str, bool]]]]:
        """Yield the rows that are not empty, each as runs of text, color and boldness."""
        for number in range(ROWS):
            cells = [self.screen.buffer[number][column] for column in range(COLUMNS)]
            text = "".join(cell.data for cell in cells).rstrip()
            if text:
                styled = groupby(cells[: len(text)], key=lambda cell: (cell.fg, cell.bold))
                yield number, [("".join(c.data for c in run), *style) for style, run in styled]


def record(command: str, directory: Path, terminal: Terminal, start: float) -> float:
    """Run a command in a terminal; return when it ended, in seconds of the picture."""
    terminal.feed(f"\x1b[1m$ {command}\x1b[0m\r\n".encode(), start)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    home = directory / "home"
    env = {**os.environ, "TERM": "xterm-256color", "HOME": str(home), "PATH": _path()}
    env.pop("NO_COLOR", None)
    words = ["bash", "-c", command]
    with subprocess.Popen(
        words, cwd=directory, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        began, now = monotonic(), start
        while (data := _read(ours)) is not None:
            now = min(start + monotonic() - began, now + LONGEST_PAUSE)
            shown = data.replace(str(home).encode(), b"~")
            terminal.feed(shown.replace(sys.prefix.encode(), USERS_VENV), now)
        process.wait()
    os.close(ours)
    return now + 1


def _read(descriptor: int) -> bytes | None:
    """Return what the program wrote; None when it has closed the terminal."""
    select.select([descriptor], [], [])
    try:
        return os.read(descriptor, 65536) or None
    except OSError:  # EIO: nothing has the terminal open any more
        return None


def _path() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def as_svg(terminal: Terminal, label: str) -> str:
    """Return the picture. Who prefers no motion sees all lines at once."""
    rows = list(terminal.rows())
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = (rows[-1][0] + 1) * LINE + 2 * MARGIN
    lines = [_line(number, runs, terminal.changed[number]) for number, runs in rows]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img" aria-label="{escape(label)}">',
            "<style>@keyframes show { from { opacity: 0 } to { opacity: 1 } }",
            "text { animation: show .1s both }",
            "@media (prefers-reduced-motion: reduce) { text { animation: none } }</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#14181f"/>',
            '<g font-size="14" font-family='
            '"ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace">',
            *lines,
            "</g></svg>",
            "",
        ]
    )


def _line(number: int, runs: list[tuple[str, str, bool]], at: float) -> str:
    y = MARGIN + number * LINE + 14
    spans = "".join(_span(text, color, bold) for text, color, bold in runs)
    return f'<text x="{MARGIN}" y="{y}" style="animation-delay:{at:.2f}s">{spans}</text>'


def _span(text: str, color: str, bold: bool) -> str:
    weight = ' font-weight="700"' if bold else ""
    fill = COLORS.get(color, COLORS["default"])
    shown = escape(text).replace(" ", NO_BREAK_SPACE)  # viewers join ordinary spaces
    return f'<tspan fill="{fill}"{weight}>{shown}</tspan>'


def draw(picture: Picture) -> str:
    """Run the commands of a picture in a directory that holds the examples; return the SVG."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("clusters/local.yaml", "examples/train_ddp.py"):
            (directory / file).parent.mkdir()
            shutil.copy(ROOT / file, directory / file)
        (directory / "home").mkdir()
        (directory / "crash.py").write_text(CRASH)
        terminal, now = Terminal(), 0.0
        for command in picture.commands:
            now = record(command, directory, terminal, now)
        return as_svg(terminal, picture.label)


def photograph_report(picture: Path) -> None:
    """Write a picture of the page of a run that fails, as Chromium shows it."""
    browser = shutil.which("chromium")
    if browser is None:
        print(f"chromium is not installed: {picture.name} not made")
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "clusters").mkdir()
        shutil.copy(ROOT / "clusters/local.yaml", directory / "clusters/local.yaml")
        (directory / "train.py").write_text(FALLING_LOSS)
        env = {**os.environ, "DSLAUNCH_STATE": str(directory / "state"), "PATH": _path()}
        run = ["dslaunch", "run", "-q", "-l", "direct", "clusters/local.yaml", "train.py"]
        report = ["dslaunch", "report", "-o", "page.html"]
        for command, code in ((run, 1), (report, 0)):
            assert subprocess.run(command, cwd=directory, env=env, check=False).returncode == code
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--window-size={PAGE_SIZE}", f"--user-data-dir={directory / 'profile'}"]
        page = (directory / "page.html").as_uri()
        shoot = [browser, *options, f"--screenshot={picture}", page]
        subprocess.run(shoot, check=True, capture_output=True)


def main() -> None:
    """Write every picture."""
    photograph_report(IMAGES / "report.png")
    print("wrote docs/images/report.png")
    for picture in PICTURES:
        (IMAGES / f"{picture.name}.svg").write_text(draw(picture), "utf-8")
        print(f"wrote docs/images/{picture.name}.svg")


if __name__ == "__main__":
    main()
