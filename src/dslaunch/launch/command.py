"""Commands as data. The only place where shell text is built and quoted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dslaunch.cluster.model import Pairs
from dslaunch.terminal import one_line

WIDTH = 96
"""Columns that a command is kept in, by continued lines."""


@dataclass(frozen=True, slots=True)
class Var:
    """A variable that the node expands when the command starts."""

    name: str


Word = str | tuple[str | Var, ...]
"""One argument: text as it is, or text and variables joined."""


@dataclass(frozen=True, slots=True)
class Command:
    """An argument vector. Text in it is never interpreted by a shell."""

    argv: tuple[Word, ...]

    def shell(self) -> str:
        """Render as words of a POSIX shell line that start the command unchanged."""
        return " ".join(map(quote, self.argv))

    def words(self) -> list[Any]:
        """Give the words as JSON for a node: text, or a list of texts and `{"name": variable}`."""
        return [w if isinstance(w, str) else list(map(_part, w)) for w in self.argv]

    def expand(self, env: Mapping[str, str]) -> list[str]:
        """Give the argument vector with every variable replaced from `env`.

        Raises KeyError for a variable that `env` lacks.
        """
        return [_join(word, env) for word in self.argv]


def quote(word: Word) -> str:
    """Quote one word for a POSIX shell; a `Var` becomes `"$NAME"`."""
    parts = (word,) if isinstance(word, str) else word
    if not parts:
        return "''"
    return "".join(f'"${p.name}"' if isinstance(p, Var) else shlex.quote(p) for p in parts)


def quote_in_line(text: str) -> str:
    """Quote one word for bash so that it stays on its line: for a comment, or for people to copy.

    What cannot be seen, or would break the line, is written as bytes: `$'a\\x0ab'`.
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

    Bash, since `source` is not POSIX; the command's words are parameters, never shell text.
    Several lines are a script whose last one must succeed. What a comment, or `;` at the end,
    would keep from being read stands in a line of its own.
    """
    text = (line or "").strip()
    if not text:
        return command
    if set("#\n") & set(text) or text[-1] in ";&":
        text = f"{{ {text}\n}}"
    return Command(("bash", "-c", f'{text} && exec "$@"', "dslaunch", *command.argv))


def at_home(path: str) -> Word:
    """A path on a node as a word: `~` at its beginning is the home of the node's user."""
    if path == "~" or path.startswith("~/"):
        return (Var("HOME"), path[1:])
    return path


def exports(env: Iterable[tuple[str, str]]) -> list[str]:
    """Render one `export NAME=value` line per variable.

    A value that begins with `=` is quoted, since zsh takes `=eth0` for the path of a program.
    """
    return [f"export {name}={_value(value)}" for name, value in env]


def _value(text: str) -> str:
    quoted = shlex.quote(text)
    return f"'{text}'" if text.startswith("=") and quoted == text else quoted


def shell_line(command: Command, *, env: Pairs = (), cwd: Word | None = None) -> str:
    """Render one line that changes to `cwd`, sets `env` and runs `command` in any POSIX shell."""
    words = []
    if cwd is not None:
        words += ["cd", quote(cwd), "&&"]
    if env:
        words += ["env", *(shlex.quote(f"{name}={value}") for name, value in env)]
    return " ".join([*words, command.shell()])


def wrapped(command: Command, together: int = 1) -> str:
    """The command as shell words, continued on further lines where it is long.

    The last words, as many as `together`, stay on one line.
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
