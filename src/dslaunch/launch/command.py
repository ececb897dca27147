"""Commands as data. The only place where shell text is built and quoted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from dslaunch.cluster.model import Pairs
from dslaunch.terminal import one_line

WIDTH = 96
"""Maximum line length of a wrapped command, in columns."""
LONGEST_ARGUMENT = 128 * 1024 - 1
"""Maximum length of an argument on Linux in bytes, without NUL (execve(2), MAX_ARG_STRLEN)."""


class Var(Struct, frozen=True):
    """A variable that the node expands when the command starts."""

    name: str


Word = str | tuple[str | Var, ...]
"""One argument: literal text, or text and variables joined."""


class Command(Struct, frozen=True):
    """An argument vector. A shell never interprets its text."""

    argv: tuple[Word, ...]

    def shell(self) -> str:
        """Return the words of a POSIX shell line that starts the command unchanged."""
        return " ".join(map(quote, self.argv))

    def words(self) -> list[Any]:
        """Return the words as JSON for a node: text, or a list of texts and `{"name":
        variable}`."""
        return [w if isinstance(w, str) else list(map(_part, w)) for w in self.argv]

    def expand(self, env: Mapping[str, str]) -> list[str]:
        """Return the argument vector with every variable replaced from `env`.

        Raises KeyError for a variable that `env` lacks.
        """
        return [_join(word, env) for word in self.argv]


@lru_cache(maxsize=1024)  # the ranks of a run have most words in common
def quote(word: Word) -> str:
    """Quote one word for a POSIX shell; a `Var` becomes `"$NAME"`."""
    parts = (word,) if isinstance(word, str) else word
    if not parts:
        return "''"
    return "".join(f'"${p.name}"' if isinstance(p, Var) else _quoted(p) for p in parts)


def _quoted(text: str) -> str:
    """Quote text, without CR LF next to each other: sbatch refuses a script with DOS line breaks,
    also within quotes (SLURM 22.05)."""
    return shlex.quote(text).replace("\r\n", "\r''\n")


def quote_in_line(text: str) -> str:
    """Quote one word for bash on a single line, for a comment or a command to copy.

    Unprintable characters and newlines are escaped as bytes: `$'a\\x0ab'`.
    """
    quoted = shlex.quote(text)
    if one_line(quoted) == quoted:
        return quoted
    return "$'" + "".join(map(_as_bytes, text)) + "'"


def _as_bytes(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if one_line(character) == character:
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def activated(command: Command, line: str | None) -> Command:
    """Run `command` after the shell line `line`, such as `source venv/bin/activate`.

    Uses bash, because `source` is not POSIX; the words of the command are parameters, never shell
    text. Several lines are a script whose last line must succeed. The text after a line that ends
    with a comment or `;` is on a line by itself.
    """
    text = (line or "").strip()
    if not text:
        return command
    if set("#\n") & set(text) or text[-1] in ";&":
        text = f"{{ {text}\n}}"
    return Command(("bash", "-c", f'{text} && exec "$@"', "dslaunch", *command.argv))


def below_home(path: str) -> str | None:
    """Return what follows the leading `~` of a path on a node, which is the home directory of the
    node's user: "" or "/..."; None: it has no such beginning."""
    return path[1:] if path == "~" or path.startswith("~/") else None


def at_home(path: str) -> Word:
    """Return a path on a node as a word, with the home directory of the node's user for `~`."""
    below = below_home(path)
    return path if below is None else (Var("HOME"), below)


def document_end(text: str) -> str:
    """Return the delimiter of a here-document: a word that is no line of its text."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


def exports(env: Iterable[tuple[str, str]]) -> list[str]:
    """Render one `export NAME=value` line per variable.

    A value that begins with `=` is quoted, because zsh expands `=eth0` to the path of a program.
    """
    return [f"export {name}={_value(value)}" for name, value in env]


def _value(text: str) -> str:
    quoted = _quoted(text)
    return f"'{text}'" if text.startswith("=") and quoted == text else quoted


def shell_line(command: Command, *, env: Pairs = (), cwd: Word | None = None) -> str:
    """Render one line that changes to `cwd`, sets `env` and runs `command` in any POSIX shell."""
    words = []
    if cwd is not None:
        words += ["cd", quote(cwd), "&&"]
    if env:
        words += ["env", *map(_assignment, env)]
    return " ".join([*words, command.shell()])


@lru_cache(maxsize=1024)  # as `quote`, of which the text would have to be made first
def _assignment(variable: tuple[str, str]) -> str:
    """Return a variable as a quoted word `NAME=value`."""
    name, value = variable
    return quote(f"{name}={value}")


def wrapped(command: Command, together: int = 1) -> str:
    """Return the command as shell words, wrapped to several lines if it is long.

    The last `together` words stay on one line.
    """
    quoted = [quote(word) for word in command.argv]
    lines = [""]
    for word in (*quoted[:-together], " ".join(quoted[-together:])):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and len(joined) > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] = joined
    return " \\\n".join(lines)


def _part(part: str | Var) -> str | dict[str, str]:
    return part if isinstance(part, str) else {"name": part.name}


def _join(word: Word, env: Mapping[str, str]) -> str:
    parts = (word,) if isinstance(word, str) else word
    return "".join(env[p.name] if isinstance(p, Var) else p for p in parts)
