"""`dslaunch top`: its keys, a real terminal, and runs that it cannot measure."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

from dslaunch.cli.top_screen import Screen
from dslaunch.report.usage_table import Choice

SHOWS = """\
import sys
from dslaunch.cli.top_screen import Screen
from dslaunch.report.usage_table import Choice
screen = Screen(Choice())
with screen.opened():
    def page(choice, size):
        return [f"{size.width}x{size.height} {choice.sort} [{choice.words}]"]
    screen.show(page, 60)
print("sorted by", screen.choice.sort)
"""


def press(screen: Screen, keys: str) -> None:
    for key in keys:
        screen.press(key)


def test_keys_sort_filter_and_quit() -> None:
    screen = Screen(Choice())
    press(screen, "s/no2\x7fde1\r")
    assert screen.choice == Choice("gpu", "node1")
    press(screen, "/x\x1b")
    assert screen.choice.words == "node1"
    press(screen, "/\r")
    assert screen.choice.words == ""
    press(screen, "q")
    assert screen.quit


def read_until(terminal: int, text: str) -> str:
    """What the terminal shows until a text is in it."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


def test_a_real_terminal_is_redrawn_on_resize_and_restored_at_the_end() -> None:
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(side)
    program = [sys.executable, "-c", SHOWS]
    with subprocess.Popen(program, stdin=side, stdout=side, stderr=side) as running:
        assert "\x1b[?1049h" in read_until(terminal, "80x23 node []")
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
        running.send_signal(signal.SIGWINCH)
        read_until(terminal, "60x39 node []")
        os.write(terminal, b"s")
        read_until(terminal, "gpu []")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert running.wait(300) == 0
        assert termios.tcgetattr(side) == before
    os.close(side)
    os.close(terminal)
