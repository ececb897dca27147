"""Which classes and functions a checkpoint's files may name.

To load a file of torch.save is to call what it names, with arguments that it gives. Those listed
in `tables/pickled_names.json` build values and do nothing else: torch's own list for
`weights_only=True`, and what DeepSpeed 0.19.8 and common client states add to it. fp16, bf16 and
fp32 of all ZeRO stages hold no others.
"""

from __future__ import annotations

from collections.abc import Iterable

from dslaunch.deepspeed.schema import by_hand


def beyond_torch() -> list[str]:
    """Return what torch must be allowed to load in addition to its own list."""
    return list(by_hand("pickled_names")["more"])


def unknown(names: Iterable[Iterable[str]]) -> list[str]:
    """Return those of a file's names, pairs of a module and a name in it, that are not listed."""
    listed = by_hand("pickled_names")
    known = {*listed["torch"], *listed["more"]}
    return sorted(name for name in map(".".join, names) if name not in known)
