"""What a compromised node runs instead of Python: it lies in the way that its name says.

It is started by the launcher as the node's interpreter, reads the program that the launcher sends,
and answers in its place.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

HELLO = {
    "hostname": "n2",
    "kernel": "6.1",
    "machine": "x86_64",
    "boot": "b",
    "network": "net:[1]",
    "python": [3, 11, 2],
    "executable": "/usr/bin/python3",
    "uid": 1000,
    "home": "/root",
    "cores": 8,
    "umask": 18,
}
ESCAPES = "\x1b[2J\x1b]0;owned\x07"


HEADER = struct.Struct(">IBQ")
GREETING = b"\0dslaunch-agent-2\n"


def main(lie: str) -> None:
    """Answer each request by a lie until the launcher hangs up."""
    if lie.startswith("noise"):
        for _ in range(7 << 10):
            os.write(1, b"x" * 1023 + b"\n")
        real()
    if lie == "deaf":
        time.sleep(60)
        return
    take_program()
    if lie in WHOLE:
        flood(WHOLE[lie])
    os.write(1, GREETING)
    while True:
        header = sys.stdin.buffer.read(HEADER.size)
        if not header:
            return
        request = json.loads(sys.stdin.buffer.read(HEADER.unpack(header)[0]))
        reply = {"reply": request["id"], "time": 0.0, "value": None}
        if "questions" in request:
            hello = [] if lie == "greeting" else HELLO
            reply["value"] = {"hello": hello, "answers": ANSWERS[lie](request["questions"])}
        elif lie == "clock":
            reply["time"] = "noon"
        send(json.dumps(reply).encode())


def real() -> NoReturn:
    """Become the interpreter that this one stands for."""
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def take_program() -> None:
    """Read the program that is sent."""
    size = int(sys.stdin.buffer.readline())
    loader = sys.stdin.buffer.read(size).decode()
    sizes = re.search(r"for size in \(([0-9, ]+)\)", loader)
    assert sizes is not None
    sys.stdin.buffer.read(sum(map(int, sizes[1].split(","))))


def message(body: bytes, size: int | None = None) -> bytes:
    """A frame, with a length that may not be its own."""
    return HEADER.pack(len(body) if size is None else size, 1, 0) + body


def flood(piece: bytes) -> None:
    """Write without an end."""
    begin, _, again = piece.partition(b"...")
    os.write(1, begin)
    while again:
        os.write(1, again * 4096)


def send(body: bytes) -> None:
    """Send one message."""
    data = memoryview(message(body))
    while data:
        data = data[os.write(1, data) :]


WHOLE = {
    "endless noise": b"...x",
    "no frames": GREETING + b"...x",
    "endless message": GREETING + HEADER.pack(15 << 20, 1, 0) + b"...x",
    "endless replies": GREETING + b"..." + message(b'{"reply":99,"time":0.0}'),
    "no JSON": GREETING + message(b"{\n"),
    "JSON of another kind": GREETING + message(b"[]"),
    "deep JSON": GREETING + message(b"[" * 5_000_000),
    "many values": GREETING + message(b"[" + b"{}," * 2_500_000 + b"{}]"),
    "huge number": GREETING + message(b'{"hello": ' + b"9" * 5_000_000 + b"}"),
    "an event": GREETING + message(b'{"event":"joined","time":1.0}'),
}
ANSWERS = {
    "greeting": lambda asked: {},
    "clock": lambda asked: {},
    "answers of another type": lambda asked: {key: {"value": [1, "a", None]} for key in asked},
    "no answers": lambda asked: {},
    "escapes": lambda asked: {key: {"error": ESCAPES} for key in asked},
    "keys that were not asked": lambda asked: {"": ESCAPES, ESCAPES: {"value": 5}},
}


if __name__ == "__main__":
    main(Path(sys.argv[0]).stem)
