"""Torch's launcher with a c10d rendezvous: the run goes on when nodes leave, down to a least."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, torch_positional
from dslaunch.launch.slurm_step import (
    MASTER_ADDRESS,
    MASTER_PORT,
    SlurmStep,
    StepCommand,
    joined,
    teed,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job


OWN_STORE = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
"""Gives each attempt a store of its own. By default torch's agents keep one for all attempts, with
no prefix for each: a rank may read there the address that another one had before the restart, fail
with "connection refused", and use up the restarts (torch 2.13, distributed/rendezvous.py,
`_create_c10d_store`; elastic/rendezvous/dynamic_rendezvous.py, `next_rendezvous`)."""


RESTARTS_PER_NODE = 2
"""Restarts of torch's agents that a lost node may cost: of the ranks that lose their peers, and of
those that meet before the node is given up (seen with torch 2.13)."""


class Elastic(Launcher):
    """`python -m torch.distributed.run --nnodes=MIN:MAX --rdzv-backend=c10d` on every node.

    Which node holds the store is said outright, and each node's own address too: torch guesses
    both from the host's name, which on Debian is 127.0.1.1 (torch 2.13,
    distributed/elastic/rendezvous/c10d_rendezvous_backend.py, `_matches_machine_hostname`).
    Ranks are given anew at each rendezvous, so that rank 0 may be on any node.
    """

    summary = "torchrun with c10d rendezvous; goes on without nodes that leave (--min-nodes)"
    modules = ("torch.distributed.run",)
    lines = "one `torchrun` line per node for a run that goes on without some"
    elastic = True
    compares_clocks = True
    uses_host_name = True

    def check(self, world: World) -> None:
        """Raise PlanError where more nodes are demanded than there are."""
        if world.min_nodes is not None and world.min_nodes > world.node_count:
            raise PlanError(
                f"--min-nodes is {world.min_nodes}, but only {world.node_count} nodes are chosen",
                hint="choose more nodes, or lower it",
                code=ErrorCode.TOO_FEW_NODES,
            )

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The one agent of a node."""
        log_dir: tuple[Word, ...] = (("--log-dir=", logs),) if logs else ()
        meeting, least = world.rendezvous, world.min_nodes or world.node_count
        host = f"[{meeting.address}]" if ":" in meeting.address else meeting.address
        is_host = str(placement.node_rank == 0).lower()
        return (
            Process(
                Command(
                    (
                        interpreter(placement.node),
                        "-m",
                        "torch.distributed.run",
                        f"--nnodes={least}:{world.node_count}",
                        f"--nproc-per-node={len(placement.slots)}",
                        f"--max-restarts={job.restarts}",
                        "--rdzv-backend=c10d",
                        "--rdzv-id=dslaunch",
                        f"--rdzv-endpoint={host}:{meeting.port}",
                        f"--rdzv-conf=is_host={is_host}",
                        f"--local-addr={world.address_of(placement)}",
                        *kind_flag(job, "--no-python", logs),
                        *log_dir,
                        *torch_positional(job, logs),
                    )
                ),
                env=(OWN_STORE,),
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The one agent of a node; which node holds the store is said outright (pytorch #73656)."""
        before = (
            'is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true',
            "attempt=${SLURM_RESTART_COUNT:-0}",
            # ranks are given anew at each rendezvous
            "export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'",
            f"export {'='.join(OWN_STORE)}",
        )
        least = f"{step.min_nodes}:" if step.min_nodes else ""
        words = (
            step.python,
            "-u",
            "-m",
            "torch.distributed.run",
            joined("--nnodes=", least, step.nodes),
            f"--nproc-per-node={step.slots}",
            f"--max-restarts={step.job.restarts}",
            "--rdzv-backend=c10d",
            # what is left of an earlier attempt must not join (pytorch/examples' fixed id 101)
            joined("--rdzv-id=", Var("SLURM_JOB_ID"), "-", Var("attempt")),
            joined("--rdzv-endpoint=", MASTER_ADDRESS, ":", MASTER_PORT),
            joined("--rdzv-conf=is_host=", Var("is_host")),
            joined("--local-addr=", Var("SLURMD_NODENAME"), step.suffix),
            *teed(step.job),
        )
        return StepCommand(Command(words), before)

    def default_restarts(self, nodes: int, min_nodes: int | None) -> int:
        """As often as it takes to go on without the nodes that may be lost. With none, the first
        lost node would be the end."""
        return RESTARTS_PER_NODE * max(nodes - min_nodes, 0) if min_nodes else 0


LAUNCHER = Elastic()
