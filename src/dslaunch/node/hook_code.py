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


def _names_in(code: "Any") -> "Set[str]":
    """Return the names and attributes that a syntax tree uses."""
    import ast

    used = (getattr(each, "attr", None) or getattr(each, "id", None) for each in ast.walk(code))
    return {name for name in used if isinstance(name, str)}
