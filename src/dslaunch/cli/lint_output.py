"""Print remarks of a lint as text, JSON, SARIF or annotations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.lint import Remark

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sarif = Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")]
Github = Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="RULE", help="Leave out a rule; repeatable, or with commas."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail at warnings too.")]
Form = Literal["text", "json", "sarif", "github"]


def form(*, as_json: bool, sarif: bool, github: bool) -> Form:
    """Return the format that the options name. Raises UsageError for two of them."""
    wanted: list[Form] = []
    if as_json:
        wanted.append("json")
    if sarif:
        wanted.append("sarif")
    if github:
        wanted.append("github")
    if len(wanted) > 1:
        raise UsageError("--json, --sarif and --github: one of them")
    return wanted[0] if wanted else "text"


def ignored_rules(words: Sequence[str] | None, known: Collection[str]) -> frozenset[str]:
    """Return the rules that `--ignore` names. Raises UsageError for one that does not exist."""
    from dslaunch.lint.suppression import check_rules

    names = [name.strip() for word in words or () for name in word.split(",") if name.strip()]
    check_rules(names, known)
    return frozenset(names)


def show(remarks: Sequence[Remark], form: Form, ignored: int = 0) -> None:
    """Print the remarks; `ignored` of them were left out."""
    from dslaunch import __version__
    from dslaunch.report import lint as report

    if form == "sarif":
        ui.result(report.as_sarif(remarks, __version__))
    elif form == "github":
        ui.result(report.as_github(remarks))
    else:
        ui.result(report.as_json(remarks) if form == "json" else report.as_text(remarks, ignored))
