"""The schema of `slurm.container` in the cluster file."""

from __future__ import annotations

from dslaunch.cluster.forms import ListOf, OneOf, Section, Text, key
from dslaunch.cluster.model import Container
from dslaunch.cluster.text_forms import ONE_LINE, VARIABLE

INSIDE = Text(r"/[^\r\n\x00]*", "a path that begins with `/`", written=True)


class ContainerSection(Section):
    """Container of the ranks of a SLURM job."""

    runtime: str = key(
        OneOf(("pyxis", "enroot", "apptainer", "singularity", "shifter", "podman-hpc", "edf")),
        "pyxis",
        description="Container runtime. `pyxis`: plugin of srun; `edf`: Container Engine of CSCS "
        "(`srun --environment`); the others are programs on the nodes.",
    )
    image: str = key(
        ONE_LINE,
        description="Container image, such as `/images/train.sqsh`; for `edf` the name or path of "
        "an environment definition file.",
    )
    mounts: list[str] = key(
        ListOf(ONE_LINE),
        (),
        description="Directories to mount: `/data`, `/data:/mnt`, `/data:/mnt:ro`.",
    )
    workdir: str | None = key(
        INSIDE,
        None,
        description="Working directory of the ranks inside the container. Default: working "
        "directory of the job.",
    )
    gpu: str | None = key(
        OneOf(("nvidia", "rocm", "none")),
        None,
        description="GPU support of the container. Default: `nvidia` with `apptainer` and "
        "`singularity`; otherwise the default of the image and the site.",
    )
    env: list[str] = key(
        ListOf(VARIABLE),
        (),
        description="Names of more environment variables to pass into the container, such as those "
        "that `setup` exports.",
    )
    options: list[str] = key(
        ListOf(ONE_LINE),
        (),
        description="More options of the runtime: of srun with `pyxis` and `edf`, otherwise of the "
        "program.",
    )


def container_of(section: ContainerSection) -> Container:
    """Return the section as a value of `model`."""
    return Container(
        runtime=section.runtime,
        image=section.image,
        mounts=tuple(section.mounts),
        options=tuple(section.options),
        workdir=section.workdir,
        gpu=section.gpu,
        env=tuple(section.env),
    )
