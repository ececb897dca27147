"""Looks for a secret wherever others could find it: a table of its forms made independently of the
code that masks them, and scans of files and processes. Also a program, for virtual nodes:

    python secret_scan.py DIRECTORY... < forms-as-json
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST = 64 << 20
"""Bytes of a file that are searched."""

JOB = """
import base64, json, os, sys, time, urllib.parse
token, rank = os.environ["TOKEN"], int(os.environ["RANK"])
def show():
    for before in range(3):
        print(base64.b64encode(b"x" * before + token.encode() + b"tail").decode())
    print(token, repr(token), ascii(token), [token.encode()], json.dumps({"t": [token]}))
    print(json.dumps(token, ensure_ascii=False), urllib.parse.quote(token), token.encode().hex())
    print(token.splitlines()[0], file=sys.stderr, flush=True)
    os.write(1, token.encode()[:9]); time.sleep(0.2); os.write(1, token.encode()[9:] + b"\\n")
    print("shown by", rank, flush=True)
def main():
    show()
    while not os.path.exists(sys.argv[-1]):
        time.sleep(0.05)
    if rank == 1:
        raise RuntimeError("token " + token)
    time.sleep(60)
if "TORCHELASTIC_ERROR_FILE" in os.environ:  # without it, torch's record does nothing
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)
main()
"""
"""Shows its secret in all forms, waits for a file, and fails with the secret in the exception."""


def forms(secret: str) -> list[bytes]:
    """What must not be found: texts, and the middle of Base64 and of hexadecimal digits."""
    texts = {
        secret,
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        urllib.parse.quote(secret),
        *(line for line in secret.splitlines() if len(line) >= 8),
    }
    data = secret.encode()
    encoded = [base64.b64encode(b"x" * before + data)[4:-4] for before in range(3)]
    return [*(text.encode() for text in texts), *encoded, data.hex().encode()]


def found_in(data: bytes, secret_forms: Iterable[bytes]) -> list[str]:
    """The forms that some data holds."""
    return [form.decode() for form in secret_forms if form in data]


def content(path: Path, most: int) -> bytes:
    """The beginning of a regular file; nothing of anything else, and of what cannot be read."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(most)
    return b""


def scan_files(above: str, secret_forms: list[bytes]) -> Iterator[str]:
    """The regular files that hold a form."""
    for path in Path(above).rglob("*"):
        yield from (f"{path}: {form}" for form in found_in(content(path, MOST), secret_forms))


def scan_processes(secret_forms: list[bytes]) -> Iterator[str]:
    """The processes with a form on their command line; and in their environment, unless they are
    the run's own: these alone have the run's id there, and must have the secret."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (process / "environ").read_bytes()
            places = {"cmdline": (process / "cmdline").read_bytes()}
            if b"DSLAUNCH_RUN_ID=" not in environment:
                places["environ"] = environment
            # regular files that it holds open, also those that have no name any more
            for fd in (process / "fd").iterdir():
                places[f"{fd.name}, {fd.readlink()}"] = content(fd, 1 << 20)
            for place, data in places.items():
                yield from (f"{process}/{place}: {form}" for form in found_in(data, secret_forms))


def scan(directories: Iterable[str], secret_forms: list[bytes]) -> list[str]:
    """Everything that is found."""
    in_files = [hit for above in directories for hit in scan_files(above, secret_forms)]
    return [*in_files, *scan_processes(secret_forms)]


if __name__ == "__main__":
    print(json.dumps(scan(sys.argv[1:], [form.encode() for form in json.load(sys.stdin)])))
