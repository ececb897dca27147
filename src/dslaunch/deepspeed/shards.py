"""Parse and build the names of DeepSpeed's checkpoint files. Pure.

DeepSpeed 0.19.8, runtime/engine.py: `_get_ckpt_name`, `_get_rank_zero_ckpt_name`,
`_get_expert_ckpt_name`; runtime/pipe/module.py: `ckpt_layer_path`.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

Kind = Literal["optimizer", "partition", "model", "layer", "expert"]
"""`optimizer`: optimizer part of one rank; `partition`: model part of one rank (ZeRO-3); `model`:
model of a model-parallel rank; `layer`: layer of a pipeline; `expert`: expert of a MoE model."""

_N = "([0-9]{1,6})"
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    # until 0.3 without the underscore before `optim`, which is still supported (engine.py)
    ("optimizer", re.compile(rf"(\w{{0,40}}?)zero_pp_rank_{_N}_mp_rank_{_N}_?optim_states\.pt")),
    ("partition", re.compile(rf"()zero_pp_rank_{_N}_mp_rank_{_N}_model_states\.pt")),
    ("expert", re.compile(rf"(layer_[0-9]+_)?expert_{_N}_mp_rank_{_N}_model_states\.pt")),
    ("expert", re.compile(rf"(expp_rank_){_N}_mp_rank_{_N}_optim_states\.pt")),
    ("layer", re.compile(rf"(layer_){_N}-model_{_N}-model_states\.pt")),
    ("model", re.compile(rf"()()mp_rank_{_N}_model_states\.pt")),
)


class Shard(Struct, frozen=True):
    """A parsed file name."""

    kind: Kind
    rank: int
    """Data-parallel rank, or the number of a layer or expert; 0: without one."""
    parallel: int
    """The model-parallel rank."""
    prefix: str = ""
    """Such as `bf16_`."""


def parse_name(name: str) -> Shard | None:
    """Parse the name of a file; None: not a shard of DeepSpeed."""
    for kind, pattern in _PATTERNS:
        if match := pattern.fullmatch(name):
            prefix, rank, parallel = match.groups()
            return Shard(kind, int(rank or 0), int(parallel), prefix or "")
    return None


def optimizer_name(rank: int, parallel: int, prefix: str = "") -> str:
    """Return the file name of one rank's optimizer part."""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_{parallel:02d}_optim_states.pt"


def partition_name(rank: int, parallel: int) -> str:
    """Return the file name of one rank's part of a ZeRO-3 model."""
    return f"zero_pp_rank_{rank}_mp_rank_{parallel:02d}_model_states.pt"


def model_name(parallel: int) -> str:
    """Return the file name of a model-parallel rank's model."""
    return f"mp_rank_{parallel:02d}_model_states.pt"
