"""How a step of a SLURM job gets into its container.

What a node runs (`node_text`) runs inside: it exports the job's environment there, changes to the
working directory there, and makes its files there. It needs bash and the basic tools (coreutils)
of the image. What it must find when it starts are SLURM's variables, which differ from task to
task, the rendezvous and the secrets. Every runtime is told their names alone: values on a command
line would be seen by every user of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dslaunch.cluster.runtimes import inexpressible
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var, Word, wrapped

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
"""What SLURM says of a task's accelerators (SchedMD/slurm 25.05, src/plugins/gres/gpu)."""
PREFIXES = ("SLURM", "PMI")
"""SLURM's own variables, and those of PMI, PMI2 and PMIx (podman-hpc's shared-run hands on the
same, etc/podman_hpc.yaml)."""
INTO = "into_container"
"""The script's variable with the text that a task runs before its container."""


@dataclass(frozen=True, slots=True)
class ContainerEntry:
    """How a step gets into its container."""

    words: tuple[Word, ...] = ()
    """What stands between srun's own options and the program inside."""
    exports: tuple[str, ...] = ()
    """Lines of the batch script before srun."""
    text: str = ""
    """What every task runs on the node, outside; its parameters are the program inside."""


def entry(container: Container | None, secrets: tuple[str, ...]) -> ContainerEntry:
    """Return the way into a container; without one it is empty.

    Raises PlanError for what the runtime cannot do.
    """
    if container is None:
        return ContainerEntry()
    found = list(inexpressible(container))
    if found:
        words = "; ".join(f"`{_dotted(path)}`: {what}" for path, what in found)
        raise PlanError(f"slurm.container: {words}")
    names = tuple(dict.fromkeys((*RENDEZVOUS, *secrets, *container.env)))
    return _ENTRIES[container.runtime](container, names)


def container_notes(container: Container | None, workdir: str) -> Iterator[str]:
    """Yield what a person should know: a working directory that nothing mounts."""
    if container is None or container.runtime not in _MOUNTS_NOTHING:
        return
    inside = PurePosixPath(container.workdir or workdir)
    targets = [PurePosixPath(_Mount.of(mount).target) for mount in container.mounts]
    if inside.is_absolute() and not any(inside.is_relative_to(target) for target in targets):
        yield (
            f"no entry of `slurm.container.mounts` has the working directory {inside}: the image, "
            "or the site, must have it"
        )


def _dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else part for part in path)


@dataclass(frozen=True, slots=True)
class _Mount:
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
    """Give srun the options of the plugin (NVIDIA/pyxis v0.24.0, args.c, pyxis_slurmstepd.c).

    A variable of the job is there inside, but one of the image's has precedence, unless
    `--container-env` names it. Paths with spaces need 0.24. A `#` in an image's name is a comment
    in an `#SBATCH` line only, and here is none.
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
    """Tell enroot's hook which GPUs to mount (NVIDIA/enroot v4.1.2, conf/hooks/98-nvidia.sh).

    It reads the variables of the host before those of the image. AMD's need no hook: /dev is
    mounted as it is (conf/mounts/10-system.fstab).
    """
    if gpu == "nvidia":
        return ("export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",)
    return ("export NVIDIA_VISIBLE_DEVICES=void",) if gpu == "none" else ()


# ---------------------------------------------------------------- programs on the nodes


def _apptainer(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (apptainer/apptainer v1.4.5, internal/pkg/util/env).

    A variable APPTAINERENV_X, SINGULARITYENV_X for `singularity`, becomes X inside, whatever the
    image sets, and with `--cleanenv` too. Its value would be evaluated by a shell there
    (process_linux.go, injectEnvHandler) without NO_EVAL (1.1.0, SingularityCE 3.10.0).
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
        f"export {prefix}_NO_EVAL=1 # values are no shell text",
        f'exec {wrapped(Command(command))} "$@"',
    ]
    return _outside(lines)


def _bind(mount: _Mount) -> str:
    """A short form where source and target are the same."""
    same = mount.source == mount.target and not mount.flags
    return mount.source if same else mount.colons


def _enroot(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (NVIDIA/enroot v4.1.2, doc/cmd/start.md, src/runtime.sh).

    Inside, nothing is inherited but what `--env` names. It hands the values on in a file of one
    line each. A mount is a line of an fstab, its fields between colons.
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
    """A mount as enroot's fields; blanks and backslashes are written as fstab(5) has them."""
    flags = f",{mount.flags.replace('+', ',')}" if mount.flags else ""
    fields = (mount.source, mount.target, "none", f"x-create=auto,rbind{flags}")
    written = (
        field.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
        for field in fields
    )
    return ":".join(written)


def _shifter(container: Container, names: tuple[str, ...]) -> ContainerEntry:
    """Start the program on each node (NERSC/shifter 84b7d34, src/shifter.c, doc/modules.rst).

    The container inherits the job's variables; those of the image have precedence. GPUs come by a
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

    Inside, nothing is inherited but what `--env` names; a name that ends with `*` stands for all
    that begin so, one that is not set is left out. Ranks of several containers meet by the host's
    network and memory; podman's own has 64 MB of /dev/shm.
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
    """Lines that do something for every name that is set; bash knows those that begin alike.

    With `one_line` a value of several lines ends the task: the program of this name cuts it.
    """
    alike = " ".join(f'"${{!{prefix}@}}"' for prefix in PREFIXES)
    listed = wrapped(Command((*names, *DEVICES)))
    told = f'echo "{one_line} cannot hand on $name: it has several lines" >&2'
    cut = ["  if [[ ${!name} == *$'\\n'* ]]; then", f"    {told}", "    exit 1", "  fi"]
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
"""Runtimes in which, unless the site has set it up, only what is named is mounted."""
