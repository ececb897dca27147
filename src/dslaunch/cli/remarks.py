"""Remarks on a user's text, in the form that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.lint import Remark

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sarif = Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")]
Github = Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")]
Form = Literal["text", "json", "sarif", "github"]


def form(*, as_json: bool, sarif: bool, github: bool) -> Form:
    """The form that the options name. Raises UsageError for two of them."""
    if as_json + sarif + github > 1:
        raise UsageError("--json, --sarif and --github: one of them")
    return "json" if as_json else "sarif" if sarif else "github" if github else "text"


def show(remarks: Sequence[Remark], form: Form) -> None:
    """Print the remarks."""
    from dslaunch import __version__
    from dslaunch.report import lint as report

    if form == "sarif":
        ui.result(report.as_sarif(remarks, __version__))
    elif form == "github":
        ui.result(report.as_github(remarks))
    else:
        ui.result(report.as_json(remarks) if form == "json" else report.as_text(remarks))
