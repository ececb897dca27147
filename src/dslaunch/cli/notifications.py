"""`--notify`: tell programs and web services how a run has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from dslaunch.run.notification import Target
    from dslaunch.run.outcome import Outcome

Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="COMMAND|URL",
        help="Run a command or POST to a URL at the end, with the outcome as JSON.",
    ),
]


def targets_of(notify: list[str] | None) -> tuple[Target, ...]:
    """Return the commands and URLs to notify. Raises UsageError."""
    if not notify:
        return ()
    from dslaunch.run.notification import parse_target

    return tuple(map(parse_target, notify))


def tell(targets: tuple[Target, ...], outcome: Outcome, directory: Path | None) -> None:
    """Notify all targets; print a warning for each that fails."""
    if not targets:
        return
    from dslaunch.run.notification import message_of, notify

    message = message_of(outcome, directory)
    for target in targets:
        failure = notify(target, message)
        if failure is not None:
            ui.tell(f"warning: {failure.text}")


def check_launcher_stays(option: str, *, given: bool, detach: bool) -> None:
    """Raise UsageError for an option that needs a launcher, with `--detach`."""
    if given and detach:
        raise UsageError(
            f"--detach and {option} exclude each other: no launcher sees the end",
            hint="run it without --detach in tmux or screen",
        )
