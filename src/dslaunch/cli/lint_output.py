"""Print the findings of a lint as text, JSON, SARIF or annotations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dslaunch import __version__
from dslaunch.cli import ui
from dslaunch.errors import UsageError
from dslaunch.lint.suppression import check_rules
from dslaunch.report import lint as report

if TYPE_CHECKING:
    from dslaunch.lint import Remark

Sarif = Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0.")]
Github = Annotated[bool, typer.Option("--github", help="Print GitHub Actions annotations.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="RULE", help="Ignore a rule, or several with commas."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with code 3 also for warnings.")]
Form = Literal["text", "json", "sarif", "github"]


def form(*, as_json: bool, sarif: bool, github: bool) -> Form:
    """Return the output format of the options. Raises UsageError for two of them."""
    wanted: list[Form] = []
    if as_json:
        wanted.append("json")
    if sarif:
        wanted.append("sarif")
    if github:
        wanted.append("github")
    if len(wanted) > 1:
        raise UsageError("--json, --sarif and --github exclude each other")
    return wanted[0] if wanted else "text"


def ignored_rules(words: Sequence[str] | None, known: Collection[str]) -> frozenset[str]:
    """Return the rules of `--ignore`. Raises UsageError for an unknown one."""
    names = [name.strip() for word in words or () for name in word.split(",") if name.strip()]
    check_rules(names, known)
    return frozenset(names)


def _documentation() -> str:
    """Return the address of the documentation that the installed package states; empty: none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        stated = metadata("dslaunch").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    labels = (line.partition(", ") for line in stated)
    return next((address for label, _, address in labels if label == "Documentation"), "")


def show(
    remarks: Sequence[Remark],
    form: Form,
    ignored: int = 0,
    section: str = "lint-rules.html#RULE",
) -> None:
    """Print the findings; `ignored` more were suppressed.

    `section` of the reference explains a rule, whose name is put for RULE.
    """
    if form == "sarif":
        root = _documentation()
        address = f"{root.rstrip('/')}/reference/{section}" if root else ""
        ui.result(report.as_sarif(remarks, __version__, address))
    elif form == "github":
        ui.result(report.as_github(remarks))
    else:
        ui.result(report.as_json(remarks) if form == "json" else report.as_text(remarks, ignored))
