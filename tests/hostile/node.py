"""A compromised node: its Python runs the real agent, and changes what that says.

`compromised` makes an interpreter for a node's `python:`. What the launcher starts with it is the
real program; every message on its way back to the launcher goes through a function of the test,
which may change it, drop it, or send other bytes. What the launcher sends is kept in a file.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

_PROGRAM = """\
#!{python} -I
import importlib.util, json, os, struct, subprocess, sys, threading

HEADER = struct.Struct(">IBQ")
GREETING = b"\\0dslaunch-agent-2\\n"
{tamper}

child = subprocess.Popen(
    [{python!r}, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
)


def inwards():
    with open({received!r}, "ab", buffering=0) as kept:
        while True:
            data = os.read(0, 65536)
            kept.write(data)
            if not data:
                break
            try:
                child.stdin.write(data)
            except OSError:
                break
    child.stdin.close()


def send(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]


def outwards():
    buffer = b""
    while GREETING not in buffer:
        data = os.read(child.stdout.fileno(), 65536)
        if not data:
            send(buffer)
            return
        buffer += data
    before, _, buffer = buffer.partition(GREETING)
    send(before + GREETING)
    while True:
        while len(buffer) >= HEADER.size:
            length, kind, number = HEADER.unpack_from(buffer)
            if len(buffer) < HEADER.size + length:
                break
            body = buffer[HEADER.size:HEADER.size + length]
            whole, buffer = buffer[:HEADER.size + length], buffer[HEADER.size + length:]
            if kind == 1:
                changed = tamper(json.loads(body))
                if isinstance(changed, dict):
                    body = json.dumps(changed).encode()
                    whole = HEADER.pack(len(body), kind, number) + body
                else:
                    whole = changed or b""
            send(whole)
        data = os.read(child.stdout.fileno(), 65536)
        if not data:
            return
        buffer += data


threading.Thread(target=inwards, daemon=True).start()
try:
    outwards()
except OSError:
    pass
child.kill()
"""


def compromised(directory: Path, tamper: str) -> Path:
    """Make an interpreter whose agent's messages go through `tamper`, the text of a function
    `tamper(message)` that gives the message to send, bytes instead, or None."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "python"
    text = _PROGRAM.format(
        python=sys.executable,
        tamper=textwrap.dedent(tamper),
        received=str(directory / "received"),
    )
    program.write_text(text)
    program.chmod(0o755)
    return program


def received(program: Path) -> bytes:
    """All that the launcher sent to a compromised node."""
    return (program.parent / "received").read_bytes()
