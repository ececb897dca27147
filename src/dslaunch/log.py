"""Log records of what dslaunch does: what is asked, decided, connected and sent, and the times.

Every record has a code in `record.event` and values in `record.fields`, such as `node`, `run` and
`seconds`. Secrets are masked before a record is made, so that no handler ever has them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dslaunch.json_text import json_text

if TYPE_CHECKING:
    from dslaunch.node.redact import Secrets

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./\-\[\]*]+")
"""A value that needs no quotes."""


class _Mask:
    """Masks the secrets of all runs of this process."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._secrets: Secrets | None = None

    def add(self, values: Iterable[str]) -> None:
        new = set(values) - self._values
        if new:
            from dslaunch.node.redact import Secrets

            self._values |= new
            self._secrets = Secrets(self._values)

    def apply(self, value: Any) -> Any:
        return self._secrets.values(value) if self._secrets else value


_mask = _Mask()


def conceal(values: Iterable[str]) -> None:
    """Mask these secrets in all records from now on."""
    _mask.add(values)


def masked(text: str) -> str:
    """Return a text with all secrets masked, for records that libraries make."""
    return str(_mask.apply(text))


def masked_values(value: Any) -> Any:
    """Return a value as JSON has it, with all secrets masked in its texts."""
    return _mask.apply(value)


class Log:
    """Makes the records of one module, with fields that all of them have."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, name: str, **fields: object) -> None:
        self._logger = logging.getLogger(name)
        self._fields = fields

    def bind(self, **fields: object) -> Log:
        """Return a log whose records have these fields too."""
        return Log(self._logger.name, **self._fields, **fields)

    @property
    def records_info(self) -> bool:
        """Whether `info` records anything: what has to be computed for it may take long."""
        return self._logger.isEnabledFor(logging.INFO)

    def info(self, event: str, **fields: object) -> None:
        """Record a step that a person wants to follow."""
        self._record(logging.INFO, event, fields)

    def debug(self, event: str, **fields: object) -> None:
        """Record a detail, such as one message to one node."""
        self._record(logging.DEBUG, event, fields)

    def _record(self, level: int, event: str, fields: dict[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        given = {
            name: value for name, value in (self._fields | fields).items() if value is not None
        }
        shown = _mask.apply({name: _plain(value) for name, value in given.items()})
        text = " ".join([event, *(f"{name}={_quoted(value)}" for name, value in shown.items())])
        self._logger.log(level, "%s", text, extra={"event": event, "fields": shown})


def _plain(value: object) -> Any:
    """Return a value as JSON has it; times in milliseconds' precision."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return value if isinstance(value, str | int | None) else str(value)


def _quoted(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json_text(value, ascii_only=False)
