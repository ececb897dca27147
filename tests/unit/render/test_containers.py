"""What each container runtime is given, by its own syntax; and what it is refused."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.cluster.model import Container
from dslaunch.cluster.runtimes import ABILITIES, inexpressible
from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Word
from dslaunch.render.containers import ContainerEntry, container_notes, entry

IMAGE = "nvcr.io#nvidia/pytorch:24.12-py3"
SECRETS = ("HF_TOKEN",)
OUTSIDE = ("apptainer", "singularity", "enroot")
"""Runtimes that a text starts on the node, since only there every task's variables are known."""


def into(runtime: str, **given: object) -> ContainerEntry:
    container = Container(runtime, IMAGE)
    return entry(replace(container, **given), SECRETS)  # type: ignore[arg-type]


def shell(words: tuple[Word, ...]) -> str:
    return Command(words).shell()


def told(found: ContainerEntry) -> str:
    """All that a runtime is given, as shell text."""
    return shell(found.words) + found.text


def test_a_job_without_a_container_is_started_as_it_is() -> None:
    assert entry(None, SECRETS) == ContainerEntry()


# ---------------------------------------------------------------- images, mounts, options


@pytest.mark.parametrize("runtime", ABILITIES)
def test_an_image_whose_name_has_a_hash_is_one_word(runtime: str) -> None:
    assert f"{IMAGE}'" in told(into(runtime))


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("pyxis", "'--container-mounts=/my data:/my data,/b:/c:ro'"),
        ("enroot", r"'--mount=/my\040data:/my\040data:none:x-create=auto,rbind'"),
        ("enroot", "--mount=/b:/c:none:x-create=auto,rbind,ro"),
        ("apptainer", "'--bind=/my data' --bind=/b:/c:ro"),
        ("singularity", "'--bind=/my data' --bind=/b:/c:ro"),
        ("shifter", "'--volume=/my data:/my data' --volume=/b:/c:ro"),
        ("podman-hpc", "'--volume=/my data:/my data' --volume=/b:/c:ro"),
    ],
)
def test_mounts_are_written_as_the_runtime_reads_them(runtime: str, words: str) -> None:
    text = told(into(runtime, mounts=("/my data", "/b:/c:ro")))
    assert words in text.replace(" \\\n  ", " ")


@pytest.mark.parametrize("runtime", ABILITIES)
def test_options_stand_before_the_program(runtime: str) -> None:
    assert "'--further=a b'" in told(into(runtime, options=("--further=a b",)))


# ---------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("runtime", "gpu", "words"),
    [
        ("apptainer", None, "exec --nv "),
        ("apptainer", "nvidia", "exec --nv "),
        ("apptainer", "rocm", "exec --rocm "),
        ("singularity", "rocm", "singularity exec --rocm "),
        ("shifter", "nvidia", "--module=gpu"),
        ("shifter", "none", "--module=none"),
        ("podman-hpc", "nvidia", " --gpu "),
        ("podman-hpc", "rocm", "--device=/dev/kfd --device=/dev/dri --group-add=keep-groups"),
    ],
)
def test_gpus_are_asked_for_by_the_option_of_the_runtime(
    runtime: str, gpu: str | None, words: str
) -> None:
    assert words in told(into(runtime, gpu=gpu))


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_no_gpu_option_is_given_where_none_is_wanted(runtime: str) -> None:
    assert f"exec {runtime} exec '{IMAGE}'" in into(runtime, gpu="none").text


@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
def test_the_hook_of_enroot_reads_which_gpus_to_mount(runtime: str) -> None:
    (line,) = into(runtime, gpu="nvidia").exports
    assert "NVIDIA_VISIBLE_DEVICES=all" in line
    assert into(runtime, gpu="none").exports == ("export NVIDIA_VISIBLE_DEVICES=void",)
    assert into(runtime, gpu="rocm").exports == into(runtime).exports == ()


# ---------------------------------------------------------------- variables


def test_pyxis_prefers_the_jobs_value_of_a_named_variable() -> None:
    names = "--container-env=MASTER_ADDR,MASTER_PORT,HF_TOKEN,NCCL_DEBUG"
    assert names in into("pyxis", env=("NCCL_DEBUG",)).words


def test_podman_gets_names_and_never_values() -> None:
    words = into("podman-hpc", env=("NCCL_DEBUG",)).words
    for name in ("SLURM*", "MASTER_ADDR", "HF_TOKEN", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"):
        assert f"--env={name}" in words


RECORDER = """\
#!/bin/bash
printf '%s\\0' "$@" >"$RECORDED/argv"
env -0 >"$RECORDED/env"
"""
TASK = {"SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_JOB_NAME": "a b", "PMIX_RANK": "3"}
VALUES = {"MASTER_ADDR": "node1", "HF_TOKEN": "s$HOME`id`\"'\\", "NCCL_DEBUG": ""}


@pytest.mark.parametrize("runtime", OUTSIDE)
def test_the_program_is_started_with_every_variable_that_is_set(
    runtime: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By a program of its name that records what it is given."""
    here = tmp_path_factory.mktemp(runtime)
    program = here / runtime
    program.write_text(RECORDER)
    program.chmod(0o755)
    text = into(runtime, env=("NCCL_DEBUG", "NOT_SET"), mounts=("/my data",)).text
    env = {"PATH": f"{here}:/usr/bin:/bin", "RECORDED": str(here), **TASK, **VALUES}
    inside = ["bash", "-c", "exit 3", "a b", ""]
    subprocess.run(["bash", "-c", text, "dslaunch", *inside], env=env, check=True)
    argv = (here / "argv").read_text().split("\0")[:-1]
    seen = dict(line.split("=", 1) for line in (here / "env").read_text().split("\0")[:-1])
    assert argv[-6:] == [IMAGE, *inside]
    assert not any(value in word for word in argv for value in VALUES.values() if value)
    prefix = f"{runtime.upper()}ENV_"
    if runtime == "enroot":
        given = {name: seen[name] for word in argv if (name := word.removeprefix("--env=")) != word}
    else:
        given = {name.removeprefix(prefix): seen[name] for name in seen if name.startswith(prefix)}
        assert seen[f"{runtime.upper()}_NO_EVAL"] == "1"
    assert given == TASK | VALUES


def test_enroot_refuses_a_value_that_it_would_cut() -> None:
    """Its file of variables has one line for each (src/runtime.sh, _do_environ)."""
    env = {"PATH": "/usr/bin:/bin", "HF_TOKEN": "one\ntwo"}
    command = ["bash", "-c", into("enroot").text, "dslaunch", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "HF_TOKEN" in done.stderr
    assert "two" not in done.stderr


# ---------------------------------------------------------------- what a runtime cannot do


@pytest.mark.parametrize(
    ("container", "paths"),
    [
        (Container("pyxis", "x", ("/a,b", "/ok")), [("mounts", 0)]),
        (Container("pyxis", "x", ("/a:/b:ro,rprivate",)), [("mounts", 0)]),
        (Container("pyxis", "x", ("/a:/b:ro+rprivate",)), []),
        (Container("apptainer", "x", ("/a", "/a:/b,c")), [("mounts", 1)]),
        (Container("shifter", "x", ("/a;b",)), [("mounts", 0)]),
        (Container("podman-hpc", "x", ("/a,b:/c:ro,z",)), []),
        (Container("enroot", "x", ("/a:/b:ro:x", "/a::ro")), [("mounts", 0), ("mounts", 1)]),
        (Container("edf", "x", ("/a",), gpu="rocm"), [("mounts", 0), ("gpu",)]),
        (Container("apptainer", "--writable"), [("image",)]),
        (Container("shifter", "x", gpu="rocm"), [("gpu",)]),
        (Container("shifter", "x", options=("--clearenv",)), [("options", 0)]),
        (Container("apptainer", "x", options=("--cleanenv",)), []),
    ],
)
def test_what_a_runtime_cannot_do_is_named_with_its_place(
    container: Container, paths: list[tuple[str | int, ...]]
) -> None:
    assert [path for path, _ in inexpressible(container)] == paths


def test_a_container_of_the_api_is_refused_with_every_reason() -> None:
    with pytest.raises(PlanError) as caught:
        entry(Container("edf", "x", ("/a",), gpu="rocm"), ())
    assert "`mounts[0]`" in caught.value.message
    assert "`gpu`" in caught.value.message


PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n:,^;")).map(
    lambda text: f"/{text}"
)


@given(mount=PATHS, image=PATHS)
def test_no_path_is_ever_shell_text(mount: str, image: str) -> None:
    for runtime in OUTSIDE:
        text = entry(Container(runtime, image, (mount,)), ()).text
        lines = text.replace(f"exec {runtime} ", "printf '%s\\0' ")
        command = ["bash", "-c", lines, "dslaunch", "inside"]
        said = subprocess.run(command, env={"PATH": "/usr/bin"}, capture_output=True, check=True)
        words = said.stdout.decode().split("\0")[:-1]
        assert words[-2:] == [image, "inside"]
        assert len([word for word in words if word.startswith(("--bind=", "--mount="))]) == 1


# ---------------------------------------------------------------- notes


@pytest.mark.parametrize(
    ("container", "notes"),
    [
        (Container("pyxis", "x"), 1),
        (Container("pyxis", "x", ("/work",)), 0),
        (Container("pyxis", "x", ("/data:/work",)), 0),
        (Container("podman-hpc", "x", ("/work",), workdir="/elsewhere"), 1),
        (Container("apptainer", "x"), 0),
        (Container("edf", "x"), 0),
    ],
)
def test_a_working_directory_that_nothing_mounts_is_noted(container: Container, notes: int) -> None:
    assert len(list(container_notes(container, "/work/run"))) == notes
