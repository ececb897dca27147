"""`dslaunch validate`: check cluster files and list all problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.cli import ui
from dslaunch.cli.cluster_option import DEFAULT_FILE, FILE_VARIABLE, ClusterOption
from dslaunch.cli.json_option import JsonObject
from dslaunch.cli.lint_output import Github, Ignore, Sarif, Strict, form, ignored_rules, show
from dslaunch.cli.options import find_cluster
from dslaunch.cli.positional import two_files
from dslaunch.cluster.load import check_names, parse, read_text
from dslaunch.cluster.mistakes import MistakeCode
from dslaunch.cluster.rules import KnownNames
from dslaunch.errors import ConfigError, Problem
from dslaunch.lint import Remark, fails, screened, suppressions
from dslaunch.plural import counted
from dslaunch.preflight import checks
from dslaunch.registry import LAUNCHERS, TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from dslaunch.cluster.model import Cluster
    from dslaunch.lint import Screened

Given = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CLUSTER.yaml...",
        help=f"Cluster files (default: ${FILE_VARIABLE}, else ./{DEFAULT_FILE}).",
    ),
]


class ValidatedFile(Struct, frozen=True):
    """One cluster file with its problems."""

    file: Path
    cluster: Cluster | None
    """None: it cannot be loaded."""
    problems: tuple[Problem, ...]
    """All problems, ignored ones too."""
    found: Screened
    hint: str | None = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Return the problems that are not ignored, with the rule in brackets."""
        kept = {_remark(problem): problem for problem in self.problems}
        errors = [kept[each] for each in self.found.kept if each in kept]
        return tuple(replace(each, message=f"{each.message} [{each.rule}]") for each in errors)


def validate(
    files: Given = None,
    json: JsonObject = False,
    sarif: Sarif = False,
    github: Github = False,
    ignore: Ignore = None,
    strict: Strict = False,
    cluster: ClusterOption = None,
) -> None:
    """Check cluster files and list all problems.

    Exit code 3 for a problem (with --strict, also for a warning). Ignored problems do not count,
    but other commands still reject the file.

    Example: dslaunch validate cluster.yaml
    """
    wanted = form(as_json=json, sarif=sarif, github=github)
    rules = ignored_rules(ignore, frozenset(MistakeCode))
    if cluster is not None:
        if files:
            raise two_files(files[0], cluster)
        files = [cluster]
    ui.warn_of_unused_plugins(LAUNCHERS, TRANSPORTS)
    judged = [_judge(find_cluster(file), rules) for file in files or (None,)]
    remarks = [remark for each in judged for remark in each.found.kept]
    if wanted == "json":
        _print_json(judged)
    elif wanted == "text":
        _print_text(judged)
    else:
        show(remarks, wanted, section="codes.html#mistakes-in-cluster-files")
    if fails(remarks, strict=strict):
        raise typer.Exit(ConfigError.exit_code)


def _judge(file: Path, ignore: Collection[str]) -> ValidatedFile:
    """Load a cluster file and remove ignored problems."""
    text = ""
    cluster: Cluster | None = None
    problems: tuple[Problem, ...] = ()
    hint = None
    try:
        text = read_text(file)
        parsed = parse(text, str(file))
        cluster = parsed.cluster
        check_names(parsed, _names(parsed.document.data))
    except ConfigError as error:
        problems, hint = error.problems, error.hint
    remarks = [_remark(problem) for problem in problems]
    found = screened(
        remarks,
        file=str(file),
        known=frozenset(MistakeCode),
        ignore=ignore,
        inside=suppressions(text),
    )
    return ValidatedFile(file, cluster, problems, found, hint)


def _remark(problem: Problem) -> Remark:
    place = (problem.file, problem.line, problem.column, problem.path)
    return Remark(problem.rule, "error", *place, problem.message)


def _print_json(judged: list[ValidatedFile]) -> None:
    """Print an object for one file, a list of objects for several."""
    data = []
    for each in judged:
        counts = count(each.cluster) if each.cluster else {}
        parameters = {_remark(problem): dict(problem.parameters) for problem in each.problems}
        problems = [
            to_builtins(remark) | {"parameters": parameters.get(remark, {})}
            for remark in each.found.kept
        ]
        data.append({**counts, "problems": problems, "ignored": each.found.ignored})
    ui.data(data[0] if len(data) == 1 else data)


def _print_text(judged: list[ValidatedFile]) -> None:
    """Print what each file has on standard output, its problems on standard error."""
    for each in judged:
        for remark in each.found.kept:
            if remark.level != "error":
                ui.say(f"{remark} [{remark.rule}]")
        if each.errors:
            ui.error(ConfigError(each.errors, hint=each.hint))
        elif each.cluster is None:
            ui.say(f"{each.file}: all problems are ignored; other commands still reject the file")
        else:
            ui.result(counts_text(count(each.cluster)))


def _names(data: dict[str, Any]) -> KnownNames:
    """Return the names of all launchers, and of the checks if the file's data names some."""
    if not data.get("preflight"):
        return KnownNames(LAUNCHERS.every_name(), {})
    known = {name: tuple(check.limits) for name, check in checks.load().items()}
    return KnownNames(LAUNCHERS.every_name(), known)


def count(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster's name, and its counts without spares."""
    working = [node for node in cluster.nodes if not node.spare]
    return {
        "name": cluster.name,
        "nodes": len(working),
        "slots": sum(len(node.slots) for node in working),
        "spares": len(cluster.nodes) - len(working),
    }


def counts_text(counts: dict[str, Any]) -> str:
    """Return for example `pod-a: 6 nodes, 44 slots, 1 spare`."""
    words = [counted(counts["nodes"], "node"), counted(counts["slots"], "slot")]
    if counts["spares"]:
        words.append(counted(counts["spares"], "spare"))
    return f"{counts['name']}: {', '.join(words)}"
