"""Write a file and remove it, and say how fast that went: a program of its own, read from standard
input."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict

PIECE = 8 << 20
SPARE = 4
"""So many times the size must be free: a measurement must not fill a disk."""


def main(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Write `bytes` to the new file `name` in `path`, for `seconds` at most, with fsync. `writers`:
    how many do so at once. Gives bytes and seconds; or `error`."""
    home = os.path.expanduser("~")
    path = os.path.join(home, os.path.expanduser(arguments["path"]), arguments["name"])
    try:
        space = os.statvfs(os.path.dirname(path))
        if space.f_bavail * space.f_frsize < SPARE * arguments["writers"] * arguments["bytes"]:
            return {"error": "too little free space to try"}
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            return write(handle, arguments["bytes"], arguments["seconds"])
        finally:
            os.close(handle)
            os.unlink(path)
    except OSError as error:
        return {"error": error.strerror or str(error)}


def write(handle: int, size: int, seconds: float) -> Dict[str, Any]:
    """Write pieces of what cannot be compressed; each is on the disk before the next one."""
    piece = os.urandom(min(PIECE, size))
    began = time.monotonic()
    written = 0
    while written < size and time.monotonic() - began < seconds:
        written += os.write(handle, piece[: size - written])
        os.fsync(handle)
    return {"bytes": written, "seconds": round(time.monotonic() - began, 6)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
