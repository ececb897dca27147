"""The schema of `slurm.container` in the cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.field_types import Matching, Section, Variable, Written
from dslaunch.cluster.model import Container

OneLine = Annotated[Written, Matching(r"[^\s\x00](?:[^\r\n\x00]*[^\s\x00])?", "text of one line")]
Inside = Annotated[Written, Matching(r"/[^\r\n\x00]*", "a path that begins with `/`")]


class ContainerSection(Section):
    """Container of the ranks of a SLURM job."""

    runtime: Literal[
        "pyxis", "enroot", "apptainer", "singularity", "shifter", "podman-hpc", "edf"
    ] = Field(
        "pyxis",
        description="Container runtime. `pyxis`: plugin of srun; `edf`: Container Engine of CSCS "
        "(`srun --environment`); the others are programs on the nodes.",
    )
    image: OneLine = Field(
        description="Container image, such as `/images/train.sqsh`; for `edf` the name or path of "
        "an environment definition file."
    )
    mounts: list[OneLine] = Field(
        default_factory=list,
        description="Directories to mount: `/data`, `/data:/mnt`, `/data:/mnt:ro`.",
    )
    workdir: Inside | None = Field(
        None,
        description="Working directory of the ranks inside the container. Default: working "
        "directory of the job.",
    )
    gpu: Literal["nvidia", "rocm", "none"] | None = Field(
        None,
        description="GPU support of the container. Default: `nvidia` with `apptainer` and "
        "`singularity`; otherwise the default of the image and the site.",
    )
    env: list[Variable] = Field(
        default_factory=list,
        description="Names of more environment variables to pass into the container, such as those "
        "that `setup` exports.",
    )
    options: list[OneLine] = Field(
        default_factory=list,
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
