"""Files that are JSON or HJSON, and no DeepSpeed config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dslaunch.deepspeed import other_programs
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.rules import keys
from dslaunch.lint import Remark

ENOUGH = 3
"""So many keys of a program make a file that program's."""
COMPARED = 50
"""So many keys of a file are compared with DeepSpeed's."""
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
"""Keys by which a file is a DeepSpeed config, however much else is in it."""


def other_file(config: LintedConfig) -> Remark | None:
    """The one thing to say about a file of another program; None: it may be a config."""
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
    """A file without any key of DeepSpeed's, or with the config one level too deep."""
    names = [str(name) for name in data]
    if any(config.table.general((name,)) for name in names):
        return None
    if any(keys.is_meant(config, (name,)) for name in names[:COMPARED]):
        return None
    nested = [name for name, value in data.items() if isinstance(value, dict) and _has_own(value)]
    if nested:
        message = f"the config is within {nested[0]}: DeepSpeed reads the top level alone"
        fix = f"put what is in {nested[0]} into a file of its own, and name that"
        return config.error("other-file", (nested[0],), message, fix=fix)
    if len(names) < ENOUGH:
        return None
    listed = ", ".join(name[: keys.LONGEST] for name in names[:ENOUGH])
    message = f"not a DeepSpeed config: it has none of its keys, but {listed}"
    return config.error("other-file", "", message, fix="name the DeepSpeed config instead")


def _has_own(data: Mapping[str, Any]) -> bool:
    """Whether a key is DeepSpeed's; `fp16: true` is an argument of the Trainer as well."""
    return any(name in data and not isinstance(data[name], bool) for name in OWN)
