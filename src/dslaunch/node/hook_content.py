"""Digests of tensors, by which ranks are compared: a part of `hook_rehearsal.py`.

They are made of some of the elements, which takes little time.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, List

MOST_TENSORS, MOST_ELEMENTS = 64, 4096
"""Tensors, and elements of each, that a fingerprint of the parameters is made of."""
MOST_DIGESTED, MOST_DIGESTED_ELEMENTS = 8, 4 * MOST_ELEMENTS
"""Tensors of a batch, and elements of each, that its digest is made of."""
MOST_BATCHES = 4
"""Batches of each data loader, and inputs of the model, whose content is compared."""
_MOST_PARTS, _MOST_NESTED = 16, 4
_HEXADECIMAL = 16
"""Digits of a digest."""


def tensors_in(batch: "Any", torch: "Any", depth: int = 0) -> "List[Any]":
    """Return the tensors in a batch: a tensor, or lists and dictionaries of some."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if depth > _MOST_NESTED:
        return []
    parts: List[Any] = []
    if hasattr(batch, "values") and hasattr(batch, "keys"):
        parts = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = list(batch)
    found = (tensors_in(part, torch, depth + 1) for part in parts[:_MOST_PARTS])
    return [tensor for several in found for tensor in several]


def sample_count(tensors: "List[Any]") -> int:
    """Return the number of samples in the tensors of a batch."""
    return int(tensors[0].shape[0]) if tensors[0].dim() else 1


def digest_of_tensors(tensors: "List[Any]") -> str:
    """Return a digest of the content and shapes of tensors."""
    parts = []
    for tensor in tensors[:MOST_DIGESTED]:
        sample = tensor.detach().reshape(-1)[:MOST_DIGESTED_ELEMENTS]
        parts.append(repr((tuple(tensor.shape), sample.cpu().tolist())))
    return digest("".join(parts))


def digest(text: str) -> str:
    """Return a digest of a text."""
    import hashlib  # not every process of a run has it

    return hashlib.sha256(text.encode()).hexdigest()[:_HEXADECIMAL]


def local_part(tensor: "Any") -> "Any":
    """Return the part of a tensor that this rank has: all of it, unless it is a DTensor. Reading a
    DTensor itself would exchange its parts between the ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def fingerprint(parameters: "List[Any]") -> "List[float]":
    """Return a weighted sum of some elements of each of some parameters; empty: some are not
    finite. The gradients of a last layer add up to 0 over the classes, so that a plain sum would
    not change."""
    torch = sys.modules["torch"]
    every = max(1, -(-len(parameters) // MOST_TENSORS))
    parts = [local_part(each.detach()) for each in parameters[::every]]
    chosen = [each.reshape(-1)[:MOST_ELEMENTS].double() for each in parts]
    weights = 2 + torch.arange(MOST_ELEMENTS, dtype=torch.float64).sin()
    weighted = [each * weights[: each.numel()].to(each.device) for each in chosen if each.numel()]
    sums = [float(each.sum()) for each in weighted]
    return sums if all(map(is_finite, sums)) else []


def is_finite(value: float) -> bool:
    """Return whether a number is neither infinite nor NaN."""
    return value - value == 0
