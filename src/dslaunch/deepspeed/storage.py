"""Adapt the DeepSpeed config to the storage of the nodes: shared or node-local. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.deepspeed import config_text as reader
from dslaunch.deepspeed.config_text import path_text
from dslaunch.errors import ConfigError, Problem
from dslaunch.json_text import json_literal
from dslaunch.terminal import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.launch.command import Word

OPTIONS = ("--deepspeed_config", "--deepscale_config", "--ds_config", "--ds_config_path")
"""Options whose value is a config: DeepSpeed's (0.19.8, __init__.py) and common ones of scripts.
`-` and `_` are equal."""
SWITCH = "--deepspeed"
"""A path in Hugging Face's arguments (transformers, training_args.py), a switch in DeepSpeed's."""
SUFFIXES = (".json", ".hjson")


class FoundConfig(Struct, frozen=True):
    """The argument with the path of the DeepSpeed config."""

    index: int
    """Index of the argument with the path."""
    flag: str
    path: str
    joined: bool
    """The argument is `--flag=path`."""


def find_config(args: Sequence[Word], more: Sequence[str] = ()) -> FoundConfig | None:
    """Return the path of the DeepSpeed config; of several the last one, as in argparse.

    `more`: additional options with a path, without leading dashes and with `_` for `-`.

    The word after `--deepspeed` is a path only if it ends in `.json` or `.hjson`, because this
    option has no value in scripts that follow DeepSpeed's examples.
    """
    texts = [word if isinstance(word, str) else "" for word in args]
    following = [*texts[1:], ""]
    found = [
        _at(i, text, after, more)
        for i, (text, after) in enumerate(zip(texts, following, strict=False))
    ]
    return next((config for config in reversed(found) if config), None)


def _at(index: int, text: str, after: str, more: Sequence[str]) -> FoundConfig | None:
    flag, equals, value = text.partition("=")
    path = value if equals else after
    if not flag.startswith("--") or not path or (not equals and path.startswith("-")):
        return None
    name = f"--{flag.removeprefix('--').replace('-', '_')}"
    if (
        name in OPTIONS
        or name.removeprefix("--") in more
        or (name == SWITCH and path.endswith(SUFFIXES))
    ):
        return FoundConfig(index if equals else index + 1, flag, path, bool(equals))
    return None


def replace_config(args: Sequence[Word], found: FoundConfig, new: Word) -> tuple[Word, ...]:
    """Return the arguments with another path of the config."""
    word = new
    if found.joined:
        parts = (new,) if isinstance(new, str) else new
        word = (f"{found.flag}=", *parts)
    return (*args[: found.index], word, *args[found.index + 1 :])


class Localized(Struct, frozen=True):
    """A config that is adapted to the storage."""

    text: str
    change: str | None = None
    """The change as text; None: the config is unchanged."""


def localize(text: str, shared: bool, name: str = "ds_config.json") -> Localized:
    """Set `checkpoint.use_node_local_storage` to the opposite of `shared`.

    Unset counts as false (DeepSpeed 0.19.8, runtime/config.py). On separate storage, each node must
    write its part (#2319); on shared storage, all nodes would write the same files. The order of
    keys is kept; a changed HJSON config loses its comments. Raises ConfigError, with the `name` of
    the file, for a config that DeepSpeed cannot parse either.
    """
    config = parse(text, name)
    checkpoint = config.setdefault("checkpoint", {})
    if not isinstance(checkpoint, dict):
        raise ConfigError((_no_object(name, "checkpoint", checkpoint),))
    value = checkpoint.get("use_node_local_storage", False)
    fits = not value if shared else value is True
    if fits:
        return Localized(text)
    checkpoint["use_node_local_storage"] = not shared
    change = f"checkpoint.use_node_local_storage {json_literal(not shared)}"
    return Localized(json_literal(config, indent=2) + "\n", change)


def _no_object(file: str, path: str, value: object) -> Problem:
    message = f"expected an object, got {shortened(value)}"
    return Problem(file=file, line=0, column=0, path=path, message=message, rule="wrong-type")


def parse(text: str, name: str) -> dict[str, Any]:
    """Parse a config as DeepSpeed does: JSON or HJSON.

    Raises ConfigError for invalid syntax, with line and column, for duplicate keys, and for
    anything but an object.
    """
    document = reader.parse(text, name, by_python=True)
    for path, offset in document.twice:
        line, column = document.place(offset)
        problem = Problem(
            file=name,
            line=line,
            column=column,
            path=path_text(path),
            message="duplicate key",
            rule="duplicate-key",
        )
        raise ConfigError((problem,))
    if not isinstance(document.data, dict):
        raise ConfigError((_no_object(name, "", document.data),))
    return document.data
