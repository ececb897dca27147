"""Recognize JSON or HJSON files that are not DeepSpeed configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dslaunch.deepspeed import other_programs
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules import keys
from dslaunch.lint import Remark

ENOUGH = 3
"""A file with this number of keys of a program belongs to that program."""
COMPARED = 50
"""Maximum number of keys of a file that are compared with DeepSpeed's."""
OWN = (
    "zero_optimization",
    "zero_optimisation",
    "zero_allow_untested_optimizer",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
)
"""A file with one of these keys is a DeepSpeed config."""


def other_file(config: LintedConfig) -> Remark | None:
    """Return the finding for a file of another program; None: it may be a config."""
    data = config.document.data
    if not isinstance(data, dict) or _has_own(data):
        return None
    names = [str(name) for name in data]
    for kind in other_programs.names("files"):
        found = [name for name in names if other_programs.normalized(name) in kind["keys"]]
        if len(found) >= ENOUGH:
            message = f"{kind['what']}, not a DeepSpeed config: it has {', '.join(found[:ENOUGH])}"
            return config.error("other-file", "", message, fix=kind["fix"])
    return _nothing_known(config, data)


def _nothing_known(config: LintedConfig, data: Mapping[str, Any]) -> Remark | None:
    """Return the finding for a file without any DeepSpeed key, or with the config one level
    deeper."""
    names = [str(name) for name in data]
    if any(config.table.general((name,)) for name in names):
        return None
    if any(keys.is_meant(config, (name,)) for name in names[:COMPARED]):
        return None
    nested = [name for name, value in data.items() if isinstance(value, dict) and _has_own(value)]
    if nested:
        message = f"the config is below {nested[0]}, but DeepSpeed reads only the top level"
        fix = f"move the contents of {nested[0]} into a separate file, and use that file"
        return config.error("other-file", (nested[0],), message, fix=fix)
    if len(names) < ENOUGH:
        return None
    listed = ", ".join(name[: keys.LONGEST] for name in names[:ENOUGH])
    message = f"not a DeepSpeed config: no known keys, found {listed}"
    return config.error("other-file", "", message, fix="use the path of the DeepSpeed config")


def _has_own(data: Mapping[str, Any]) -> bool:
    """Return whether a key is DeepSpeed's; `fp16: true` is an argument of the Trainer as well."""
    return any(name in data and not isinstance(data[name], bool) for name in OWN)
