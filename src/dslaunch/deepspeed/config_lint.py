"""A DeepSpeed config's text, linted and mended for what is known around it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.deepspeed.lint import read, unreadable, verdict
from dslaunch.deepspeed.linted_config import READERS, LintedConfig, Reader
from dslaunch.errors import ConfigError, UsageError
from dslaunch.lint import Screened, mended

if TYPE_CHECKING:
    from dslaunch.deepspeed.arguments import Arguments
    from dslaunch.deepspeed.batch import Parallelism
    from dslaunch.deepspeed.config_text import ConfigDocument
    from dslaunch.deepspeed.hardware import NodeHardware

ROUNDS = 5
"""How often a text is mended, since mending one thing can show another."""


@dataclass(frozen=True, slots=True)
class LintContext:
    """What is known around a config."""

    reader: str | None = None
    version: str | None = None
    """Of DeepSpeed; None: the newest that is known."""
    script_args: tuple[str, ...] | None = None
    """The training script's arguments; None: not known."""
    world: int | None = None
    tensor: int = 1
    pipeline: int = 1
    parameters: float | None = None
    nodes: tuple[NodeHardware, ...] = ()
    ignore: frozenset[str] = frozenset()
    """Rules that are left out."""


def check_config(text: str, name: str, context: LintContext) -> Screened:
    """Return all remarks on a config's text. Raises UsageError for an unknown reader or version."""
    reader = _reader(context.reader)
    try:
        document, found = read(text, name, reader, context.script_args or ())
    except ConfigError as error:
        return Screened(unreadable(error, text))
    return verdict(_subject(document, found, context), context.ignore)


def mend_config(text: str, name: str, context: LintContext) -> tuple[str, Screened]:
    """Return the text with all edits that are certain, and the remarks that are left."""
    left = check_config(text, name, context)
    for _ in range(ROUNDS):
        if not any(remark.edits for remark in left.kept):
            break
        text = mended(text, left.kept)
        left = check_config(text, name, context)
    return text, left


def _reader(name: str | None) -> Reader | None:
    for reader in READERS:
        if reader == name:
            return reader
    if name is not None:
        raise UsageError(f"--for {name}: one of {', '.join(READERS)}")
    return None


def _subject(document: ConfigDocument, reader: Reader, context: LintContext) -> LintedConfig:
    from dslaunch.deepspeed.arguments import read as read_arguments
    from dslaunch.deepspeed.schema import table

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
    """Return how the ranks divide the work, by the context and the config."""
    from dslaunch.deepspeed.batch import parallelism

    if context.world is None:
        return None
    return parallelism(document.data, context.world, context.tensor, context.pipeline)


def _model_dtype(arguments: Arguments | None) -> str | None:
    """Return the type in the config.json of the model that the arguments name, if it is here."""
    name = arguments["model_name_or_path"] if arguments else None
    file = Path(str(name)) / "config.json"
    try:
        found = json.loads(file.read_text("utf-8")) if name and file.is_file() else None
    except (OSError, ValueError):
        return None
    # transformers before 4.56 wrote `torch_dtype`
    dtype = found.get("dtype", found.get("torch_dtype")) if isinstance(found, dict) else None
    return dtype if isinstance(dtype, str) else None
