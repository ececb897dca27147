"""torchrun with c10d rendezvous: the run continues when nodes are lost, down to a minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.launchers.torchrun import TORCH_RESERVED
from dslaunch.launch.plan import Process, World, thread_limit
from dslaunch.launch.program import kind_flag, torch_positional
from dslaunch.launch.slurm_step import (
    MASTER_ADDRESS,
    MASTER_PORT,
    SlurmStep,
    StepCommand,
    joined,
    teed,
    thread_lines,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job


OWN_STORE = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
"""Gives each attempt a separate store. By default torch's agents use one store for all attempts,
without a prefix per attempt: a rank may read the address of another one from before the restart,
fail with "connection refused", and use up the restarts (torch 2.13, distributed/rendezvous.py,
`_create_c10d_store`; elastic/rendezvous/dynamic_rendezvous.py, `next_rendezvous`)."""


RESTARTS_PER_NODE = 2
"""Restarts of torch's agents per lost node: one of the ranks that lose their peers, and one of
those that join the rendezvous before the node is removed from it (observed with torch 2.13)."""


class Elastic(Launcher):
    """`python -m torch.distributed.run --nnodes=MIN:MAX --rdzv-backend=c10d` on every node.

    The node with the store and the address of each node are set explicitly: torch guesses both from
    the host name, which resolves to 127.0.1.1 on Debian (torch 2.13,
    distributed/elastic/rendezvous/c10d_rendezvous_backend.py, `_matches_machine_hostname`).
    Each rendezvous assigns the ranks again, so rank 0 may be on any node.
    """

    summary = "torchrun with c10d rendezvous; continues without lost nodes (--min-nodes)"
    modules = ("torch.distributed.run",)
    lines = "one `torchrun` command per node, for an elastic run"
    elastic = True
    takes_args = True
    limits_threads = True
    reserved = TORCH_RESERVED
    compares_clocks = True
    uses_host_name = True

    def check(self, world: World) -> None:
        """Raise PlanError if `min_nodes` is more than the number of nodes."""
        if world.min_nodes is not None and world.min_nodes > world.node_count:
            raise PlanError.coded(
                ErrorCode.TOO_FEW_NODES, count=world.node_count, wanted=world.min_nodes
            )

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the one agent of a node."""
        log_dir: tuple[Word, ...] = (("--log-dir=", logs),) if logs else ()
        address, port = world.rendezvous.address, world.rendezvous.port
        least = world.min_nodes or world.node_count
        host = f"[{address}]" if ":" in address else address
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
                        f"--rdzv-endpoint={host}:{port}",
                        f"--rdzv-conf=is_host={is_host}",
                        f"--local-addr={world.address_of(placement)}",
                        *job.launcher_args,
                        *kind_flag(job, "--no-python", logs),
                        *log_dir,
                        *torch_positional(job, logs),
                    )
                ),
                env=(OWN_STORE, *thread_limit(job, placement.node, len(placement.slots))),
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the agent of a node; the node with the store is explicit (pytorch #73656)."""
        before = (
            'is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true',
            "attempt=${SLURM_RESTART_COUNT:-0}",
            # each rendezvous assigns the ranks again
            "export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'",
            f"export {'='.join(OWN_STORE)}",
            *thread_lines(step),
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
            # processes of an earlier attempt must not join (pytorch/examples has the fixed id 101)
            joined("--rdzv-id=", Var("SLURM_JOB_ID"), "-", Var("attempt")),
            joined("--rdzv-endpoint=", MASTER_ADDRESS, ":", MASTER_PORT),
            joined("--rdzv-conf=is_host=", Var("is_host")),
            joined("--local-addr=", Var("SLURMD_NODENAME"), step.suffix),
            *step.job.launcher_args,
            *teed(step.job),
        )
        return StepCommand(Command(words), before)

    def default_restarts(self, nodes: int, min_nodes: int | None) -> int:
        """Return enough restarts to continue without the nodes that may be lost. Without restarts,
        the first lost node would end the run."""
        return RESTARTS_PER_NODE * max(nodes - min_nodes, 0) if min_nodes else 0


LAUNCHER = Elastic()
