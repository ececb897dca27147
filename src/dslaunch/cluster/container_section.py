"""The shape of the cluster file's `slurm.container`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dslaunch.cluster.field_types import Matching, Section, Variable, Written
from dslaunch.cluster.model import Container

OneLine = Annotated[Written, Matching(r"[^\s\x00](?:[^\r\n\x00]*[^\s\x00])?", "text of one line")]
Inside = Annotated[Written, Matching(r"/[^\r\n\x00]*", "a path that begins with `/`")]


class ContainerSection(Section):
    """The image in which the ranks run."""

    runtime: Literal[
        "pyxis", "enroot", "apptainer", "singularity", "shifter", "podman-hpc", "edf"
    ] = Field(
        "pyxis",
        description="`pyxis`: the plugin of srun; `edf`: the Container Engine of CSCS, srun's "
        "`--environment`; the others are programs on the nodes.",
    )
    image: OneLine = Field(
        description="What the runtime is given, such as `/images/train.sqsh`; for `edf` the name "
        "or the path of an environment definition file."
    )
    mounts: list[OneLine] = Field(
        default_factory=list,
        description="Directories to see in it: `/data`, `/data:/mnt`, `/data:/mnt:ro`.",
    )
    workdir: Inside | None = Field(
        None,
        description="Where the ranks start, as the container sees it. Default: the job's "
        "working directory.",
    )
    gpu: Literal["nvidia", "rocm", "none"] | None = Field(
        None,
        description="Which GPUs the container gets. Default: NVIDIA's with `apptainer` and "
        "`singularity`; with the others what the image and the site say.",
    )
    env: list[Variable] = Field(
        default_factory=list,
        description="Names of more variables that the container gets with the values that they "
        "have outside, such as those that `setup` exports.",
    )
    options: list[OneLine] = Field(
        default_factory=list,
        description="More words for the runtime: for srun with `pyxis` and `edf`, else for the "
        "program.",
    )


def container_of(section: ContainerSection) -> Container:
    """Return the section as a value."""
    return Container(
        runtime=section.runtime,
        image=section.image,
        mounts=tuple(section.mounts),
        options=tuple(section.options),
        workdir=section.workdir,
        gpu=section.gpu,
        env=tuple(section.env),
    )
