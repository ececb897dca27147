"""`dslaunch config`: check, explain and compare DeepSpeed configs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import config_init, options, ui
from dslaunch.cli.options import Exclude, Include, Label, Nodes, Slots
from dslaunch.cli.remarks import Github, Ignore, Json, Sarif, Strict, form, ignored_rules, show
from dslaunch.cli.site import FactsFile, site
from dslaunch.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from dslaunch.deepspeed.arguments import Arguments
    from dslaunch.deepspeed.batch import Parallelism
    from dslaunch.deepspeed.compare import Difference
    from dslaunch.deepspeed.config_text import ConfigDocument
    from dslaunch.deepspeed.hardware import NodeHardware
    from dslaunch.deepspeed.linted_config import LintedConfig, Reader
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
ROUNDS = 5
"""How often `--fix` looks again, since mending one thing can show another."""

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


@dataclass(frozen=True, slots=True)
class Around:
    """What is known around a config."""

    reader: str | None = None
    version: str | None = None
    words: tuple[str, ...] | None = None
    """The script's arguments."""
    world: int | None = None
    tensor: int = 1
    pipeline: int = 1
    parameters: float | None = None
    nodes: tuple[NodeHardware, ...] = field(default=())
    ignore: frozenset[str] = frozenset()
    """Rules that are left out."""


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
    from dslaunch.deepspeed.rules import rules
    from dslaunch.lint import fails

    wanted = form(as_json=as_json, sarif=sarif, github=github)
    ignored = ignored_rules(ignore, rules().names)
    if cluster is not None and world is not None:
        raise UsageError("--world and --cluster: one of them says how many ranks there are")
    known = site(cluster, options.selection(include, exclude, nodes, slots, label), facts)
    words, ranks = _words(script_args), world or known.ranks
    around = Around(
        reader=reader,
        version=version,
        words=words,
        world=ranks,
        tensor=tensor,
        pipeline=pipeline,
        parameters=parameters,
        nodes=known.nodes,
        ignore=ignored,
    )
    found = [_remarks(file, around, fix) for file in files]
    remarks = [remark for each in found for remark in each.kept]
    show(remarks, wanted, sum(each.ignored for each in found))
    if fails(remarks, strict=strict):
        raise typer.Exit(ConfigError.exit_code)


def _remarks(file: Path, around: Around, fix: bool) -> Screened:
    text = options.read_text(file)
    found = checked(text, str(file), around)
    return _mend(file, text, found, around) if fix else found


def _words(script_args: str | None) -> tuple[str, ...] | None:
    import shlex

    try:
        return None if script_args is None else tuple(shlex.split(script_args))
    except ValueError as error:
        raise UsageError(f"--script-args: {error}") from None


def checked(text: str, name: str, around: Around) -> Screened:
    """All remarks on a config's text. Raises UsageError for an unknown reader or version."""
    from dslaunch.deepspeed.lint import read, unreadable, verdict
    from dslaunch.lint import Screened

    try:
        document, reader = read(text, name, _reader(around), around.words or ())
    except ConfigError as error:
        return Screened(unreadable(error, text))
    return verdict(_subject(document, reader, around), around.ignore)


def _subject(document: ConfigDocument, reader: Reader, around: Around) -> LintedConfig:
    from dslaunch.deepspeed.arguments import read
    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.deepspeed.schema import table

    arguments = None if around.words is None else read(around.words)
    return LintedConfig(
        document,
        table(around.version),
        reader=reader,
        arguments=arguments,
        parallelism=_parallelism(document, around),
        nodes=around.nodes,
        parameters=around.parameters,
        model_dtype=_model_dtype(arguments),
    )


def _model_dtype(arguments: Arguments | None) -> str | None:
    """The type in the config.json of the model that the arguments name, if it is a directory."""
    name = arguments["model_name_or_path"] if arguments else None
    file = Path(str(name)) / "config.json"
    try:
        found = json.loads(file.read_text("utf-8")) if name and file.is_file() else None
    except (OSError, ValueError):
        return None
    # transformers before 4.56 wrote `torch_dtype`
    dtype = found.get("dtype", found.get("torch_dtype")) if isinstance(found, dict) else None
    return dtype if isinstance(dtype, str) else None


def _reader(around: Around) -> Reader | None:
    """The reader that the options name; None: none."""
    from dslaunch.deepspeed.linted_config import READERS

    if around.reader is None:
        return None
    found = next((reader for reader in READERS if reader == around.reader), None)
    if found is None:
        raise UsageError(f"--for {around.reader}: one of {', '.join(READERS)}")
    return found


def _parallelism(document: ConfigDocument, around: Around) -> Parallelism | None:
    """How the ranks divide the work, by the options and the config."""
    from dslaunch.deepspeed.batch import parallelism

    if around.world is None:
        return None
    return parallelism(document.data, around.world, around.tensor, around.pipeline)


def _mend(file: Path, text: str, before: Screened, around: Around) -> Screened:
    """Write the mended text, and say what is left."""
    from dslaunch.lint import mended

    new, left = text, before
    for _ in range(ROUNDS):
        if not any(remark.edits for remark in left.kept):
            break
        new = mended(new, left.kept)
        left = checked(new, str(file), around)
    if new != text:
        _write(file, new)
        gone, total = len(before.kept) - len(left.kept), len(before.kept)
        ui.say(f"{file}: mended; {gone} of {total} remarks are gone")
    return left


@APP.command("schema")
def schema(version: Version = None) -> None:
    """Print a JSON Schema of the config, for editors.

    Example: dslaunch config schema > deepspeed.schema.json
    """
    from dslaunch.deepspeed.describe import json_schema
    from dslaunch.deepspeed.schema import table

    ui.result(json.dumps(json_schema(table(version)), indent=2))


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
        ui.result(json.dumps(facts, indent=2))
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
        ui.result(json.dumps([asdict(each) for each in found], indent=2))
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


def _write(file: Path, text: str) -> None:
    if str(file) == "-":
        raise UsageError("--fix: standard input cannot be mended")
    try:
        file.write_text(text, "utf-8", newline="")
    except OSError as error:
        raise UsageError(f"--fix: {file}: {error.strerror}") from None
