"""How the GPUs and network cards of a machine are wired, what follows from it, and for which jobs.

`read` makes a `Topology` of what a node answered to the commands of `questions.COMMANDS`; `compare`
names the odd one of many nodes; `advise` says what to set, why, and who says so. Nothing here
asks a node or changes anything.
"""

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
