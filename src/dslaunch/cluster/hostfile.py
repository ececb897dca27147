"""DeepSpeed's hostfile, `host slots=N`, read strictly. Pure."""

from __future__ import annotations

import re

from dslaunch.errors import ConfigError, Problem

_LINE = re.compile(r"(\S+)\s+slots=([0-9]+)(?:\s+max_slots=[0-9]+)?\s*(?:#.*)?", re.ASCII)


def parse_hostfile(text: str, file: str) -> tuple[tuple[str, int], ...]:
    """Read host and slots of each line. Raises ConfigError with every bad line.

    DeepSpeed ignores what follows the digits (0.19.8, launcher/runner.py, `_parse_hostfile`), so
    that `a slots=4,b slots=2` is one host there; here that is an error.
    """
    found: dict[str, int] = {}
    problems = []
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            problems.append(Problem(file, number, 1, "", f"expected `host slots=N`, got {line!r}"))
        elif match[1] in found:
            problems.append(Problem(file, number, 1, "", f"host {match[1]!r} is there already"))
        elif int(match[2]) == 0:
            problems.append(Problem(file, number, 1, "", f"host {match[1]!r} has no slots"))
        else:
            found[match[1]] = int(match[2])
    if not found and not problems:
        problems.append(Problem(file, 0, 0, "", "has no host: expected lines of `host slots=N`"))
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(found.items())
