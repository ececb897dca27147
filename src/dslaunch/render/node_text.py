"""What one node, or rank, of a SLURM step runs: a shell text that SLURM's variables fill in.

The counterpart of `launch.launchers`, which knows every node by name: here none is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word, exports, quote
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers.elastic import OWN_STORE
from dslaunch.launch.plan import RUN_DIRECTORY, node_environment
from dslaunch.launch.program import kind_flag, positional, python_command, torch_positional
from dslaunch.render.lines import directory

if TYPE_CHECKING:
    from dslaunch.cluster.model import Container, Node, Placement
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import File
    from dslaunch.render.launch import Launch

NODE, RANK, LOCAL = Var("SLURM_NODEID"), Var("SLURM_PROCID"), Var("SLURM_LOCALID")
ADDRESS, PORT = Var("MASTER_ADDR"), Var("MASTER_PORT")
PACKAGES = {"deepspeed": ("torch", "deepspeed"), "accelerate": ("torch", "accelerate")}
"""Launcher -> the packages whose versions are printed at the start; others: torch."""
WIDTH = 96
"""Columns that a command is kept in, by continued lines."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are alike: the job, or one component of a heterogeneous job."""

    slots: int
    gpu: str | None
    """The GPUs' type as SLURM calls it."""
    nodes: int
    members: tuple[Placement, ...]

    @property
    def node(self) -> Node:
        """One of them, which stands for all."""
        return self.members[0].node

    def tasks(self, job: Job) -> int:
        """How many tasks of SLURM run on each: a launcher, or every rank itself.

        With one per node and not per GPU no `--gpus-per-task` is needed, which hides the GPUs
        of a node from each other (pyxis #73, Lightning #16828).
        """
        return self.slots if job.launcher == "direct" else 1


@dataclass(frozen=True, slots=True)
class Seat:
    """What a launcher must know to be started in a group."""

    launch: Launch
    group: Group
    groups: tuple[Group, ...]
    suffix: str = ""
    """What makes a node's name one of the fast network."""
    container: Container | None = None

    @property
    def workdir(self) -> str:
        """Where the ranks start, as they see it."""
        inside = self.container.workdir if self.container else None
        return inside or self.launch.decided.workdir

    @property
    def python(self) -> Word:
        """The interpreter."""
        return interpreter(self.group.node)

    @property
    def uneven(self) -> bool:
        """Whether the job is heterogeneous: its numbers are fixed then."""
        return len(self.groups) > 1

    @property
    def nodes(self) -> Word:
        """How many nodes there are: SLURM says, which may change when a job is requeued
        (submitit #1613)."""
        return str(sum(g.nodes for g in self.groups)) if self.uneven else (Var("SLURM_NNODES"),)

    @property
    def ranks(self) -> Word:
        """How many ranks there are."""
        if self.uneven:
            return str(sum(g.nodes * g.slots for g in self.groups))
        return (Var("ranks"),)


@dataclass(frozen=True, slots=True)
class Start:
    """How a launcher, or rank, is started: shell lines before it, and its command."""

    command: Command
    before: tuple[str, ...] = ()


def node_text(seat: Seat, notice: Notice | None) -> str:
    """The text for `bash -c`, with no newline at the end."""
    launch, group, node = seat.launch, seat.group, seat.group.node
    start = STEPS[launch.job.launcher](seat)
    # SLURM chooses the GPUs, and says which
    slots = tuple(range(group.slots))
    here = replace(group.members[0], slots=slots, node=replace(node, slots=slots))
    env = node_environment(here, launch.job, launch.decided.rendezvous)
    lines = _prepared_for(notice, launch.job.launcher == "direct") if notice else []
    lines += _arrived(seat)
    lines += exports(env)
    lines += [f"cd {quote(directory(seat.workdir))} || exit"]
    lines += _activated(node.activate)
    files = launch.decided.files
    lines += [*_versions(seat), *start.before, *_files(files)]
    lines += _attended(start.command, notice)
    return "\n".join(lines)


def _arrived(seat: Seat) -> list[str]:
    """End the task when a variable that it needs did not get into its container."""
    if seat.container is None:
        return []
    names = ("SLURM_PROCID", "MASTER_ADDR", *(s.name for s in seat.launch.job.secrets))
    return [f': "${{{name}:?did not reach the container}}"' for name in names]


def _versions(seat: Seat) -> list[str]:
    """Print what runs, where that is Python."""
    job = seat.launch.job
    if job.kind == "command" and job.launcher == "direct":
        return []
    packages = PACKAGES.get(job.launcher, ("torch",))
    return [Command(("print_versions", seat.python, *packages)).shell()]


def _activated(line: str | None) -> list[str]:
    """The activate line; what it cannot do ends the task."""
    text = (line or "").strip()
    if not text:
        return []
    if set("#\n;&|") & set(text):
        return ["{", text, "} || exit"]
    return [f"{text} || exit"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What the ranks get before the time limit."""

    signal: str
    requeue: int
    """How often the job may start again after it."""


def _prepared_for(notice: Notice, direct: bool) -> list[str]:
    """Keep a notice that comes before the ranks are there, which would end this shell."""
    kept = Command(("trap", f'noticed=1 early+=" {notice.signal}"', notice.signal))
    return [f"notice={notice.signal}{'' if direct else ' launcher=1'}", kept.shell()]


def _attended(command: Command, notice: Notice | None) -> list[str]:
    """Run the command by the script's functions (see `attendance`), and end with its exit code.

    Ranks alone get the notice, and only those that handle it take notice. Launchers must not:
    torch's would give its ranks 30 seconds and kill them (torch 2.13,
    distributed/elastic/agent/server/api.py), DeepSpeed's would just die. A signal that is
    ignored when a program starts stays so in what it starts, until that sets a handler; so
    ranks without one do not die of it either (submitit #1793).
    """
    lines = [wrapped(Command(("attend", *command.argv))), "leave"]
    if notice is not None and notice.requeue:
        lines += _comes_again(notice)
    return [*lines, 'exit "$code"']


def _comes_again(notice: Notice) -> tuple[str, ...]:
    """Who has saved and ends badly must not have the others killed before they have saved, so it
    ends well where the job starts again anyway."""
    return (f'[ -z "$noticed" ] || ((${{SLURM_RESTART_COUNT:-0}} >= {notice.requeue})) || exit 0',)


def _files(files: tuple[File, ...]) -> list[str]:
    """Make the files that the command names, in a directory of the task's own."""
    if not files:
        return []
    directory = RUN_DIRECTORY.name
    lines = [f"{directory}=$(mktemp -d) || exit", f"trap 'rm -rf \"${directory}\"' EXIT"]
    return lines + [
        f"printf %s {quote(file.text)} >{quote((RUN_DIRECTORY, f'/{file.name}'))} || exit"
        for file in files
    ]


def wrapped(command: Command, together: int = 1) -> str:
    """The command as shell words, continued on further lines where it is long.

    The last words, as many as `together`, stay on one line.
    """
    quoted = [quote(word) for word in command.argv]
    lines = [""]
    for word in (*quoted[:-together], " ".join(quoted[-together:])):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and len(joined) > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] = joined
    return " \\\n".join(lines)


# ---------------------------------------------------------------- launchers


def _torchrun(seat: Seat) -> Start:
    """Static rendezvous, so that rank 0 is where MASTER_ADDR is (pytorch #137402)."""
    return Start(
        Command(
            (
                *(seat.python, "-u", "-m", "torch.distributed.run"),
                _with("--nnodes=", seat.nodes),
                f"--nproc-per-node={seat.group.slots}",
                _with("--node-rank=", NODE),
                _with("--master-addr=", ADDRESS),
                _with("--master-port=", PORT),
                *_torch_words(seat),
            )
        )
    )


def _elastic(seat: Seat) -> Start:
    """c10d rendezvous; which node holds the store is said outright (pytorch #73656)."""
    job, least = seat.launch.job, seat.launch.world.min_nodes
    before = (
        'is_host=false; [ "$SLURM_NODEID" != 0 ] || is_host=true',
        "attempt=${SLURM_RESTART_COUNT:-0}",
        # ranks are given anew at each rendezvous
        "export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}${rank}]:'",
        f"export {'='.join(OWN_STORE)}",
    )
    words = (
        *(seat.python, "-u", "-m", "torch.distributed.run"),
        _with("--nnodes=", f"{least}:", seat.nodes) if least else _with("--nnodes=", seat.nodes),
        f"--nproc-per-node={seat.group.slots}",
        f"--max-restarts={job.restarts}",
        "--rdzv-backend=c10d",
        # what is left of an earlier attempt must not join (pytorch/examples' fixed id 101)
        _with("--rdzv-id=", Var("SLURM_JOB_ID"), "-", Var("attempt")),
        _with("--rdzv-endpoint=", ADDRESS, ":", PORT),
        _with("--rdzv-conf=is_host=", Var("is_host")),
        _with("--local-addr=", Var("SLURMD_NODENAME"), seat.suffix),
        *_torch_words(seat),
    )
    return Start(Command(words), before)


def _torch_words(seat: Seat) -> tuple[Word, ...]:
    """`--tee` makes each line say its local rank: `[default0]:`.

    The agent writes what it tees; without `-u` that would come in blocks, long after.
    """
    job = seat.launch.job
    return ("--tee=3", *kind_flag(job, "--no-python"), *torch_positional(job))


def _deepspeed(seat: Seat) -> Start:
    """DeepSpeed's launcher counts the ranks in a map of all nodes, whose names it only prints.

    The map is made on the node, with the GPUs there that SLURM gave: the launcher would set
    CUDA_VISIBLE_DEVICES to 0, 1, ... else (0.19.8, launcher/launch.py).
    """
    job = seat.launch.job
    flags = ("--no_local_rank",) if job.kind == "command" else ()
    return Start(
        Command(
            (
                *(seat.python, "-u", "-m", "deepspeed.launcher.launch"),
                _with("--world_info=", Var("world")),
                _with("--node_rank=", NODE),
                _with("--master_addr=", ADDRESS),
                _with("--master_port=", PORT),
                *kind_flag(job, "--no_python"),
                *flags,
                *positional(job),
            )
        ),
        tuple(_world_map(seat)),
    )


def _world_map(seat: Seat) -> Iterator[str]:
    yield "world= n=0"
    if seat.uneven:
        for group in seat.groups:
            ids = ",".join(map(str, range(group.slots)))
            loop = f"for ((i = 0; i < {group.nodes}; i++))"
            yield f'{loop}; do world+=",\\"$((n++))\\":[{ids}]"; done'
    else:
        ids, more = ",".join(map(str, range(seat.group.slots))), seat.group.slots - 1
        yield f"gpus=${{CUDA_VISIBLE_DEVICES:-{ids}}}"
        yield f"[[ $gpus =~ ^[0-9]+(,[0-9]+){{{more}}}$ ]] || gpus={ids}"
        yield 'while ((n < SLURM_NNODES)); do world+=",\\"$((n++))\\":[$gpus]"; done'
    yield "world=$(printf '{%s}' \"${world#,}\" | base64 -w 0 | tr '+/' '-_')"


def _accelerate(seat: Seat) -> Start:
    """Every setting on its line; see `launch.launchers.accelerate`."""
    job, group = seat.launch.job, seat.group
    alone = group.nodes * group.slots == 1
    many = ("--multi_gpu", "--same_network", "--tee=3", *kind_flag(job, "--no_python"))
    rest = (*kind_flag(job, "--no_python"), *positional(job)) if alone else many
    return Start(
        Command(
            (
                *(seat.python, "-u", "-m", "accelerate.commands.launch"),
                _with("--num_processes=", seat.ranks),
                _with("--num_machines=", seat.nodes),
                _with("--machine_rank=", NODE),
                _with("--main_process_ip=", ADDRESS),
                _with("--main_process_port=", PORT),
                "--gpu_ids=all",
                *rest,
                *(() if alone else torch_positional(job)),
            )
        ),
        (f"ranks=$((SLURM_NNODES * {group.slots}))",),
    )


def _direct(seat: Seat) -> Start:
    """Every task is a rank, with the variables that torchrun would set."""
    job, group = seat.launch.job, seat.group
    ranks: Word = seat.ranks if seat.uneven else (Var("SLURM_NTASKS"),)
    variables: tuple[tuple[str, Word], ...] = (
        ("RANK", (RANK,)),
        ("LOCAL_RANK", (LOCAL,)),
        ("WORLD_SIZE", ranks),
        ("LOCAL_WORLD_SIZE", str(group.slots)),
        ("GROUP_RANK", (NODE,)),
        ("NODE_RANK", (NODE,)),
        ("GROUP_WORLD_SIZE", seat.nodes),
    )
    given = {name for name, _ in (*job.env, *group.node.env, *job.overrides)}
    defaults = [("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")]
    defaults += [("OMP_NUM_THREADS", "1")] if group.slots > 1 else []
    settings = [
        (f"{name}=", *(word if isinstance(word, tuple) else (word,))) for name, word in variables
    ]
    lines = [wrapped(Command(("export", *settings)))]
    lines += [
        f'export {name}="${{{name}:-{value}}}"' for name, value in defaults if name not in given
    ]
    return Start(Command(python_command(seat.python, job)), tuple(lines))


def _with(*parts: Word | Var) -> Word:
    """Join text, variables and words to one word."""
    flat: list[str | Var] = []
    for part in parts:
        flat += part if isinstance(part, tuple) else [part]
    return tuple(part for part in flat if part)


STEPS: dict[str, Callable[[Seat], Start]] = {
    "torchrun": _torchrun,
    "elastic": _elastic,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "direct": _direct,
}
"""How each launcher is started by srun."""
