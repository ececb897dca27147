"""Fixtures of the tests that need a GPU; where there is none they are skipped with the reason."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import LISTED, LOOK, Device, Machine, output_of, versions

SEEN = pytest.StashKey[str]()
"""What the machine has, in words."""


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> tuple[Device, ...]:
    """Return the GPUs that PyTorch sees; skip the test where there are none, or not all."""
    # in processes of their own: a CUDA context here would use memory that the tests measure
    seen = output_of([sys.executable, "-c", LOOK])
    listed = output_of(LISTED)
    if listed is None:
        pytest.skip("no NVIDIA GPU: nvidia-smi is missing or fails")
    if seen is None:
        pytest.skip("PyTorch cannot be imported here")
    found = tuple(Device(**each) for each in json.loads(seen.splitlines()[-1]))
    if not found:
        pytest.skip("PyTorch sees no GPU: it is built without CUDA, or the driver is too old")
    if len(found) != len(listed.splitlines()):
        pytest.skip("PyTorch does not see all GPUs: unset CUDA_VISIBLE_DEVICES; disable MIG")
    pytestconfig.stash[SEEN] = described(found)
    return found


def described(found: tuple[Device, ...]) -> str:
    """Return the GPUs and the versions of what uses them, as one line."""
    driver = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    names = ", ".join(f"{count} x {name}" for name, count in Counter(d.name for d in found).items())
    return f"{names}; driver {(driver or '?').splitlines()[0]}; {versions()}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the tests ran on, and the figures that they measured."""
    passed = terminalreporter.getreports("passed")
    figures = [f"{name}: {value}" for report in passed for name, value in report.user_properties]
    for line in (config.stash.get(SEEN, "no GPU was tested"), *figures):
        terminalreporter.write_line(line)


@pytest.fixture
def machine(tmp_path: Path, devices: tuple[Device, ...]) -> Iterator[Machine]:
    """Return the node with a slot for each GPU; nothing of its runs may be left at the end."""
    state = tmp_path / "state"
    directory = tmp_path / "project"
    directory.mkdir()
    own = {"DSLAUNCH_STATE": str(state), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "COLUMNS": "200"}
    made = Machine(directory, {**os.environ, **own}, state)
    made.describe(len(devices))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert made.left() == []
