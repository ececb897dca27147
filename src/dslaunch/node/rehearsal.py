"""What the ranks of a rehearsal have recorded: `hook_rehearsal.py` writes it."""

from __future__ import annotations

import contextlib
import json
import os

from dslaunch.node import hook_rehearsal, private

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    Answer = Dict[str, Any]

HOOKS = {hook_rehearsal: hook_rehearsal.IMPORTS}
"""The hook of rehearsals, for `rank_hooks.arm`."""
MOST_AT_ONCE = 256 * 1024
"""Bytes of one rank that one answer has at most; the rest is in the next one."""


def prepare(
    directory: str, steps: int, world: "Optional[int]" = None, secrets: "Iterable[str]" = ()
) -> Dict[str, str]:
    """Make the directory of the records; return the variables of the ranks. Raises OSError.

    `world`: ranks of the real run, if the rehearsal has fewer; `secrets`: names of variables.
    """
    private.make_directory(os.path.join(directory, hook_rehearsal.DIRECTORY))
    variables = {hook_rehearsal.STEPS: str(steps), hook_rehearsal.SECRETS: ",".join(secrets)}
    if world is not None:
        variables[hook_rehearsal.WORLD] = str(world)
    return variables


def records(directory: str, ranks: Iterable[int], after: Dict[str, int]) -> Dict[str, Answer]:
    """Return what ranks have recorded: rank -> `records`, and `position`, where to read next.

    `after`: rank -> the position to read from. Ranks with nothing new are left out. Raises OSError.
    """
    found = {}
    with private.opened(os.path.join(directory, hook_rehearsal.DIRECTORY)) as within:
        for rank in ranks:
            begin = after.get(str(rank), 0)
            with contextlib.suppress(FileNotFoundError):
                lines, position = _lines(f"{rank}.jsonl", within, begin)
                if position > begin:
                    found[str(rank)] = {"records": lines, "position": position}
    return found


def _lines(name: str, within: int, begin: int) -> Tuple[List[Any], int]:
    """Return the whole lines of a file from a position on, and the position after them."""
    with os.fdopen(private.open_file(name, os.O_RDONLY, within), "rb") as file:
        file.seek(begin)
        data = file.read(MOST_AT_ONCE)
    whole = data[: data.rfind(b"\n") + 1]
    parsed = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            parsed.append(json.loads(line))
    return parsed, begin + len(whole)
