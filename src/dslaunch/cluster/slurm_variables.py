"""The nodes and GPUs of a SLURM allocation, by its environment variables. Pure.

Variables of a component of a heterogeneous job have a suffix, as in SLURM_JOB_NODELIST_HET_GROUP_0
(SLURM's page on heterogeneous jobs, "Environment Variables").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from dslaunch.cluster.nodeset import numbers
from dslaunch.errors import ErrorCode, UsageError

_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_COUNTED = re.compile(r"([0-9]{1,4})(?:\(x([0-9]{1,6})\))?")


class NodeList(Struct, frozen=True):
    """The nodes of an allocation, or of one component of it."""

    suffix: str
    """Of all variables of the component; empty without components."""
    variable: str
    """The variable with the nodes."""
    folded: str


def node_lists(environ: Mapping[str, str]) -> tuple[NodeList, ...]:
    """Return the nodes of the current allocation. Raises UsageError outside an allocation."""
    components = _count(environ.get("SLURM_HET_SIZE", ""))
    suffixes = [f"_HET_GROUP_{i}" for i in range(components)] if components else [""]
    found = []
    for suffix in suffixes:
        variable = f"SLURM_JOB_NODELIST{suffix}"
        folded = environ.get(variable) or environ.get(f"SLURM_NODELIST{suffix}")
        if not folded:
            raise UsageError.coded(ErrorCode.NOT_IN_A_JOB, variable=variable)
        found.append(NodeList(suffix, variable, folded))
    return tuple(found)


def gpus_per_node(environ: Mapping[str, str], suffix: str = "") -> int | None:
    """Return the number of GPUs that SLURM allocated per node; None: not in its variables.

    SLURM_GPUS_ON_NODE is a number; SLURM_GPUS_PER_NODE may be `8`, `a100:4`, `gpu:a100:4` or a
    list of these (sbatch's manual, --gpus-per-node); SLURM_JOB_GPUS lists indexes. Otherwise it is
    SLURM_GPUS_PER_TASK times the tasks of SLURM_TASKS_PER_NODE, if those are equal on all nodes.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        counts = [_last(part) for part in environ.get(name + suffix, "").split(",")]
        if None not in counts and any(counts):
            return sum(filter(None, counts))
    try:
        return len(set(numbers(environ.get(f"SLURM_JOB_GPUS{suffix}", "")))) or None
    except ValueError:
        pass
    tasks = run_lengths(environ.get(f"SLURM_TASKS_PER_NODE{suffix}", ""))
    gpus = _last(environ.get(f"SLURM_GPUS_PER_TASK{suffix}", ""))
    if not gpus or len(set(tasks)) != 1:
        return None
    return tasks[0] * gpus or None


def run_lengths(text: str) -> tuple[int, ...]:
    """Expand SLURM's run-length code, `2(x3),1` to (2, 2, 2, 1); empty if it is invalid."""
    parts = [_COUNTED.fullmatch(part) for part in text.split(",")]
    counted = [(int(m[1]), int(m[2] or 1)) for m in parts if m]
    if len(counted) < len(parts) or sum(times for _, times in counted) > 100_000:
        return ()
    return tuple(number for number, times in counted for _ in range(times))


def _last(text: str) -> int | None:
    """Return the count at the end of `gpu:a100:4`; None if it is not a count."""
    return _count(text.rpartition(":")[2])


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None
