"""The nodes of a run: selected, allocated by SLURM, and how they are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.api.arguments import several
from dslaunch.registry import plugin_faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dslaunch.cluster.model import Allocation, Cluster


def select(
    cluster: Cluster,
    *,
    include: str = "",
    exclude: str = "",
    nodes: int | None = None,
    slots: int | None = None,
    labels: Sequence[str] = (),
) -> Allocation:
    """Return the nodes and slots that a run uses, in rank order; by default all but spares.

    Raises SelectionError.
    """
    from dslaunch.cluster.select import Selection
    from dslaunch.cluster.select import select as choose

    selection = Selection(include, exclude, nodes, slots, several("labels", labels))
    return choose(cluster, selection)


def allocated(
    cluster: Cluster | None = None, *, environ: Mapping[str, str] | None = None
) -> Cluster:
    """Return the nodes and GPUs of the SLURM allocation that this process is in; all else is as in
    `cluster`. Raises UsageError outside an allocation.
    """
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here

    return node_discovery.allocated(here(environ), cluster)


@plugin_faults()
def with_transport(
    cluster: Cluster,
    name: str | None = None,
    *,
    in_allocation: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Cluster:
    """Return the cluster whose nodes are reached by this transport; None: as the cluster says.

    With `in_allocation`, its nodes are those that `allocated` has returned: steps of the allocation
    take the place of the default transport where srun is installed. Raises UsageError, and
    DslaunchError where no step can be started.
    """
    if name is None and not in_allocation:
        return cluster
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here

    client = here(environ)
    return node_discovery.with_transport(client, cluster, name, in_allocation=in_allocation)
