"""Handlers of log records: standard error for users, a file of JSON lines for programs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from dslaunch import log
from dslaunch.errors import UsageError
from dslaunch.json_text import json_text
from dslaunch.node import private
from dslaunch.report.output_stream import ERASE
from dslaunch.terminal import visible


class ToStream(logging.Handler):
    """Writes a line per record. A stream that fails loses log lines, but never stops a run."""

    def __init__(self, stream: TextIO, level: int) -> None:
        super().__init__(level)
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(self.format(record) + "\n")
            self.stream.flush()


class ToTerminal(ToStream):
    """Writes lines for users.

    Control characters are escaped: libraries log what servers send, such as SSH banners.
    """

    def __init__(self, level: int) -> None:
        super().__init__(sys.stderr, level)
        self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s: %(message)s", "%T"))

    def format(self, record: logging.LogRecord) -> str:
        """Return a line that replaces the progress line, which is then redrawn below it."""
        line = visible(log.masked(super().format(record)))
        return f"{ERASE}{line}" if self.stream.isatty() else line


class ToFile(ToStream):
    """Appends JSON objects to a file that only this user can access."""

    def __init__(self, path: Path) -> None:
        try:
            descriptor = private.open_file(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.fchmod(descriptor, 0o600)
        except OSError as error:
            raise UsageError(f"--log-file {path}: {error.strerror}") from None
        super().__init__(os.fdopen(descriptor, "w", encoding="utf-8"), logging.DEBUG)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a JSON object: its own fields, or the text of a library's record."""
        head = {"time": record.created, "level": record.levelname, "logger": record.name}
        if not hasattr(record, "event"):
            return json_text(head | {"text": log.masked(super().format(record))})
        return json_text(head | {"event": record.event} | vars(record)["fields"])

    def close(self) -> None:
        """Close the file."""
        self.stream.close()
        super().close()
