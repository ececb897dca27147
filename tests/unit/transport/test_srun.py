"""Steps of an allocation as a way to its nodes, with a stand-in for srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.cluster.model import Node
from dslaunch.errors import NodeError, UsageError
from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.transports.srun import SrunTransport, places

STAND_IN = """#!/bin/sh
printf '%s\\n' "$*" >"$SEEN"
env >>"$SEEN"
while [ "$1" != /bin/sh ]; do shift; done
export SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_JOB_ID=7 CUDA_VISIBLE_DEVICES=2,3
echo "srun: cluster configuration lacks support for cpu binding" >&2
"$@"
code=$?
echo "srun: error: n1: task 0: Exited with exit code $code" >&2
exit $code
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "srun").write_text(STAND_IN)
    (tmp_path / "srun").chmod(0o700)
    return {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "SEEN": str(tmp_path / "seen"),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPU_BIND": "cores",
        "SLURM_CONF": "/etc/c", "PMI_RANK": "0", "CUDA_VISIBLE_DEVICES": "5", "MINE": "yes",
    }  # fmt: skip


def test_a_program_is_a_step_beside_all_others_and_its_bytes_arrive(
    environ: dict[str, str], tmp_path: Path
) -> None:
    connection = SrunTransport(environ).connect(Node("n2", (0,)))
    channel = connection.start("cat; pwd; echo $SLURM_JOB_ID-$SLURM_NTASKS-$CUDA_VISIBLE_DEVICES")
    channel.write(bytes(range(256)))
    channel.close_input()
    said = b"".join(iter(ChannelOutput(channel).read, b""))
    assert said == bytes(range(256)) + f"{tmp_path}\n7--\n".encode()
    channel.close()
    argv, *env = (tmp_path / "seen").read_text().splitlines()
    wanted = ("--overlap", "--jobid=7", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--unbuffered")
    assert set(wanted) <= set(argv.split())
    names = {line.split("=")[0] for line in env}
    assert {"SLURM_CONF", "MINE"} <= names
    assert names.isdisjoint({"SLURM_CPU_BIND", "SLURM_JOB_ID", "PMI_RANK", "CUDA_VISIBLE_DEVICES"})


def test_what_srun_says_of_every_step_is_not_taken_for_the_programs_words(
    environ: dict[str, str],
) -> None:
    channel = SrunTransport(environ).connect(Node("n1", (0,))).start("echo why >&2; exit 7")
    assert ChannelOutput(channel).end() == End(7, "why\n")


def test_a_node_of_elsewhere_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(NodeError) as caught:
        SrunTransport(environ).connect(Node("n3", (0,)))
    assert [failure.kind for failure in caught.value.failures] == ["name"]


def test_components_of_a_heterogeneous_job_have_their_own_lists() -> None:
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "a",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]",
    }  # fmt: skip
    assert [(h, p.group) for h, p in places(environ).items()] == [
        ("a", "0"), ("b1", "1"), ("b2", "1"),
    ]  # fmt: skip


def test_without_an_allocation_or_srun_no_node_is_reached(environ: dict[str, str]) -> None:
    outside = {name: value for name, value in environ.items() if not name.startswith("SLURM_JOB")}
    without_srun = environ | {"PATH": "/nowhere"}
    for given, word in ((outside, "allocation"), (without_srun, "srun")):
        with pytest.raises(NodeError) as caught:
            SrunTransport(given).connect(Node("n1", (0,)))
        (failure,) = caught.value.failures
        assert (failure.kind, word in failure.message) == ("name", True)
    with pytest.raises(UsageError, match="SLURM_JOB_ID"):
        places(outside)
