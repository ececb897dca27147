"""Capabilities of the runtimes of `slurm.container`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.model import Container


class Abilities(Struct, frozen=True):
    """Capabilities of a container runtime."""

    mounts: bool = True
    separators: str = ""
    """Characters that a path of a mount cannot contain, because they cannot be escaped."""
    gpus: tuple[str, ...] = ("nvidia", "rocm", "none")
    forbidden: tuple[str, ...] = ()
    """Options that remove what the ranks need."""


ABILITIES = {
    # NVIDIA/pyxis v0.24.0, args.c: mounts are split at commas, their flags at `+`
    "pyxis": Abilities(separators=","),
    # NVIDIA/enroot v4.1.2, src/runtime.sh: every colon of --mount becomes a space of an fstab line
    "enroot": Abilities(),
    # apptainer/apptainer v1.4.5, pkg/runtime/engine/apptainer/config/bind.go
    "apptainer": Abilities(separators=",^"),
    "singularity": Abilities(separators=",^"),
    # NERSC/shifter, src/VolumeMap.c: volumes are split at `;`. src/shifter.c: --clearenv clears
    # the environment, and --env takes values, which every user of a node could read
    "shifter": Abilities(separators=";", gpus=("nvidia", "none"), forbidden=("--clearenv", "-E")),
    "podman-hpc": Abilities(),
    # eth-cscs/cscs-docs, container-engine/edf.md: all options are in the file
    "edf": Abilities(mounts=False, gpus=()),
}
"""Capabilities of each runtime."""

PlacedMistake = tuple[tuple[str | int, ...], Mistake]
"""The path below `container`, and the mistake there."""


def inexpressible(container: Container) -> Iterator[PlacedMistake]:
    """Yield settings that the runtime does not support, each with its path in the section."""
    runtime = container.runtime
    can = ABILITIES[runtime]
    if container.image.startswith("-"):
        yield ("image",), mistake(MistakeCode.IMAGE_LIKE_OPTION)
    for index, mount in enumerate(container.mounts):
        found = _unmountable(mount, runtime)
        if found is not None:
            yield ("mounts", index), found
    if container.gpu is not None and container.gpu not in can.gpus:
        yield ("gpu",), _no_gpu(container.gpu, runtime)
    for index, option in enumerate(container.options):
        if option in can.forbidden:
            yield ("options", index), mistake(MistakeCode.FORBIDDEN_OPTION, option=option)


def _unmountable(mount: str, runtime: str) -> Mistake | None:
    """Return the mistake in a mount; None: valid."""
    can = ABILITIES[runtime]
    if not can.mounts:
        return mistake(MistakeCode.DEFINED_BY_FILE, key="mounts")
    parts = mount.split(":")
    if len(parts) > 3 or not all(parts):
        return mistake(MistakeCode.INVALID_MOUNT)
    paths = "".join(parts[:2])
    found = [character for character in can.separators if character in paths]
    if found:
        return mistake(MistakeCode.UNMOUNTABLE_PATH, runtime=runtime, character=found[0])
    if runtime == "pyxis" and "," in mount:
        return mistake(MistakeCode.MOUNT_FLAGS)
    return None


def _no_gpu(gpu: str, runtime: str) -> Mistake:
    if runtime == "edf":
        return mistake(MistakeCode.DEFINED_BY_FILE, key="gpu")
    return mistake(MistakeCode.NO_SUCH_GPU, runtime=runtime, gpu=gpu)
