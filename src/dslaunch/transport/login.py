"""What went wrong between a login and our program: a start-up file that prints, reads, or leaves.

sshd starts the user's login shell, which reads its start-up files (bash reads ~/.bashrc also where
there is no terminal: bash(1), "Invocation", sshd) before it runs our line. Pure.
"""

from __future__ import annotations

from dslaunch.errors import NodeFailure
from dslaunch.terminal import one_line, without_color

STARTED = b"dslaunch-shell-started\n"
"""What our line prints first, where it is asked to: the start-up files are done."""
MOST_NOISE = 8 << 20
"""Bytes that a login may print before our program's greeting."""
NOISE_KEPT = 64 * 1024
"""Bytes that are kept of it."""
TIMEOUT = 18.0
"""Seconds for a login shell to begin with our line; less than a greeting is waited for."""
NO_TEXT = 95
"""Exit code of our line's Python where the program did not arrive on its standard input."""
_LONGEST = 120
_BY_HAND = "`ssh {host} true | head` must print nothing and end"


class LoginOutput:
    """What comes before our program's greeting: its beginning, and whether it is too much."""

    def __init__(self, greeting: bytes) -> None:
        self.greeted = False
        self.started = False
        """Whether our line has begun: what came before is of the start-up files."""
        self._greeting = greeting
        self._size = 0
        self._kept = b""
        self._open = b""
        """The last bytes, which may be the beginning of a mark."""

    def add(self, piece: bytes) -> bytes:
        """Take what has come; what follows the greeting is given back."""
        text = self._open + piece
        before, greeting, rest = text.partition(self._greeting)
        self.greeted = bool(greeting)
        self.started = self.started or STARTED in before
        longest = max(len(self._greeting), len(STARTED)) - 1
        settled = len(before) if self.greeted else max(0, len(text) - longest)
        self._size += settled
        self._kept += before[: min(settled, NOISE_KEPT - len(self._kept))]
        self._open = b"" if self.greeted else text[settled:]
        return rest

    @property
    def endless(self) -> bool:
        """Whether more was printed than any start-up file should."""
        return self._size > MOST_NOISE

    @property
    def much(self) -> bool:
        """Whether more was printed than is kept."""
        return self._size > NOISE_KEPT

    def parts(self) -> tuple[bytes, bytes]:
        """Return what the start-up files printed, and what came after our line had begun."""
        printed, _, own = (self._kept + self._open).partition(STARTED)
        return printed, own

    def noise(self) -> bytes:
        """Return all that is not ours."""
        return b"".join(self.parts())


def first_line(printed: bytes) -> str:
    """The first line that is not empty, as one printable line of bounded length."""
    text = printed[:NOISE_KEPT].decode(errors="replace")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    shown = one_line(without_color(line[:_LONGEST]))
    return f"{shown[:_LONGEST]}..." if len(line) > _LONGEST or len(shown) > _LONGEST else shown


def last_line(said: str) -> str:
    """The last line that is not empty, likewise: where programs say why they failed."""
    lines = [line for line in said[-NOISE_KEPT:].splitlines() if line.strip()]
    return first_line(lines[-1].encode(errors="replace")) if lines else ""


def endless(host: str, printed: bytes) -> NodeFailure:
    """It prints more than any start-up file should."""
    why = f"its login shell prints without end instead of starting our program{_began(printed)}"
    return _failure(host, why, "`yes`, `cat`, `exec` or a loop")


def hung(host: str, printed: bytes) -> NodeFailure:
    """It did not come to our line in time."""
    why = f"its login shell did not start our program in time{_began(printed)}"
    return _failure(
        host, why, "`cat`, `exec` or another command that reads standard input or waits"
    )


def ate_input(host: str, printed: bytes) -> NodeFailure:
    """Our program did not arrive whole."""
    why = f"a start-up file of its login shell reads standard input{_began(printed)}"
    return _failure(host, why, "`read`, `cat`, `head` or `ssh` without -n")


def left(host: str, printed: bytes, said: str, code: int | None) -> NodeFailure:
    """It ended without having run our line."""
    words = first_line(printed) or last_line(said)
    how = "ended" if code is None else f"ended with exit code {code}"
    shown = f': "{words}"' if words else ""
    why = f"its login shell {how} instead of starting our program{shown}"
    return _failure(
        host, why, "`exec` or `exit`, and its login shell in /etc/passwd: a POSIX shell"
    )


def _began(printed: bytes) -> str:
    line = first_line(printed)
    return f'; it printed first: "{line}"' if line else ""


def _failure(host: str, why: str, look_for: str) -> NodeFailure:
    hint = f"look in ~/.bashrc and what else its shell reads for {look_for}"
    return NodeFailure(host, "noisy-shell", why, f"{hint}; {_BY_HAND.format(host=host)}")
