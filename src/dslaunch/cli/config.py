"""`dslaunch config`: check, explain and compare DeepSpeed configs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from dslaunch.cli import config_init, options, ui
from dslaunch.cli.json_option import Json
from dslaunch.cli.lint_output import Github, Ignore, Sarif, Strict, form, ignored_rules, show
from dslaunch.cli.run_options import SelectionOptions
from dslaunch.cli.signatures import with_option_groups
from dslaunch.cli.training_nodes import FactsFile, hardware_of
from dslaunch.deepspeed import describe
from dslaunch.deepspeed.compare import UNSET, differences
from dslaunch.deepspeed.config_lint import LintContext, check_config, fix_config
from dslaunch.deepspeed.config_text import parse
from dslaunch.deepspeed.describe import json_schema
from dslaunch.deepspeed.rules import rules
from dslaunch.deepspeed.schema import table
from dslaunch.errors import ConfigError, UsageError
from dslaunch.json_text import json_literal
from dslaunch.lint import fails
from dslaunch.plural import counted

if TYPE_CHECKING:
    from dslaunch.deepspeed.compare import Difference
    from dslaunch.lint import Screened

APP = typer.Typer(
    name="config",
    help="Create, check, explain and compare DeepSpeed configs.\n\n"
    "Example: dslaunch config lint ds_config.json",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
APP.command("init")(config_init.init)
APP.command("examples")(config_init.examples)

Given = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="DeepSpeed configs; - is standard input.")
]
Version = Annotated[
    str | None,
    typer.Option("--deepspeed", metavar="VERSION", help="DeepSpeed version (default: newest)."),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster", "-c", metavar="FILE", help="Check for the nodes of this cluster file."
    ),
]
ScriptArgs = Annotated[
    str | None,
    typer.Option(
        "--script-args", metavar="ARGS", help="Arguments of the training script, as one word."
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="READER",
        help="What reads the config: hf, native or accelerate (default: detected).",
    ),
]
World = Annotated[
    int | None,
    typer.Option("--world-size", metavar="N", min=1, help="Number of ranks, without --cluster."),
]
Tensor = Annotated[
    int, typer.Option("--tp", metavar="N", min=1, help="Tensor-parallel size (mpu).")
]
Pipeline = Annotated[int, typer.Option("--pp", metavar="N", min=1, help="Pipeline stages.")]
Parameters = Annotated[
    float | None,
    typer.Option("--params", metavar="N", min=1, help="Parameters of the model, for example 7e9."),
]
Fix = Annotated[bool, typer.Option("--fix", help="Fix in the files what has one correct fix.")]


@APP.command("lint")
@with_option_groups
def lint(
    *,
    files: Given,
    cluster: ClusterFile = None,
    script_args: ScriptArgs = None,
    reader: For = None,
    version: Version = None,
    which: SelectionOptions,
    world: World = None,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    parameters: Parameters = None,
    facts: FactsFile = None,
    as_json: Json = False,
    sarif: Sarif = False,
    github: Github = False,
    fix: Fix = False,
    ignore: Ignore = None,
    strict: Strict = False,
) -> None:
    """Check a DeepSpeed config for errors and risks.

    Reports what DeepSpeed silently ignores, converts or rejects. Exit code 3 for an error (with
    --strict, also for a warning). No node is contacted; --facts has recorded hardware.

    Example: dslaunch config lint ds_config.json --cluster cluster.yaml --for hf
    """
    wanted = form(as_json=as_json, sarif=sarif, github=github)
    ignored = ignored_rules(ignore, rules().names)
    if cluster is not None and world is not None:
        raise UsageError("--world-size and --cluster exclude each other")
    known = hardware_of(cluster, which.selection, facts)
    context = LintContext(
        reader=reader,
        version=version,
        script_args=_words(script_args),
        world=world or known.ranks,
        tensor=tensor,
        pipeline=pipeline,
        parameters=parameters,
        nodes=known.nodes,
        ignore=ignored,
    )
    found, unreadable = options.of_each(files, lambda file: _lint(file, context, fix=fix))
    remarks = [remark for each in found for remark in each.kept]
    if found:
        show(remarks, wanted, sum(each.ignored for each in found))
    if unreadable is not None:
        raise unreadable
    if fails(remarks, strict=strict):
        raise typer.Exit(ConfigError.exit_code)


def _words(script_args: str | None) -> tuple[str, ...] | None:
    try:
        return None if script_args is None else tuple(shlex.split(script_args))
    except ValueError as error:
        raise UsageError(f"--script-args: {error}") from None


def _lint(file: Path, context: LintContext, *, fix: bool) -> Screened:
    """Return the findings of a file; with `fix` those that are left after it was fixed."""
    text = options.read_text(file)
    found = check_config(text, str(file), context)
    if not fix:
        return found
    new, left = fix_config(text, str(file), context)
    if new != text:
        if str(file) == "-":
            raise UsageError("--fix cannot change standard input", hint="name a file")
        ui.write(file, new, "--fix")
        gone, total = len(found.kept) - len(left.kept), len(found.kept)
        ui.say(f"{file}: fixed {gone} of {counted(total, 'finding')}")
    return left


@APP.command("schema")
def schema(version: Version = None) -> None:
    """Print the JSON Schema of a DeepSpeed config.

    Example: dslaunch config schema > deepspeed.schema.json
    """
    ui.data(json_schema(table(version)))


@APP.command("explain")
def explain(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Key, for example zero_optimization.stage or stage."),
    ],
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Explain a config key: meaning, type, default, version.

    Example: dslaunch config explain overlap_comm
    """
    known = table(version)
    facts = [describe.explained(found, known) for found in describe.find(known, key)]
    if as_json:
        ui.data(facts)
    else:
        ui.result("\n".join(describe.explanation(each, ui.width()) for each in facts))


@APP.command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="FILE1", help="First config.")],
    second: Annotated[Path, typer.Argument(metavar="FILE2", help="Second config.")],
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Show the effective differences between two configs.

    Defaults are filled in; deprecated and alternative names are resolved. Exit code 1 if the
    configs differ, as for diff.

    Example: dslaunch config diff ds_zero2.json ds_zero3.json
    """
    configs, wrong = options.of_each(
        (first, second), lambda file: parse(options.read_text(file), str(file))
    )
    if wrong is not None:
        raise wrong
    a, b = configs
    found = differences(a, b, table(version))
    if as_json:
        ui.data([to_builtins(each) for each in found])
    elif found:
        ui.result(ui.table([("KEY", str(first), str(second)), *map(_row, found)], ui.width()))
    else:
        ui.say("no effective differences")
    if found:
        raise typer.Exit(1)


def _row(difference: Difference) -> tuple[str, str, str]:
    cells = []
    for value, written in zip(
        (difference.first, difference.second), difference.written, strict=True
    ):
        shown = UNSET if value == UNSET else json_literal(value)
        cells.append(shown if written or value == UNSET else f"{shown} (default)")
    return difference.path, cells[0], cells[1]
