"""Start a step of a SLURM job in its container.

The text of a node (`node_text`) runs inside: it exports the environment of the job, changes to the
working directory and creates its files. It needs bash and coreutils in the image. From outside it
needs SLURM's variables, which differ between tasks, the rendezvous and the secrets. Runtimes get
their names only: values on a command line are visible to every user of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.cluster.runtimes import inexpressible
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var, Word, wrapped
from dslaunch.notes import Note, note
from dslaunch.render.notes import RenderNote

if TYPE_CHECKING:
    from dslaunch.cluster.model import Container

RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
"""SLURM's variables for the accelerators of a task (SchedMD/slurm 25.05, src/plugins/gres/gpu)."""
PREFIXES = ("SLURM", "PMI")
"""Prefixes of SLURM's variables, and those of PMI, PMI2 and PMIx (podman-hpc's shared-run passes
the same, etc/podman_hpc.yaml)."""
INTO = "into_container"
"""The variable of the script with the text that a task runs before its container."""


class ContainerEntry(Struct, frozen=True):
    """How a step enters its container."""

    words: tuple[Word, ...] = ()
    """Words between srun's own options and the program inside."""
    exports: tuple[str, ...] = ()
    """Lines of the batch script before srun."""
    text: str = ""
    """Shell text that every task runs on the node; its arguments are the program inside."""


def entry(container: Container | None, secrets: tuple[str, ...]) -> ContainerEntry:
    """Return how to enter a container; empty without one.

    Raises PlanError for settings that the runtime does not support.
    """
    if container is None:
        return ContainerEntry()
    found = list(inexpressible(container))
    if found:
        words = "; ".join(f"`{_dotted(path)}`: {what}" for path, what in found)
        raise PlanError(f"slurm.container: {words}")
    names = tuple(dict.fromkeys((*RENDEZVOUS, *secrets, *container.env)))
    return _ENTRIES[container.runtime](container, names)


def container_notes(container: Container | None, workdir: str) -> Iterator[Note]:
    """Yield a note if no mount contains the working directory."""
    if container is None or container.runtime not in _MOUNTS_NOTHING:
        return
    inside = PurePosixPath(container.workdir or workdir)
    targets = [PurePosixPath(_Mount.of(mount).target) for mount in container.mounts]
    if inside.is_absolute() and not any(inside.is_relative_to(target) for target in targets):
        yield note(RenderNote.WORKDIR_NOT_MOUNTED, workdir=str(inside))


def _dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else part for part in path)


class _Mount(Struct, frozen=True):
    source: str
    target: str
    flags: str

    @classmethod
    def of(cls, text: str) -> _Mount:
        source, _, rest = text.partition(":")
        target, _, flags = rest.partition(":")
        return cls(source, target or source, flags)

    @property
    def colons(self) -> str:
        """`SOURCE:TARGET[:FLAGS]`."""
        flags = f":{self.flags}" if self.flags else ""
        return f"{self.source}:{self.target}{flags}"


def _mounts(container: Container) -> list[_Mount]:
    return [_Mount.of(text) for text in container.mounts]


# ---------------------------------------------------------------- runtimes of srun


def _pyxis(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Use srun's options of the plugin (NVIDIA/pyxis v0.24.0, args.c, pyxis_slurmstepd.c).

    Variables of the job are set inside, but those of the image have precedence unless
    `--container-env` names them. Paths with spaces need 0.24. A `#` in the name of an image starts
    a comment in `#SBATCH` lines only.
    """
    mounts = ",".join(mount.colons for mount in _mounts(container))
    words = (
        f"--container-image={container.image}",
        *([f"--container-mounts={mounts}"] if mounts else []),
        f"--container-env={','.join(names)}",
        *container.options,
    )
    return ContainerEntry(words, _hook_exports(container.gpu))


def _edf(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Name the environment definition file (eth-cscs/cscs-docs, container-engine/run.md).

    The container inherits the job's variables; those of the image, and the file's `[env]`, have
    precedence, and no option of srun changes that.
    """
    del names
    return ContainerEntry((f"--environment={container.image}", *container.options))


def _hook_exports(gpu: str | None) -> tuple[str, ...]:
    """Return the variables by which enroot's hook mounts GPUs (NVIDIA/enroot v4.1.2,
    conf/hooks/98-nvidia.sh).

    Variables of the host have precedence over those of the image. AMD GPUs need no hook: /dev is
    mounted (conf/mounts/10-system.fstab).
    """
    if gpu == "nvidia":
        return ("export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",)
    return ("export NVIDIA_VISIBLE_DEVICES=void",) if gpu == "none" else ()


# ---------------------------------------------------------------- programs on the nodes


def _apptainer(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (apptainer/apptainer v1.4.5, internal/pkg/util/env).

    A variable APPTAINERENV_X, SINGULARITYENV_X for `singularity`, sets X inside, with precedence
    over the image and with `--cleanenv` too. Without NO_EVAL (1.1.0, SingularityCE 3.10.0) a shell
    evaluates its value there (process_linux.go, injectEnvHandler).
    """
    program = container.runtime
    prefix = program.upper()
    gpu = {"nvidia": ["--nv"], "rocm": ["--rocm"], "none": []}[container.gpu or "nvidia"]
    command: tuple[Word, ...] = (
        program,
        "exec",
        *gpu,
        *(f"--bind={_bind(mount)}" for mount in _mounts(container)),
        *container.options,
        container.image,
    )
    lines = [
        *_each_name(names, f'export "{prefix}ENV_$name=${{!name}}"'),
        f"export {prefix}_NO_EVAL=1 # do not evaluate values as shell text",
        f'exec {wrapped(Command(command))} "$@"',
    ]
    return _outside(lines)


def _bind(mount: _Mount) -> str:
    """Return the short form if source and target are equal."""
    same = mount.source == mount.target and not mount.flags
    return mount.source if same else mount.colons


def _enroot(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (NVIDIA/enroot v4.1.2, doc/cmd/start.md, src/runtime.sh).

    Only variables of `--env` are set inside. enroot passes the values in a file of one line each. A
    mount is a line of an fstab, with colons between its fields.
    """
    mounts = [f"--mount={_fstab(mount)}" for mount in _mounts(container)]
    words = wrapped(Command((*mounts, *container.options)))
    image = Command((container.image,)).shell()
    lines = [
        f"words=({words})",
        *_each_name(names, 'words+=("--env=$name")', one_line="enroot"),
        f'exec enroot start "${{words[@]}}" {image} "$@"',
    ]
    outside = _outside(lines)
    return ContainerEntry(outside.words, _hook_exports(container.gpu), outside.text)


def _fstab(mount: _Mount) -> str:
    """Return a mount as enroot's fields, with spaces and backslashes escaped as in fstab(5)."""
    flags = f",{mount.flags.replace('+', ',')}" if mount.flags else ""
    fields = (mount.source, mount.target, "none", f"x-create=auto,rbind{flags}")
    written = (
        field.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
        for field in fields
    )
    return ":".join(written)


def _shifter(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (NERSC/shifter 84b7d34, src/shifter.c, doc/modules.rst).

    The container inherits the job's variables; those of the image have precedence. GPUs need a
    module of the site, which is named `gpu` at NERSC.
    """
    del names
    modules = {"nvidia": ["--module=gpu"], "none": ["--module=none"]}
    words = (
        "shifter",
        f"--image={container.image}",
        *(f"--volume={mount.colons}" for mount in _mounts(container)),
        *(modules[container.gpu] if container.gpu else []),
        *container.options,
    )
    return ContainerEntry(words)


def _podman(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (NERSC/podman-hpc v1.1.4; podman-run(1)).

    Only variables of `--env` are set inside; a name with `*` at its end is a prefix, and unset
    variables are ignored. Ranks in several containers communicate by the network and memory of the
    host; podman's own /dev/shm has 64 MB.
    """
    amd = ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups")
    gpu = {"nvidia": ("--gpu",), "rocm": amd}.get(container.gpu or "", ())
    words = (
        "podman-hpc",
        "run",
        "--rm",
        "--network=host",
        "--ipc=host",
        *(f"--env={prefix}*" for prefix in PREFIXES),
        *(f"--env={name}" for name in (*names, *DEVICES)),
        *gpu,
        *(f"--volume={mount.colons}" for mount in _mounts(container)),
        *container.options,
        container.image,
    )
    return ContainerEntry(words)


def _each_name(names: tuple[str, ...], line: str, *, one_line: str = "") -> list[str]:
    """Return lines that run a line for every variable that is set; bash expands the prefixes.

    With `one_line` a value of several lines ends the task: the program of this name truncates it.
    """
    alike = " ".join(f'"${{!{prefix}@}}"' for prefix in PREFIXES)
    listed = wrapped(Command((*names, *DEVICES)))
    message = f'echo "{one_line} cannot pass $name: its value has several lines" >&2'
    cut = ["  if [[ ${!name} == *$'\\n'* ]]; then", f"    {message}", "    exit 1", "  fi"]
    return [
        f"for name in {alike} \\",
        f"  {listed}; do",
        '  [ -n "${!name+set}" ] || continue',
        *(cut if one_line else []),
        f"  {line}",
        "done",
    ]


def _outside(lines: list[str]) -> ContainerEntry:
    words: tuple[Word, ...] = ("bash", "-c", (Var(INTO),), "dslaunch")
    return ContainerEntry(words, text="\n".join(lines))


_ENTRIES: dict[str, Callable[[Container, tuple[str, ...]], ContainerEntry]] = {
    "pyxis": _pyxis,
    "enroot": _enroot,
    "apptainer": _apptainer,
    "singularity": _apptainer,
    "shifter": _shifter,
    "podman-hpc": _podman,
    "edf": _edf,
}
_MOUNTS_NOTHING = ("pyxis", "enroot", "podman-hpc")
"""Runtimes that mount only what is named, unless the site has configured more."""
