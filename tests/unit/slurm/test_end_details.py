"""What SLURM 22.05 answers about the end of a job when it is asked once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.end_details import account, end_details
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.output import Layout
from dslaunch.slurm.output_evidence import MemoryExceeded, OutputEvidence
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import EndDetails

DIRECT = Layout(((2, 1),), direct=True)
STEPS = """\
3|OUT_OF_MEMORY|300|||
3.batch|OUT_OF_MEMORY|300|node1|0|10920K
3.0|OUT_OF_MEMORY|301|node2|1|318256K
"""
DISABLED = "Slurm accounting storage is disabled\n"
NODES = (
    "NodeName=node1 State=IDLE Reason=none\n"
    "NodeName=node2 State=IDLE+DRAIN Reason=Prolog error [root@1795380340]\n"
)


OURS = JobId("5", submitted=100, token="dslaunch-00112233445566aa")


def answering(**answers: str | Done) -> SlurmClient:
    """A client whose commands answer this; a `|` is the delimiter that the question asks for."""

    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        answer = answers.get(argv[0], "")
        if isinstance(answer, Done):
            return answer
        options = dict(word.partition("=")[::2] for word in argv)
        return Done(0, answer.replace("|", options.get("--delimiter", "|")), "")

    return SlurmClient({}, run)


def start(state: str, submitted: int = 100, token: str = OURS.token, job: str = "5") -> str:
    """A start of a job, as sacct has it."""
    return f"{job}|{job}|{state}|0:0|{submitted}|101|102|0|node1|sbatch /dev/stdin {token}\n"


def asked(
    client: SlurmClient, info: JobInfo, observed: OutputEvidence | None = None, job: JobId = OURS
) -> EndDetails:
    began = OutputEvidence(start=1) if observed is None else observed
    return end_details(client, job, info, began, DIRECT, wait=lambda: False)


def test_the_nodes_that_are_down_are_named_after_a_node_failure() -> None:
    said = "NodeName=a1 Arch=x State=IDLE+DRAIN X=1\nNodeName=a2 Arch=x State=DOWN* Y=2\n"
    found = asked(answering(scontrol=said), JobInfo("5", "NODE_FAIL", nodes="a[1-2]"))
    assert found.down == "a2"


def test_who_canceled_a_job_is_what_accounting_says() -> None:
    said = start("CANCELLED by 0")
    found = asked(answering(sacct=said), JobInfo("5", "CANCELLED", nodes="node1"))
    assert found.canceled_by == account(0)


def test_accounting_that_hears_of_the_end_later_is_asked_again() -> None:
    answers = iter(["", start("RUNNING"), start("CANCELLED by 0")])

    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        return answering(sacct=next(answers)).run(argv, stdin, environ)

    info = JobInfo("5", "CANCELLED", nodes="node1")
    found = end_details(
        SlurmClient({}, run), OURS, info, OutputEvidence(start=1), DIRECT, wait=lambda: True
    )
    assert found.canceled_by == account(0)


def test_who_canceled_another_job_of_the_number_is_not_reported() -> None:
    of_another = start("CANCELLED by 1001", submitted=900, token="dslaunch-ffffffffffffffff")
    client = answering(sacct=start("CANCELLED by 0") + of_another)
    found = asked(client, JobInfo("5", "CANCELLED", nodes="node1"))
    assert found.canceled_by == account(0)
    alone = asked(answering(sacct=of_another), JobInfo("5", "CANCELLED", nodes="node1"))
    assert alone == EndDetails()


def test_who_canceled_an_earlier_start_is_not_reported() -> None:
    client = answering(sacct=start("CANCELLED by 1001") + start("RUNNING", submitted=200))
    assert asked(client, JobInfo("5", "CANCELLED", nodes="node1")) == EndDetails()


@pytest.mark.parametrize(
    "said",
    [
        Done(1, "", DISABLED),
        Done(1, "", "sacct: error: slurmdbd: Connection refused\n"),
        "",
        start("RUNNING"),
        start("CANCELLED by 0", job="6"),
        start("CANCELLED by -1"),
        "|\n",
    ],
)
def test_who_canceled_a_job_may_stay_unknown(said: str | Done) -> None:
    found = asked(answering(sacct=said), JobInfo("5", "CANCELLED", nodes="node1"))
    assert found == EndDetails()


def test_a_node_that_was_drained_for_its_prolog_is_named() -> None:
    client = answering(sacct=start("CANCELLED by 0", job="13"), scontrol=NODES)
    info = JobInfo("13", "CANCELLED", nodes="node[1-2]", ended=1795380343)
    assert asked(client, info, OutputEvidence()).prolog == "node2"


def test_a_prolog_that_failed_for_another_job_is_not_this_ones_reason() -> None:
    client = answering(sacct=start("CANCELLED by 0"), scontrol=NODES)
    long_before = JobInfo("5", "CANCELLED", nodes="node[1-2]", ended=1795370000)
    assert asked(client, long_before, OutputEvidence()).prolog == ""
    began = JobInfo("5", "CANCELLED", nodes="node[1-2]", ended=1795380343)
    assert asked(client, began).prolog == ""


def test_the_step_with_the_most_memory_is_found() -> None:
    """The batch script comes first; its ranks are not what it is about."""
    found = asked(answering(sacct=STEPS), JobInfo("3", "OUT_OF_MEMORY"))
    assert found.memory == MemoryExceeded("node2", "0", (1,), used=318256 * 1024)


def test_a_size_with_a_fraction_is_not_cut_off() -> None:
    steps = STEPS.replace("318256K", "1.50G")
    found = asked(answering(sacct=steps), JobInfo("3", "OUT_OF_MEMORY"))
    assert found.memory is not None
    assert found.memory.used == 1536 * 1024**2


def test_the_steps_of_another_start_of_the_number_are_not_meant() -> None:
    within = JobInfo("3", "OUT_OF_MEMORY", started=300, ended=310)
    assert asked(answering(sacct=STEPS), within).memory is not None
    for began, ended in ((302, 310), (200, 210)):
        elsewhere = JobInfo("3", "OUT_OF_MEMORY", started=began, ended=ended)
        assert asked(answering(sacct=STEPS), elsewhere).memory is None


def test_nothing_is_asked_of_a_job_that_ended_by_itself() -> None:
    client = answering(sacct=Done(1, "", "no"), scontrol=Done(1, "", "no"))
    assert asked(client, JobInfo("5", "COMPLETED", code=0)) == EndDetails()
