"""The result of `dslaunch preflight`: printed, and written to files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonObject
from dslaunch.cli.output_files import output_option
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PreflightError, UsageError
from dslaunch.preflight.verdict import Fitness, drain_commands, hosts_that_are

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.preflight.check import Check
    from dslaunch.preflight.judge import Report
    from dslaunch.preflight.recording import Recording

Save = Annotated[Path | None, output_option(text="Write the answers of the nodes to a file.")]
FailOnChange = Annotated[
    bool,
    typer.Option("--fail-on-change", help="Exit with code 4 also for changes from --baseline."),
]
Verbose = Annotated[bool, typer.Option("--all", "-a", help="Show passed checks too.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, for an issue.")]
Junit = Annotated[Path | None, output_option(text="Write JUnit XML to a file.")]
Html = Annotated[Path | None, output_option(text="Write an HTML page to a file.")]
ListFit = Annotated[
    bool, typer.Option("--list-fit", help="Print only the folded names of the fit nodes.")
]
ListUnfit = Annotated[
    bool,
    typer.Option("--list-unfit", help="Print only the folded names of the nodes that are not fit."),
]
Drain = Annotated[
    bool,
    typer.Option("--drain", help="Print only the scontrol commands that drain the unfit nodes."),
]
SPELLED = "backslashreplace"
"""How names that are not UTF-8 are written into files."""


class PreflightResult(Struct, frozen=True):
    """The report on the answers of the nodes."""

    checks: Mapping[str, Check]
    report: Report
    before: Report | None
    """The baseline's."""


class PreflightOutput(Struct, frozen=True):
    """The options for what is printed and written."""

    fail_on_change: FailOnChange = False
    save: Save = None
    every: Verbose = False
    json: JsonObject = False
    markdown: Markdown = False
    junit: Junit = None
    html: Html = None
    list_fit: ListFit = False
    list_unfit: ListUnfit = False
    drain: Drain = False

    def check(self) -> None:
        """Raise UsageError for wrong options, before nodes are asked."""
        forms = {
            "--json": self.json,
            "--markdown": self.markdown,
            "--list-fit": self.list_fit,
            "--list-unfit": self.list_unfit,
            "--drain": self.drain,
        }
        chosen = [option for option, given in forms.items() if given]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)}: use one of them")

    def write(self, judged: PreflightResult) -> None:
        """Write the files and print the report. Raises Exit with code 4 if a check failed."""
        report = judged.report
        if self.save is not None:
            self._save(self.save, judged.report.facts)
        self._write_reports(report, judged.checks)
        self._print(report)
        if judged.before is not None:
            from dslaunch.preflight.baseline import compare_reports
            from dslaunch.report.preflight import change_rows

            changed = compare_reports(judged.before, report)
            ui.say("\n".join(change_rows(changed, ui.width())))
            if changed and self.fail_on_change:
                raise typer.Exit(PreflightError.exit_code)
        if not report.fit:
            raise typer.Exit(PreflightError.exit_code)

    def _print(self, report: Report) -> None:
        from dslaunch.report.preflight import as_json, rows

        if self.json:
            ui.result(as_json(report))
        elif self.markdown:
            from dslaunch.report.markdown import as_markdown

            ui.result(as_markdown(report))
        elif self.list_fit or self.list_unfit or self.drain:
            self._print_verdicts(report)
        else:
            color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            text = "\n".join(rows(report, ui.width(), every=self.every, color=color))
            ui.result(text, colors=color)

    def _save(self, path: Path, facts: Recording) -> None:
        try:
            facts.save(path)
        except OSError as problem:
            raise UsageError(f"--save {path}: {problem.strerror}") from None
        ui.wrote(path)

    def _print_verdicts(self, report: Report) -> None:
        """Print names or commands for scripts; nothing if no node has the verdict."""
        if self.drain:
            lines = list(drain_commands(report.verdicts))
            unknown = hosts_that_are(report.verdicts, Fitness.UNKNOWN)
            if unknown:
                ui.say(f"not drained, since no check got an answer: {fold(unknown)}")
        elif self.list_fit:
            lines = [fold(hosts_that_are(report.verdicts, Fitness.FIT))]
        else:
            not_fit = hosts_that_are(report.verdicts, Fitness.UNFIT, Fitness.UNKNOWN)
            lines = [fold(not_fit)]
        if any(lines):
            ui.result("\n".join(lines))

    def _write_reports(self, report: Report, checks: Mapping[str, Check]) -> None:
        # their libraries take 30 ms to import, and few preflights write these files
        if self.junit is not None:
            from dslaunch.report.junit import as_junit

            ui.write(self.junit, as_junit(report), "--junit", errors=SPELLED)
        if self.html is not None:
            from dslaunch.report.page import as_page

            ui.write(self.html, as_page(report, checks), "--html", errors=SPELLED)
