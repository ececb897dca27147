"""Known endings of trainings: patterns of the last output, what they mean and what to do.

The built-in ones are in `known_endings.toml`; `registry.ENDINGS` has those of plugins too. The
first ending whose pattern matches the last output of a rank is used.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from dslaunch.errors import PluginError
from dslaunch.registry import ENDINGS, broken_plugin


class KnownEnding(Struct, frozen=True):
    """One ending. `{0}` and `{1}` in its texts are the groups of the pattern."""

    code: str
    """The name of the ending, for machines."""
    pattern: str
    """A regular expression; compiled only when a run has failed."""
    what: str
    advice: str
    source: str
    """Where the rule comes from: a project's issue, its documentation or its code."""
    secondary: bool = False
    """The rank failed as a consequence: another one failed, or did not respond."""
    waited: bool = False
    """The rank failed as a consequence, after a timeout waiting for another one."""
    any_level: bool = False
    """Also matches lines that their program marks as information or a warning."""
    node_fault: bool = False
    """A fault of the node's hardware or driver."""
    last_resort: bool = False
    """It only says that another process failed, whose own words come earlier in the output."""
    last_exception: bool = False
    """Only the exception that ended the rank is meant: scripts catch such ones, and print them."""


LOOK_ELSEWHERE = "look for another rank that failed, hung or lost its network earlier"
"""The advice for ranks that failed because of another one."""


@cache
def built_in() -> Mapping[str, KnownEnding]:
    """Return the built-in endings by code, special ones first."""
    text = Path(__file__).with_name("known_endings.toml").read_text("utf-8")
    rows: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {code: _ending(code, **row) for code, row in rows.items()}


def _ending(code: str, patterns: list[str], **fields: Any) -> KnownEnding:
    fields = {"advice": LOOK_ELSEWHERE, **fields}
    return KnownEnding(code=code, pattern="|".join(patterns), **fields)


@cache
def known_endings() -> tuple[KnownEnding, ...]:
    """Return all known endings, those of plugins first: they are more specific.

    A broken plugin must not hide why a run failed: it is skipped, with a warning in the log.
    """
    try:
        return (*_installed(), *built_in().values())
    except PluginError as error:
        logging.getLogger(__name__).warning("%s", error)
        return tuple(built_in().values())


def _installed() -> Iterator[KnownEnding]:
    """Yield the endings of plugins that can be used. Raises PluginError."""
    for name, known in ENDINGS.installed().items():
        if known.code != name:
            raise broken_plugin([ENDINGS.entries()[name]], f"has the code `{known.code}`")
        try:
            re.compile(known.pattern)
            known.what.format("", "")
            known.advice.format("", "")
        except (re.error, LookupError, ValueError) as error:
            raise broken_plugin([ENDINGS.entries()[name]], f"cannot be used: {error}") from None
        yield known


def is_node_fault(code: str | None) -> bool:
    """Return whether an ending of this code is a fault of the node's hardware or driver."""
    return any(known.node_fault for known in known_endings() if known.code == code)
