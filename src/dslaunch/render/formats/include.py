"""The value of DeepSpeed's `--include`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.command import LONGEST_ARGUMENT
from dslaunch.render.launch import Rendered

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.render.launch import Launch


class Include:
    """`host:0,1@other:0,1`, with every slot named.

    DeepSpeed 0.15.2 to 0.19 reads a host without slots as no slots at all (PR #6530, #8239).
    """

    summary = "the value of DeepSpeed's `--include`"

    def render(self, launch: Launch) -> Rendered:
        """Return one line. Raises PlanError for a host name that the grammar would split."""
        return Rendered(f"{include(launch.allocation)}\n", assumes=())


def include(allocation: Allocation) -> str:
    """Return the allocation in DeepSpeed's grammar.

    Raises PlanError for a host with `@`, `:` or `,` in its name, such as an IPv6 address, and for
    more nodes than fit into the argument `--include=...`.
    """
    bad = [host for host in allocation.hosts if set(host) & set("@:,")]
    if bad:
        raise PlanError(
            f"DeepSpeed's `--include` cannot contain {', '.join(map(repr, bad))}: it splits at "
            "`@`, `:` and `,`",
            hint="give the node a name and put its address in `address:`, or use torchrun",
        )
    text = "@".join(f"{p.node.host}:{','.join(map(str, p.slots))}" for p in allocation.placements)
    size = len(f"--include={text}".encode())
    if size > LONGEST_ARGUMENT:
        raise PlanError.coded(
            ErrorCode.INCLUDE_TOO_LONG,
            nodes=len(allocation.placements),
            size=size,
            limit=LONGEST_ARGUMENT,
        )
    return text


FORMAT = Include()
