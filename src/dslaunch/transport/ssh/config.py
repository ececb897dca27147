"""Parse the part of ssh_config(5) that decides how a host is reached; then pure look-ups.

What only OpenSSH itself can decide, such as `Match exec`, is not guessed: a look-up reports it as
undecided.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from dslaunch.errors import ConfigError, Problem
from dslaunch.transport.ssh.patterns import matches_any

USER_FILE = "~/.ssh/config"
SYSTEM_FILE = "/etc/ssh/ssh_config"
DEEPEST = 16
"""Levels of Include, as in OpenSSH."""
LARGEST = 4 * 2**20
"""Bytes of a configuration or a key."""
LARGEST_KNOWN_HOSTS = 64 * 2**20
"""Bytes of a known_hosts file: three keys for each of 50,000 nodes."""
_LINE = re.compile(r"(?P<keyword>[A-Za-z0-9]+)(?:\s*=\s*|\s+|(?=\"))(?P<rest>.*)", re.DOTALL)
_REST_OF_LINE = {"knownhostscommand", "localcommand", "proxycommand", "remotecommand"}
_SEVERAL = {"certificatefile", "identityfile"}
"""Options whose values add up; of the others the first one holds."""
_HOST_NAMES = {"host", "originalhost"}
_CRITERIA = {*_HOST_NAMES, "localuser", "user"}


class Directive(Struct, frozen=True):
    """One line of a configuration file."""

    keyword: str
    """In lower case; empty for a line that cannot be parsed."""
    words: tuple[str, ...]
    place: str
    """`FILE:LINE`."""
    included: tuple[tuple[Directive, ...], ...] = ()
    """The files that an Include names."""


Directives = tuple[Directive, ...]


class Asked(Struct, frozen=True):
    """The host that a look-up is about."""

    alias: str
    """The host's name as the user wrote it."""
    user: str | None
    """The user named on the command line or in the cluster file."""
    local_user: str


class Options(Struct):
    """The options of one host, and the lines that could not be decided."""

    found: dict[str, list[Directive]] = field(default_factory=dict)
    undecided: list[Directive] = field(default_factory=list)

    def first(self, keyword: str) -> str | None:
        """Return an option's first word; None if it is not set."""
        words = self.words(keyword)
        return words[0] if words else None

    def words(self, keyword: str) -> tuple[str, ...]:
        """Return all words of an option."""
        return tuple(word for directive in self.found.get(keyword, ()) for word in directive.words)

    def add(self, directive: Directive) -> None:
        """Keep the directive, unless an earlier one holds already."""
        # one of ProxyJump and ProxyCommand, whichever comes first
        rivals = {"proxyjump": "proxycommand", "proxycommand": "proxyjump"}
        if rivals.get(directive.keyword) in self.found:
            return
        kept = self.found.setdefault(directive.keyword, [])
        if not kept or directive.keyword in _SEVERAL:
            kept.append(directive)


def look_up(files: Sequence[Directives], asked: Asked) -> Options:
    """Return the options for a host; the first file that sets one wins."""
    options = Options()
    for directives in files:
        _evaluate(directives, asked, options)
    return options


def _evaluate(directives: Directives, asked: Asked, options: Options) -> None:
    active = True
    for directive in directives:
        if directive.keyword == "host":
            active = matches_any(asked.alias, directive.words)
        elif directive.keyword == "match":
            matched = _match(directive, asked, options)
            if matched is None:
                options.undecided.append(directive)
            active = matched is True
        elif not active:
            continue
        elif directive.keyword == "include":
            for included in directive.included:
                _evaluate(included, asked, options)
        elif directive.keyword == "":
            options.undecided.append(directive)
        else:
            options.add(directive)


def _match(directive: Directive, asked: Asked, options: Options) -> bool | None:
    """Return whether a Match line holds; None if only OpenSSH can tell."""
    words = list(directive.words)
    undecided = not words
    while words:
        criterion = words.pop(0).lower()
        negated = criterion.startswith("!")
        criterion = criterion.lstrip("!")
        if criterion == "all":
            continue
        if criterion not in _CRITERIA or not words:
            undecided = True  # a later criterion may still decide that it does not hold
            if words and criterion not in ("canonical", "final"):
                words.pop(0)
            continue
        patterns = words.pop(0)
        if criterion in _HOST_NAMES:
            patterns = patterns.lower()  # as OpenSSH does; the name itself is left as it is
        subject = _subject(criterion, asked, options)
        if matches_any(subject, patterns.split(",")) == negated:
            return False
    return None if undecided else True


def _subject(criterion: str, asked: Asked, options: Options) -> str:
    """Return what a criterion's patterns are compared with."""
    if criterion == "originalhost":
        return asked.alias
    if criterion == "localuser":
        return asked.local_user
    if criterion == "user":
        return asked.user or options.first("user") or asked.local_user
    host = options.first("hostname") or asked.alias
    return host.replace("%h", asked.alias).replace("%%", "%")


# ------------------------------------------------------------------- reading


def read(path: Path, base: Path, depth: int = 0) -> Directives:
    """Return a file's directives, with the files that it includes; none if there is no file.

    Names in Include that are not absolute are below `base`.
    """
    return tuple(
        _directive(line, f"{path}:{number}", base, depth)
        for number, line in enumerate(read_text(path).split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    )


def read_text(path: Path, largest: int = LARGEST) -> str:
    """Return the text of a regular file; empty for everything else.

    Raises ConfigError for a file that is too large: what ssh would read in it may restrict.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return ""
        if status.st_size <= largest:
            return os.fsdecode(path.read_bytes())
    except OSError:
        return ""
    why = f"larger than the limit of {largest >> 20} MiB for SSH files"
    raise ConfigError((Problem(file=str(path), line=0, column=0, path="", message=why),))


def split_line(line: str) -> tuple[str, str] | None:
    """Return the keyword of a line in lower case and the rest; None: it cannot be parsed."""
    parts = _LINE.fullmatch(line.strip())
    return None if parts is None else (parts["keyword"].lower(), parts["rest"])


def _directive(line: str, place: str, base: Path, depth: int) -> Directive:
    parts = split_line(line)
    if parts is None:
        return Directive("", (line.strip(),), place)
    keyword, rest = parts
    if keyword in _REST_OF_LINE:
        return Directive(keyword, (rest,), place)
    try:
        words = tuple(words_of(rest))
    except ValueError:
        return Directive("", (line.strip(),), place)
    if keyword != "include":
        return Directive(keyword, words, place)
    # newer releases of OpenSSH replace tokens and variables in the names
    if depth == DEEPEST or "%" in rest or "${" in rest:
        return Directive("", (line.strip(),), place)
    included = tuple(read(path, base, depth + 1) for word in words for path in _glob(word, base))
    return Directive(keyword, words, place, included)


def words_of(text: str) -> list[str]:
    """Return the words of a line up to a comment. Raises ValueError for quotes that do not match.

    A comment begins with a word: `node#1` is a name.
    """
    lexer = shlex.shlex(re.sub(r"(?<!\S)#.*", "", text, count=1), posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _glob(pattern: str, base: Path) -> list[Path]:
    path = Path(pattern).expanduser()
    return [Path(name) for name in sorted(glob.glob(str(base / path)))]  # noqa: PTH207 - absolute
