"""`dslaunch config`: check, explain and compare DeepSpeed configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import config_init, options, ui
from dslaunch.cli.lint_output import Github, Ignore, Json, Sarif, Strict, form, ignored_rules, show
from dslaunch.cli.options import Exclude, Include, Label, Nodes, Slots
from dslaunch.cli.training_nodes import FactsFile, hardware_of
from dslaunch.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from dslaunch.deepspeed.compare import Difference
    from dslaunch.deepspeed.config_lint import LintContext
    from dslaunch.lint import Screened

APP = typer.Typer(
    name="config",
    help="Check, explain and compare DeepSpeed configs.\n\n"
    "Example: dslaunch config lint ds_config.json",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
APP.command("init")(config_init.init)
APP.command("examples")(config_init.examples)

Given = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="A config or several; - for standard input.")
]
Version = Annotated[
    str | None,
    typer.Option("--deepspeed", metavar="VERSION", help="Which DeepSpeed; default: the newest."),
]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", "-c", help="The cluster file that it is for.")
]
ScriptArgs = Annotated[
    str | None, typer.Option("--script-args", help="The training script's arguments, in quotes.")
]
For = Annotated[
    str | None, typer.Option("--for", help="hf, native or accelerate; default: as it looks.")
]
World = Annotated[
    int | None, typer.Option("--world", min=1, help="How many ranks, without --cluster.")
]
Tensor = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel ranks of an mpu.")]
Pipeline = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
Parameters = Annotated[
    float | None, typer.Option("--params", min=1, help="How many the model has, as 7e9.")
]
Fix = Annotated[bool, typer.Option("--fix", help="Mend in the file what is certain.")]


@APP.command("lint")
def lint(
    files: Given,
    cluster: ClusterFile = None,
    script_args: ScriptArgs = None,
    reader: For = None,
    version: Version = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
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
    """Say what DeepSpeed would ignore, coerce or stop at.

    Exit code 3 where there is an error (with --strict, a warning). No node is asked; --facts is
    what preflight asked them.

    Example: dslaunch config lint ds_config.json --cluster cluster.yaml --for hf
    """
    from dslaunch.deepspeed.config_lint import LintContext
    from dslaunch.deepspeed.rules import rules
    from dslaunch.lint import fails

    wanted = form(as_json=as_json, sarif=sarif, github=github)
    ignored = ignored_rules(ignore, rules().names)
    if cluster is not None and world is not None:
        raise UsageError("--world and --cluster: one of them says how many ranks there are")
    chosen = options.selection(include, exclude, nodes, slots, label)
    known = hardware_of(cluster, chosen, facts)
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
    found = [_lint(file, context, fix=fix) for file in files]
    remarks = [remark for each in found for remark in each.kept]
    show(remarks, wanted, sum(each.ignored for each in found))
    if fails(remarks, strict=strict):
        raise typer.Exit(ConfigError.exit_code)


def _words(script_args: str | None) -> tuple[str, ...] | None:
    import shlex

    try:
        return None if script_args is None else tuple(shlex.split(script_args))
    except ValueError as error:
        raise UsageError(f"--script-args: {error}") from None


def _lint(file: Path, context: LintContext, *, fix: bool) -> Screened:
    """Return the remarks on a file; with `fix` those that are left after it was mended."""
    from dslaunch.deepspeed.config_lint import check_config, mend_config

    text = options.read_text(file)
    found = check_config(text, str(file), context)
    if not fix:
        return found
    new, left = mend_config(text, str(file), context)
    if new != text:
        if str(file) == "-":
            raise UsageError("--fix: standard input cannot be mended")
        ui.write(file, new, "--fix")
        gone, total = len(found.kept) - len(left.kept), len(found.kept)
        ui.say(f"{file}: mended; {gone} of {total} remarks are gone")
    return left


@APP.command("schema")
def schema(version: Version = None) -> None:
    """Print a JSON Schema of the config, for editors.

    Example: dslaunch config schema > deepspeed.schema.json
    """
    from dslaunch.deepspeed.describe import json_schema
    from dslaunch.deepspeed.schema import table

    ui.data(json_schema(table(version)))


@APP.command("explain")
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As zero_optimization.stage or stage.")],
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Say what a key means, its type, its true default and since when it is there.

    Example: dslaunch config explain overlap_comm
    """
    from dslaunch.deepspeed import describe
    from dslaunch.deepspeed.schema import table

    known = table(version)
    facts = [describe.explained(found, known) for found in describe.find(known, key)]
    if as_json:
        ui.data(facts)
    else:
        ui.result("\n".join(describe.explanation(each, ui.width()) for each in facts))


@APP.command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="A")],
    second: Annotated[Path, typer.Argument(metavar="B")],
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Show what differs in effect: defaults filled in, old and other names resolved.

    Exit code 1 where something differs, as diff has it.

    Example: dslaunch config diff ds_zero2.json ds_zero3.json
    """
    from dataclasses import asdict

    from dslaunch.deepspeed.compare import differences
    from dslaunch.deepspeed.config_text import parse
    from dslaunch.deepspeed.schema import table

    a, b = (parse(options.read_text(file), str(file)) for file in (first, second))
    found = differences(a, b, table(version))
    if as_json:
        ui.data([asdict(each) for each in found])
    elif found:
        ui.result(ui.table([("KEY", str(first), str(second)), *map(_row, found)], ui.width()))
    else:
        ui.say("no difference in effect")
    if found:
        raise typer.Exit(1)


def _row(difference: Difference) -> tuple[str, str, str]:
    from dslaunch.deepspeed.compare import UNSET

    cells = []
    for value, written in zip(
        (difference.first, difference.second), difference.written, strict=True
    ):
        shown = UNSET if value == UNSET else json.dumps(value)
        cells.append(shown if written or value == UNSET else f"{shown} (default)")
    return difference.path, cells[0], cells[1]
