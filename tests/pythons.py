"""The interpreters of this machine, for tests of what runs under every Python of a node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def interpreter(minor: int) -> str:
    """A Python 3 of that minor version that starts; skips the test when there is none."""
    for candidate in _candidates(f"python3.{minor}"):
        if not subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode:
            return candidate
    pytest.skip(f"no python3.{minor} starts here")


def _candidates(name: str) -> Iterator[str]:
    # on the PATH may be a shim of pyenv's, which refuses versions that are not chosen
    found = shutil.which(name)
    if found:
        yield found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(map(str, root.glob(f"versions/*/bin/{name}")))
