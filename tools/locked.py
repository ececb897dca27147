"""Read the lock files: requirements/*.lock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"


class Locked(NamedTuple):
    """One version of a package, and the hashes of its files."""

    name: str
    version: str
    requirement: Requirement
    hashes: list[str]

    def applies(self, python: str | None = None) -> bool:
        """Return whether it is installed on this platform; `python`: another version than ours."""
        marker = self.requirement.marker
        if marker is None:
            return True
        return marker.evaluate({"python_full_version": python} if python else None)


def read_lock(name: str) -> list[Locked]:
    """Return the entries of `requirements/NAME`, in its order."""
    text = (REQUIREMENTS / name).read_text("utf-8").replace("\\\n", " ")
    return [_entry(line) for line in text.splitlines() if line.strip()]


def _entry(line: str) -> Locked:
    words, *hashes = re.split(r"\s+--hash=", line)
    requirement = Requirement(words)
    (pin,) = requirement.specifier
    name = canonicalize_name(requirement.name)
    return Locked(name, pin.version, requirement, [text.strip() for text in hashes])
