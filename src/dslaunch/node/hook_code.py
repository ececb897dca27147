"""Reads in the user's code what the rehearsed steps cannot show: a part of `hook_rehearsal.py`."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, List, Set

REDUCTIONS = frozenset(
    ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "average_parameters")
)
"""Functions by which ranks can exchange gradients or parameters themselves."""
BETWEEN_PARTS = frozenset(
    (
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
        "all_to_all",
        "all_to_all_single",
    )
)
"""Functions by which ranks that have different parts of a model pass activations on."""
COLLECTIVES = frozenset(("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"))
"""Functions by which such parts are joined, in a function with an own backward pass."""
_DISTRIBUTED = "torch.distributed"
PACKAGES = frozenset(("dist", "distributed", "c10d"))
"""Names by which scripts call functions of torch.distributed."""
PARAMETERS = frozenset(("parameters", "named_parameters", "state_dict"))
"""Methods of a model by which a loop gets its parameters."""
MOST_FILES, MOST_SOURCE = 64, 2 << 20
"""Files that are read, and bytes of each."""


def own_code(cwd: str) -> "List[Any]":
    """Return the syntax trees of the script and its modules, which are below `cwd`; what cannot be
    read or parsed is left out."""
    import ast  # not every process of a run has it

    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [os.path.join(cwd, file) for file in files if file]
    own = [path for path in paths if path.startswith(cwd + os.sep) and "site-packages" not in path]
    trees = []
    for path in own[:MOST_FILES]:
        try:
            with open(path, "rb") as source:
                trees.append(ast.parse(source.read(MOST_SOURCE)))
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
    return trees


def names_reductions(code: "Any") -> bool:
    """Return whether a syntax tree names a collective that could exchange parameters or gradients
    in a later step."""
    return bool(_names_in(code) & REDUCTIONS)


def averages_parameters(code: "Any") -> bool:
    """Return whether a syntax tree exchanges the parameters of a model, all in one call or in a
    loop over them. Ranks that do this may train alone for some steps."""
    import ast

    if "average_parameters" in _names_in(code):
        return True
    for loop in ast.walk(code):
        if not isinstance(loop, ast.For) or not _names_in(loop.iter) & PARAMETERS:
            continue
        names = _names_in(loop)
        if names & REDUCTIONS and "grad" not in names:
            return True
    return False


def passes_activations(code: "Any") -> bool:
    """Return whether ranks may pass activations to each other, by a syntax tree: it calls functions
    of torch.distributed that send to chosen ranks, or joins parts in a `torch.autograd.Function`.
    Ranks that do this may have different parts of a model."""
    import ast

    for node in ast.walk(code):
        if isinstance(node, ast.Attribute) and node.attr in BETWEEN_PARTS:
            if _names_in(node.value) & PACKAGES:
                return True
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_DISTRIBUTED):
            if any(alias.name in BETWEEN_PARTS for alias in node.names):
                return True
        elif isinstance(node, ast.ClassDef):
            bases = {name for base in node.bases for name in _names_in(base)}
            if "Function" in bases and _names_in(node) & COLLECTIVES:
                return True
    return False


def _names_in(code: "Any") -> "Set[str]":
    """Return the names and attributes that a syntax tree uses."""
    import ast

    used = (getattr(each, "attr", None) or getattr(each, "id", None) for each in ast.walk(code))
    return {name for name in used if isinstance(name, str)}
