"""What a compromised node runs instead of Python: it lies in the way that its name says.

It is started by the launcher as the node's interpreter, reads the program that the launcher sends,
and answers in its place.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

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


def main(lie: str) -> None:
    """Answer each line by a lie until the launcher hangs up."""
    if lie.startswith("noise"):
        for _ in range(7 << 10):
            os.write(1, b"x" * 1023 + b"\n")
        real()
    mark = program()
    if lie in WHOLE:
        flood(WHOLE[lie].replace(b"MARK", mark))
    send(mark, {"hello": [] if lie == "greeting" else HELLO})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "questions" in request:
            send(mark, {"answers": ANSWERS[lie](request["questions"])})
        else:
            send(mark, {"clock": "noon" if lie == "clock" else 0.0})


def real() -> NoReturn:
    """Become the interpreter that this one stands for."""
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def program() -> bytes:
    """Take the program that is sent, and give its mark."""
    size = int(sys.stdin.buffer.readline())
    loader = sys.stdin.buffer.read(size).decode()
    sizes = re.search(r"for size in \((\d+), (\d+)\)", loader)
    arguments = re.search(r"^main\((.*)\)$", loader, re.MULTILINE)
    assert sizes is not None and arguments is not None
    sys.stdin.buffer.read(int(sizes[1]) + int(sizes[2]))
    return str(ast.literal_eval(arguments[1])["mark"]).encode()


def flood(piece: bytes) -> None:
    """Write without an end."""
    begin, _, again = piece.partition(b"...")
    os.write(1, begin)
    while again:
        os.write(1, again * 4096)


def send(mark: bytes, message: Any) -> None:
    """Send one line."""
    data = memoryview(mark + json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


WHOLE = {
    "endless noise": b"...x",
    "endless line": b"MARK...x",
    "no JSON": b"MARK{\n",
    "JSON of another kind": b"MARK[]\n",
    "deep JSON": b"MARK" + b"[" * 5_000_000 + b"\n",
    "many values": b"MARK[" + b"{}," * 2_500_000 + b"{}]\n",
    "huge number": b'MARK{"hello": ' + b"9" * 5_000_000 + b"}\n",
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
