"""`--verbose` and `--log-file`: before and after every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from dslaunch.cli.output_files import output_option
from dslaunch.cli.signatures import parameters_of, take

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Log each step to standard error; -vv: also each message.",
    ),
]
LogFile = Annotated[
    Path | None,
    output_option("--log-file", text="Append the log of -vv to a file, as JSON lines."),
]


def _options(
    log_context: typer.Context, log_verbose: Verbose = 0, log_file: LogFile = None
) -> None:
    """Define the parameters that every command gets."""


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the logging options after its own."""

    @wraps(command)
    def logged(
        log_context: typer.Context, log_verbose: int, log_file: Path | None, **own: Any
    ) -> None:
        before = log_context.find_root().params
        verbose = before.get("verbose", 0) + log_verbose
        with logging_to(verbose, log_file or before.get("log_file")):
            command(**own)

    take(logged, [*parameters_of(command), *parameters_of(_options)])
    return logged


@contextmanager
def logging_to(verbose: int, file: Path | None) -> Iterator[None]:
    """Log to standard error and to a file while the block lasts. Raises UsageError."""
    if not verbose and file is None:
        yield
        return
    import logging

    from dslaunch.cli.log_handlers import ToFile, ToStream, ToTerminal

    handlers: list[ToStream] = []
    if verbose:
        handlers.append(ToTerminal(logging.INFO if verbose == 1 else logging.DEBUG))
    if file is not None:
        handlers.append(ToFile(file))
    root = logging.getLogger()
    usual = root.level
    root.setLevel(min(handler.level for handler in handlers))
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(usual)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
