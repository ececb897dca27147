"""Explain why a login shell did not start our program: a start-up file prints, reads or exits.

sshd starts the user's login shell, which reads its start-up files (bash reads ~/.bashrc also where
there is no terminal: bash(1), "Invocation", sshd) before it runs our line. Pure.
"""

from __future__ import annotations

from dslaunch.errors import NODE, NodeFailure
from dslaunch.terminal import one_line, printable, without_color

STARTED = b"dslaunch-shell-started\n"
"""What our line prints first: the start-up files are done."""
MOST_NOISE = 8 << 20
"""Bytes that a login may print before our program's greeting."""
NOISE_KEPT = 64 * 1024
"""Bytes that are kept of it."""
TIMEOUT = 18.0
"""Seconds for a login shell to start our line; less than the time for a greeting."""
OLD_PYTHON = 94
"""Exit code of our line's Python that is too old; it writes its version to standard error."""
NO_TEXT = 95
"""Exit code of our line's Python where the program did not arrive on its standard input."""
NO_PYTHON = 96
"""Exit code of our line where no Python is found."""
_LONGEST = 120
_BY_HAND = "`ssh {host} true | head` must print nothing and exit"


class LoginOutput:
    """The output before our program's greeting: its beginning, and whether it is too much."""

    __slots__ = ("_greeting", "_kept", "_open", "_size", "greeted", "started")

    def __init__(self, greeting: bytes) -> None:
        self.greeted = False
        self.started = False
        """Whether our line has started: the output before is that of the start-up files."""
        self._greeting = greeting
        self._size = 0
        self._kept = b""
        self._open = b""
        """The last bytes, which may be the beginning of a mark."""

    def add(self, piece: bytes) -> bytes:
        """Take a piece of output; return what follows the greeting."""
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
        """Whether more was printed than MOST_NOISE."""
        return self._size > MOST_NOISE

    @property
    def much(self) -> bool:
        """Whether more was printed than is kept."""
        return self._size > NOISE_KEPT

    def parts(self) -> tuple[bytes, bytes]:
        """Return the output of the start-up files, and what came after our line had started."""
        printed, _, own = (self._kept + self._open).partition(STARTED)
        return printed, own

    def noise(self) -> bytes:
        """Return all output that is not ours."""
        return b"".join(self.parts())


def first_line(printed: bytes) -> str:
    """Return the first line that is not empty, printable and at most 120 characters long."""
    text = printed[:NOISE_KEPT].decode(errors="replace")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    shown = printable(one_line(without_color(line[:_LONGEST])))
    return f"{shown[:_LONGEST]}..." if len(line) > _LONGEST or len(shown) > _LONGEST else shown


def last_line(said: str) -> str:
    """Return the last line that is not empty, where programs report why they failed."""
    lines = [line for line in said[-NOISE_KEPT:].splitlines() if line.strip()]
    return first_line(lines[-1].encode(errors="replace")) if lines else ""


def endless(host: str, printed: bytes) -> NodeFailure:
    """Return the failure of a login shell that keeps printing."""
    why = f"the login shell prints endless output instead of starting the agent{_began(printed)}"
    return _failure(host, why, "`yes`, `cat`, `exec` or a loop")


def hung(host: str, printed: bytes) -> NodeFailure:
    """Return the failure of a login shell that did not start our line in time."""
    why = f"the login shell did not start the agent within {TIMEOUT:.0f} s{_began(printed)}"
    return _failure(
        host, why, "`cat`, `exec` or another command that reads standard input or waits"
    )


def ate_input(host: str, printed: bytes) -> NodeFailure:
    """Return the failure of a login shell that read part of our program."""
    why = f"a start-up file of the login shell reads standard input{_began(printed)}"
    return _failure(host, why, "`read`, `cat`, `head` or `ssh` without -n")


def left(host: str, printed: bytes, said: str, code: int | None) -> NodeFailure:
    """Return the failure of a login shell that exited without running our line."""
    words = first_line(printed) or last_line(said)
    how = "exited" if code is None else f"exited with code {code}"
    shown = f': "{words}"' if words else ""
    why = f"the login shell {how} instead of starting the agent{shown}"
    return _failure(
        host, why, "`exec` or `exit`, and its login shell in /etc/passwd: a POSIX shell"
    )


def is_text(found: bytes) -> bool:
    """Return whether bytes that are none of ours begin with a line of text."""
    line = without_color(found.lstrip().partition(b"\n")[0].decode(errors="replace")).strip()
    return bool(line) and "\ufffd" not in line and line.replace("\t", " ").isprintable()


def mixed_in(host: str, text: bytes) -> NodeFailure:
    """Return the failure of a node where something prints after our program has started.

    The program takes the place of the login shell (`exec`), so only what the start-up files left
    in the background still writes to the same output.
    """
    why = (
        f'text arrived between the messages of our program: "{first_line(text)}"; probably a '
        "start-up file (such as ~/.bashrc) left a command in the background that prints"
    )
    hint = (
        "look in ~/.bashrc and what else its login shell reads for a command with `&` at its end, "
        "and add `>/dev/null 2>&1` to the command; "
        f"`ssh {host} sleep 10` must print nothing"
    )
    return NodeFailure(host, "noisy-shell", why, hint)


def _began(printed: bytes) -> str:
    line = first_line(printed)
    return f'; first output: "{line}"' if line else ""


def _failure(host: str, why: str, look_for: str) -> NodeFailure:
    hint = f"check ~/.bashrc and the shell's other start-up files for {look_for}"
    return NodeFailure(
        host,
        "noisy-shell",
        why,
        hint=f"{hint}; {_BY_HAND.format(host=host)}",
        common_hint=f"{hint}; {_BY_HAND.format(host=NODE)}",
    )
