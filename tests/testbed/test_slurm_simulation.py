"""The simulated SLURM answers as the real one does, in 22.05; tests of sequences rest on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pytest

from dslaunch.slurm.answers import FORMAT, parse_columns
from dslaunch.slurm.client import Done
from tests.testbed.scheduler import SHARED, revive, until
from tests.testbed.simulated_slurm import LOCAL, OTHER, RELEASES, RUNNING, Fault, Slurm
from tests.testbed.vcluster import CONTROL, VirtualCluster
from tests.testbed.vcluster.slurm import ASKING

EPOCH = {"SLURM_TIME_FORMAT": "%s"}
SHOW = ("scontrol", "--oneliner", "show", "job")
ACCOUNT = (
    *("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"),
    "--format=JobIDRaw,State,ExitCode,NodeList,Submit,Start,End,UID",
)
QUEUE = ("squeue", "--noheader", "--all", "--states=all", f"--Format={FORMAT}")
SLEEPS = "#!/bin/bash\n#SBATCH --time=365-00:00:00\nsleep 1000\n"
"""Has a time limit: without one, SLURM says Unknown for the time at which a running job ends."""


def real(cluster: VirtualCluster, *argv: str, stdin: str = "") -> Done:
    """What the real SLURM answers."""
    done = cluster.run(CONTROL, argv, stdin=stdin, env=EPOCH, cwd=SHARED)
    return Done(done.returncode, done.stdout, done.stderr)


def simulated(imitation: Slurm, *argv: str, stdin: str = "") -> Done:
    """What the simulation answers."""
    return imitation.run(argv, stdin, EPOCH)


@pytest.fixture
def imitation() -> Slurm:
    """A simulated SLURM of the release that is installed here."""
    return Slurm(RELEASES[0])


def submit(cluster: VirtualCluster, imitation: Slurm, *options: str) -> tuple[str, str]:
    """Submit a job to both; their numbers."""
    argv = ("sbatch", "--parsable", *options, "/dev/stdin", "dslaunch-0123456789abcdef")
    numbers = []
    for done in (real(cluster, *argv, stdin=SLEEPS), simulated(imitation, *argv, stdin=SLEEPS)):
        assert re.fullmatch(r"\d+(;other)?\n", done.out)
        numbers.append(done.out.strip().partition(";")[0])
    imitation.pass_time(3)
    return numbers[0], numbers[1]


def fields(line: str) -> dict[str, str]:
    """The fields of a line of scontrol whose values have no blanks."""
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def shape(value: object) -> object:
    """The structure of JSON, and the types of its values."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return type(value).__name__


def check_within(part: object, whole: object, where: str = "") -> None:
    """The simulation has nothing in its JSON that the real SLURM has not there, or otherwise."""
    if isinstance(part, dict):
        assert isinstance(whole, dict), where
        for name, one in part.items():
            assert name in whole, f"{where}.{name}"
            check_within(one, whole[name], f"{where}.{name}")
    elif isinstance(part, list):
        assert isinstance(whole, list), where
        if part and whole:
            check_within(part[0], whole[0], f"{where}[0]")
    elif "NoneType" not in (part, whole):
        assert part == whole, where


@pytest.mark.parametrize("cluster_name", [LOCAL, OTHER])
def test_a_job_is_described_alike(
    slurm_pair: VirtualCluster, imitation: Slurm, cluster_name: str
) -> None:
    where = () if cluster_name == LOCAL else (f"--clusters={cluster_name}",)
    number, simulated_number = submit(slurm_pair, imitation, *where)
    show = ("scontrol", "--oneliner", *where, "show", "job")
    until(lambda: f" JobState={RUNNING} " in real(slurm_pair, *show, number).out, 300, pause=ASKING)
    told = fields(real(slurm_pair, *show, number).out)
    mine = fields(simulated(imitation, *show, simulated_number).out)
    assert set(mine) <= set(told)
    same = (
        "JobState",
        "Reason",
        "Restarts",
        "ExitCode",
        "Requeue",
        "Command",
        "StdIn",
        "BatchFlag",
    )
    assert {name: mine[name] for name in same} == {name: told[name] for name in same}
    for name in ("SubmitTime", "StartTime", "EndTime"):
        assert mine[name].isdigit()
        assert told[name].isdigit()
    (mine_in_columns,) = parse_columns(
        simulated(imitation, *QUEUE, *where, "--jobs", simulated_number).out
    )
    (told_in_columns,) = parse_columns(real(slurm_pair, *QUEUE, *where, "--jobs", number).out)
    for about in ("state", "restarts", "command", "array", "task", "leader", "component", "code"):
        assert getattr(mine_in_columns, about) == getattr(told_in_columns, about), about
    jobs = [
        json.loads(done.out)
        for done in (
            simulated(imitation, "squeue", "--json", *where),
            real(slurm_pair, "squeue", "--json", *where),
        )
    ]
    check_within(*map(shape, jobs))


def test_a_job_that_was_requeued_has_two_records(
    slurm_pair: VirtualCluster, imitation: Slurm
) -> None:
    number, simulated_number = submit(slurm_pair, imitation)
    until(lambda: f" JobState={RUNNING} " in real(slurm_pair, *SHOW, number).out, 300, pause=ASKING)
    until(lambda: rows_of(real(slurm_pair, *ACCOUNT, f"--jobs={number}")) != [], 300, pause=ASKING)
    slurm_pair.run(CONTROL, ["scontrol", "requeue", number], check=True)
    until(lambda: f" JobState={RUNNING} " in real(slurm_pair, *SHOW, number).out, 300, pause=ASKING)
    (ours,) = imitation.jobs
    imitation.pass_time(3)
    imitation.requeue(ours)
    imitation.pass_time(10)
    for told in (real(slurm_pair, *SHOW, number), simulated(imitation, *SHOW, simulated_number)):
        shown = fields(told.out)
        assert (shown["JobState"], shown["Restarts"]) == (RUNNING, "1")

    def both() -> list[list[str]]:
        return rows_of(real(slurm_pair, *ACCOUNT, f"--jobs={number}"))

    until(
        lambda: len(both()) == 2 and both()[1][5].isdigit(), 30, lambda: str(both()), pause=ASKING
    )
    mine = rows_of(simulated(imitation, *ACCOUNT, f"--jobs={simulated_number}"))
    assert [row[1] for row in mine] == ["REQUEUED", RUNNING]
    assert [row[1] for row in both()] == ["REQUEUED", RUNNING]
    for first, second in (mine, both()):
        assert int(first[4]) < int(second[4]), "a requeue has a later submission time"
    (last,) = rows_of(real(slurm_pair, *without(ACCOUNT, "--duplicates"), f"--jobs={number}"))
    assert last[1] == RUNNING


def rows_of(done: Done) -> list[list[str]]:
    """The cells of sacct's lines."""
    assert (done.code, done.err) == (0, "")
    return [line.split("|") for line in done.out.splitlines()]


def without(words: Iterable[str], word: str) -> list[str]:
    """Words but one."""
    return [one for one in words if one != word]


@pytest.mark.parametrize(
    "argv",
    [
        (*SHOW, "99999"),
        (*QUEUE, "--jobs=99999"),
        ("scancel", "99999"),
        (*ACCOUNT, "--jobs=99999"),
        ("scontrol", "--json", "show", "job", "99999"),
        (*SHOW[:2], "--clusters=other", *SHOW[2:], "99999"),
    ],
    ids=" ".join,
)
def test_an_unknown_job_number_has_the_same_answer(
    slurm_pair: VirtualCluster, imitation: Slurm, argv: tuple[str, ...]
) -> None:
    assert simulated(imitation, *argv) == real(slurm_pair, *argv)


COMMANDS = (
    (*SHOW, "1"),
    (*QUEUE, "--jobs=1"),
    ("scancel", "105"),
)


@pytest.mark.parametrize(
    ("service", "fault", "commands"),
    [
        ("munged", Fault.MUNGE, COMMANDS),
        pytest.param(
            "slurmctld", Fault.CONTROLLER, (*COMMANDS, ("squeue", "--json")), marks=pytest.mark.long
        ),
        ("slurmdbd", Fault.DATABASE, (
            (*ACCOUNT, "--jobs=1"), ("scancel", "--clusters=other", "105"),
        )),
    ],
    ids=["munge", "controller", "slurmdbd"],
)  # fmt: skip
def test_a_service_that_is_stopped_is_answered_alike(
    slurm_pair: VirtualCluster,
    imitation: Slurm,
    service: str,
    fault: Fault,
    commands: tuple[tuple[str, ...], ...],
) -> None:
    slurm_pair.service(CONTROL, service, "stop")
    try:
        told = [real(slurm_pair, *argv) for argv in commands]
    finally:
        revive(slurm_pair)
    imitation.faults.add(fault)
    for argv, done in zip(commands, told, strict=True):
        mine = simulated(imitation, *argv)
        assert (mine.code == 0) == (done.code == 0), argv
        assert last_line(mine.err) == last_line(done.err), argv
        if "--json" in argv:
            assert json.loads(mine.out)["jobs"] == json.loads(done.out)["jobs"]
            assert json.loads(mine.out)["errors"] == json.loads(done.out)["errors"]


def last_line(text: str) -> str:
    """The last line: before it, 22.05 repeats itself as often as it has tried."""
    return (text.splitlines() or [""])[-1]
