"""Paramiko is imported without Invoke, and Invoke stays what it is for everybody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = """
import sys
import dslaunch.transport.ssh.paramiko_link
print("invoke" in sys.modules)
import invoke
print(invoke.run("exit 3", warn=True).exited)
"""
IMPORTED_BEFORE = """
import invoke, sys
import dslaunch.transport.ssh.paramiko_link
print(sys.modules["invoke"] is invoke)
import paramiko
print(paramiko.config.invoke is invoke)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(IMPORTED, ["False", "3"], id="imported after Paramiko"),
        pytest.param(IMPORTED_BEFORE, ["True", "True"], id="imported before it"),
    ],
)
def test_what_paramiko_does_without_can_be_imported(program: str, printed: list[str]) -> None:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert (done.stdout.split(), done.stderr) == (printed, "")
