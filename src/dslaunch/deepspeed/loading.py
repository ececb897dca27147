"""The classes and functions that a checkpoint's files may name.

Loading a file of torch.save calls the functions that it names, with its arguments. Those in
`tables/pickled_names.json` only build values: torch's own list for `weights_only=True`, with the
additions of DeepSpeed 0.19.8 and common client states. Checkpoints of all ZeRO stages in fp16, bf16
and fp32 contain no others.
"""

from __future__ import annotations

from collections.abc import Iterable

from dslaunch.deepspeed.schema import by_hand


def beyond_torch() -> list[str]:
    """Return the names that torch must accept in addition to its own list."""
    return list(by_hand("pickled_names")["more"])


def unknown(names: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of a file, as pairs of module and name, that are not in the list."""
    listed = by_hand("pickled_names")
    known = {*listed["torch"], *listed["more"]}
    return sorted(name for name in map(".".join, names) if name not in known)
