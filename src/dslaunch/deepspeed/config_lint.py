"""Lint and fix the text of a DeepSpeed config, with the known facts about the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.deepspeed.arguments import Arguments
from dslaunch.deepspeed.arguments import read as read_arguments
from dslaunch.deepspeed.batch import Parallelism, parallelism
from dslaunch.deepspeed.lint import read, unreadable, verdict
from dslaunch.deepspeed.linted_config import READERS, LintedConfig, Reader
from dslaunch.deepspeed.schema import table
from dslaunch.errors import ConfigError, ErrorCode, UsageError
from dslaunch.lint import Screened, fixed_text

if TYPE_CHECKING:
    from dslaunch.deepspeed.config_text import ConfigDocument
    from dslaunch.deepspeed.hardware import NodeHardware

ROUNDS = 5
"""Maximum number of rounds of fixes, because a fix can reveal another mistake."""


class LintContext(Struct, frozen=True):
    """Known facts about the job of a config."""

    reader: str | None = None
    version: str | None = None
    """DeepSpeed version; None: the newest known."""
    script_args: tuple[str, ...] | None = None
    """Arguments of the training script; None: unknown."""
    world: int | None = None
    tensor: int = 1
    pipeline: int = 1
    parameters: float | None = None
    nodes: tuple[NodeHardware, ...] = ()
    ignore: frozenset[str] = frozenset()
    """Rules to ignore."""


def check_config(text: str, name: str, context: LintContext) -> Screened:
    """Return all findings in a config's text. Raises UsageError for an unknown reader or
    version."""
    reader = _reader(context.reader)
    try:
        document, found = read(text, name, reader, context.script_args or ())
    except ConfigError as error:
        return Screened(unreadable(error, text))
    return verdict(_subject(document, found, context), context.ignore)


def fix_config(text: str, name: str, context: LintContext) -> tuple[str, Screened]:
    """Return the text with all certain edits, and the remaining findings."""
    left = check_config(text, name, context)
    for _ in range(ROUNDS):
        if not any(remark.edits for remark in left.kept):
            break
        text = fixed_text(text, left.kept)
        left = check_config(text, name, context)
    return text, left


def _reader(name: str | None) -> Reader | None:
    for reader in READERS:
        if reader == name:
            return reader
    if name is not None:
        raise UsageError.coded(
            ErrorCode.UNKNOWN_CHOICE, option="--for", value=name, choices=READERS
        )
    return None


def _subject(document: ConfigDocument, reader: Reader, context: LintContext) -> LintedConfig:
    words = context.script_args
    arguments = None if words is None else read_arguments(words)
    return LintedConfig(
        document,
        table(context.version),
        reader=reader,
        arguments=arguments,
        parallelism=_parallelism(document, context),
        nodes=context.nodes,
        parameters=context.parameters,
        model_dtype=_model_dtype(arguments),
    )


def _parallelism(document: ConfigDocument, context: LintContext) -> Parallelism | None:
    """Return the parallelism of the ranks, from the context and the config."""
    if context.world is None:
        return None
    return parallelism(document.data, context.world, context.tensor, context.pipeline)


def _model_dtype(arguments: Arguments | None) -> str | None:
    """Return the dtype in the config.json of the model in the arguments, if it is on this
    machine."""
    name = arguments["model_name_or_path"] if arguments else None
    file = Path(str(name)) / "config.json"
    try:
        found = json.loads(file.read_text("utf-8")) if name and file.is_file() else None
    except (OSError, ValueError):
        return None
    # transformers before 4.56 wrote `torch_dtype`
    dtype = found.get("dtype", found.get("torch_dtype")) if isinstance(found, dict) else None
    return dtype if isinstance(dtype, str) else None
