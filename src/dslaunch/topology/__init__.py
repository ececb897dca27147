"""How the GPUs and network cards of a machine are wired, what follows from it, and for which jobs.

`read` makes a `Topology` of what a node answered to the commands of `questions.COMMANDS`; `compare`
names the odd one of many nodes; `advise` says what to set, why, and who says so. Nothing here
asks a node or changes anything.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dslaunch.topology.advice import Advice, advise
    from dslaunch.topology.comparison import Comparison, compare
    from dslaunch.topology.model import Gpu, Nic, Topology
    from dslaunch.topology.questions import COMMANDS
    from dslaunch.topology.reading import answers_in, read

__all__ = [
    "COMMANDS",
    "Advice",
    "Comparison",
    "Gpu",
    "Nic",
    "Topology",
    "advise",
    "answers_in",
    "compare",
    "read",
]
_IN = {
    **dict.fromkeys(("Advice", "advise"), "advice"),
    **dict.fromkeys(("Comparison", "compare"), "comparison"),
    **dict.fromkeys(("Gpu", "Nic", "Topology"), "model"),
    "COMMANDS": "questions",
    **dict.fromkeys(("answers_in", "read"), "reading"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: checks need little of this, and nothing where there is no GPU."""
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IN[name]}"), name)
