"""Secret values on this machine: read when a run starts, never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from dslaunch.cluster.model import SecretSource
from dslaunch.errors import ErrorCode, UsageError

_LONGEST_VARIABLE = 128 * 1024
"""Bytes of `NAME=value` with its final NUL that Linux takes (execve(2), MAX_ARG_STRLEN)."""


class Secret:
    """A secret value. Nothing shows it: no traceback, no record.

    Not a Struct, because `to_builtins` of a value that contains it would return its fields.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value, to hand it to a process."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither copied nor written anywhere")


class _UnusableError(Exception):
    """Why a secret cannot be read, without its value."""


def read_secrets(
    sources: tuple[SecretSource, ...], environ: Mapping[str, str]
) -> dict[str, Secret]:
    """Read the secrets' values; an empty one is a value.

    Raises UsageError naming every one that is missing or that cannot be an environment variable.
    """
    values, problems = {}, []
    for source in sources:
        try:
            values[source.name] = _read(source, environ)
        except _UnusableError as problem:
            problems.append(f"secret {source.name}{problem}")
    if problems:
        raise UsageError(
            "\n".join(problems),
            hint="set it, or remove it from `secrets:`",
            code=ErrorCode.UNUSABLE_SECRET,
        )
    return values


def _read(source: SecretSource, environ: Mapping[str, str]) -> Secret:
    if source.file is None:
        if source.name not in environ:
            raise _UnusableError(" is not set in the environment")
        # Python keeps bytes that are not UTF-8 in variables as lone surrogates
        data = environ[source.name].encode("utf-8", "surrogateescape")
        where = ""
    else:
        data = _content(source.file)
        where = f": {source.file}"
    try:
        value = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _UnusableError(
            f"{where}: is not UTF-8 text; encode it, for example in Base64"
        ) from None
    if source.file is not None:
        value = value.removesuffix("\n")
    if "\0" in value:
        raise _UnusableError(f"{where}: has a NUL byte, which no environment variable can hold")
    if len(source.name) + len(value.encode()) + 2 > _LONGEST_VARIABLE:
        raise _UnusableError(
            f"{where}: is longer than 128 KiB, the limit of Linux for one variable"
        )
    return Secret(value)


def _content(file: str) -> bytes:
    """Return a file's content; of one that is too long only as much as shows that."""
    try:
        with Path(file).expanduser().open("rb") as opened:
            return opened.read(_LONGEST_VARIABLE)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _UnusableError(f": {file}: {reason}") from None
