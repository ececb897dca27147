"""The DeepSpeed config that fits the storage: shared by all nodes, or each node's own. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dslaunch.cluster.nodeset import shortened
from dslaunch.deepspeed import config_text as reader
from dslaunch.deepspeed.config_text import path_text
from dslaunch.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.launch.command import Word

OPTIONS = ("--deepspeed_config", "--deepscale_config", "--ds_config", "--ds_config_path")
"""Options whose value is a config: DeepSpeed's own (0.19.8, __init__.py) and those that scripts
commonly define. `-` and `_` count as equal."""
SWITCH = "--deepspeed"
"""A path in Hugging Face's arguments (transformers, training_args.py), a switch in DeepSpeed's."""
SUFFIXES = (".json", ".hjson")


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """Where in the arguments the DeepSpeed config is named."""

    index: int
    """Of the argument that holds the path."""
    flag: str
    path: str
    joined: bool
    """The argument is `--flag=path`."""


def find_config(args: Sequence[Word], more: Sequence[str] = ()) -> FoundConfig | None:
    """Find the path of the DeepSpeed config; the last one, as argparse does.

    `more`: further options that take one, without dashes in front and with `_` for `-`.

    What follows `--deepspeed` is a path only if it ends in `.json` or `.hjson`, since in
    scripts that follow DeepSpeed's own examples that option takes no value.
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
    """The arguments with another path for the config."""
    word = new
    if found.joined:
        parts = (new,) if isinstance(new, str) else new
        word = (f"{found.flag}=", *parts)
    return (*args[: found.index], word, *args[found.index + 1 :])


@dataclass(frozen=True, slots=True)
class Localised:
    """A config that fits the storage."""

    text: str
    change: str | None = None
    """What was changed, for people; None: the text is as it was given."""


def localise(text: str, shared: bool, name: str = "ds_config.json") -> Localised:
    """Make `checkpoint.use_node_local_storage` say whether the checkpoints are `shared`.

    Unset counts as false (DeepSpeed 0.19.8, runtime/config.py). On storage of its own, each
    node must write its part (#2319); on shared storage, all nodes would write the same files.
    The order of keys stays; comments of an HJSON config do not, where something changes.
    Raises ConfigError, under the file's `name`, for what DeepSpeed could not read either.
    """
    config = parse(text, name)
    checkpoint = config.setdefault("checkpoint", {})
    if not isinstance(checkpoint, dict):
        found = shortened(checkpoint)
        problem = Problem(name, 0, 0, "checkpoint", f"must be an object, found {found}")
        raise ConfigError((problem,))
    value = checkpoint.get("use_node_local_storage", False)
    fits = not value if shared else value is True
    if fits:
        return Localised(text)
    checkpoint["use_node_local_storage"] = not shared
    why = "is shared by all nodes" if shared else "is each node's own"
    change = f"checkpoint.use_node_local_storage: {json.dumps(not shared)}, since storage {why}"
    return Localised(json.dumps(config, indent=2) + "\n", change)


def parse(text: str, name: str) -> dict[str, Any]:
    """Read a config as DeepSpeed does: JSON, or its looser form HJSON.

    Raises ConfigError for broken text, with line and column, for a key that is there twice,
    and for anything but an object.
    """
    document = reader.parse(text, name, by_python=True)
    for path, offset in document.twice:
        line, column = document.place(offset)
        raise ConfigError((Problem(name, line, column, path_text(path), "is there twice"),))
    if not isinstance(document.data, dict):
        raise ConfigError((Problem(name, 0, 0, "", "must be an object of settings"),))
    return document.data
