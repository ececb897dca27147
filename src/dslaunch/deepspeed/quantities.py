"""Parse quantities: `80GB`, `1TiB`, `7e9`, `7B`, `100Gbit`. Pure."""

from __future__ import annotations

import re

from dslaunch.errors import ErrorCode, UsageError

PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
MOST = 10**18
"""The largest number of bytes or parameters."""
NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"


def _invalid(option: str, text: str, *, expected: str, example: str) -> UsageError:
    return UsageError.coded(
        ErrorCode.INVALID_OPTION, option=option, value=text, expected=expected, example=example
    )


def parse_bytes(text: str, option: str) -> int:
    """Return bytes: `80GB` is 80 * 10^9, `80GiB` is 80 * 2^30.

    Raises UsageError, also without a unit.
    """
    found = re.fullmatch(NUMBER + r"\s*([kmgtp]?)(i?)b", text.strip(), re.IGNORECASE)
    if not found or (found[3] and not found[2]):
        raise _invalid(option, text, expected="an amount of memory", example="80GB or 80GiB")
    base: int = 1024 if found[3] else 1000
    size = float(found[1]) * float(base ** PREFIXES[found[2].lower()])
    if size > MOST:
        raise _invalid(option, text, expected="at most 1000 PB", example="80GB or 80GiB")
    return round(size)


def parse_rate(text: str, option: str) -> float:
    """Return bytes per second from `100Gbit`, `100Gb/s` (bits) or `12.5GB/s` (bytes).

    A small `b` is a bit. Raises UsageError.
    """
    pattern = NUMBER + r"\s*([kKmMgGtT]?)(i?)(bits?|bps|b|B)(?:/s)?"
    found = re.fullmatch(pattern, text.strip())
    if not found or not 0 < float(found[1]) < MOST:
        raise _invalid(option, text, expected="a data rate", example="100Gbit or 12.5GB/s")
    base: int = 1024 if found[3] else 1000
    rate = float(found[1]) * float(base ** PREFIXES[found[2].lower()])
    return rate if found[4] == "B" else rate / 8


def parse_nodes(text: str, option: str) -> tuple[int, ...]:
    """Return the node counts of `1,2,4`, ascending, each once. Raises UsageError."""
    if not re.fullmatch(r"\s*[1-9]\d{0,5}\s*(,\s*[1-9]\d{0,5}\s*)*", text):
        raise _invalid(option, text, expected="a list of node counts", example="1,2,4")
    return tuple(sorted(set(map(int, text.split(",")))))


COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_count(text: str, option: str) -> int:
    """Return a count from 1 to MOST: `7e9`, `7B`, `65M`, `2_783_959_040`. Raises UsageError."""
    found = re.fullmatch(NUMBER + r"([kmbgt]?)", text.strip().replace("_", ""), re.IGNORECASE)
    count = float(found[1]) * COUNTS[found[2].lower()] if found else 0
    if not 1 <= count <= MOST:
        raise _invalid(option, text, expected="a number from 1 to 1e18", example="7e9 or 7B")
    return round(count)
