"""The calls of SLURM's commands, against answers in the form of SLURM 22.05 and 23.11."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

import pytest
from tests.unit.slurm.squeue import SUBMITTED, TOKEN, row, start

from dslaunch.errors import DslaunchError, ToolMissingError
from dslaunch.slurm.client import Done, RefusedError, SlurmClient, run_command
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.query_failures import QueryError, QueryFailure
from dslaunch.slurm.refusal import Refused

JOB = JobId("12", submitted=SUBMITTED, token=TOKEN)
INVALID = Done(1, "", "slurm_load_jobs error: Invalid job id specified\n")
DISABLED = Done(1, "", "Slurm accounting storage is disabled\n")
NOTHING = Done(0, "", "")
RUNS = Done(0, row(), "")
Answer = Done | Exception | Callable[[Sequence[str]], Done]


class Answers:
    """Answers by the name of the program, and remembers what was called."""

    def __init__(self, version: str = "slurm-wlm 22.05.8\n", **answers: Answer) -> None:
        self.answers = answers
        self.version = version
        self.calls: list[tuple[list[str], str]] = []
        self.environ: Mapping[str, str] = {}

    def __call__(self, argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        if "--version" in argv:
            return Done(0, self.version, "")
        self.calls.append((list(argv), stdin))
        self.environ = environ
        answer = self.answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Done) else answer(argv)

    @property
    def programs(self) -> list[str]:
        return [argv[0] for argv, _ in self.calls]


def client(**answers: Answer) -> SlurmClient:
    return SlurmClient({}, Answers(**answers))


def accounted(*starts: Mapping[str, str]) -> Callable[[Sequence[str]], Done]:
    """sacct with these starts, behind the delimiter that it is told."""

    def answer(argv: Sequence[str]) -> Done:
        option = next(word for word in argv if word.startswith("--delimiter="))
        delimiter = option.partition("=")[2]
        return Done(0, "".join(start(delimiter, **fields) for fields in starts), "")

    return answer


# ---------------------------------------------------------------- submission


def test_submit_keeps_the_cluster_and_gives_every_job_a_unique_token() -> None:
    answers = Answers(sbatch=Done(0, "105;tiger\n", ""))
    slurm = SlurmClient({}, answers)
    first, second = slurm.submit("#!/bin/bash\n", {}), slurm.submit("#!/bin/bash\n", {})
    assert (first.number, first.cluster) == ("105", "tiger")
    assert re.fullmatch("dslaunch-[0-9a-f]{16}", first.token)
    assert first.token != second.token
    argv, stdin = answers.calls[0]
    assert argv == ["sbatch", "--parsable", "/dev/stdin", first.token]
    assert stdin == "#!/bin/bash\n"


def test_submit_reads_the_number_below_the_notices_of_a_wrapper() -> None:
    assert client(sbatch=Done(0, "welcome to tiger\n12\n", "")).submit("#!", {}).number == "12"


def test_a_job_is_identified_by_its_time_and_owner_once_slurm_reports_them() -> None:
    job, found = client(squeue=RUNS).submitted(JobId("12", token=TOKEN))
    assert (job.submitted, job.user, job.restarts) == (SUBMITTED, 1000, 0)
    assert found[0].output == "/shared/train-12.out"


def test_a_refused_job_says_why() -> None:
    said = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
    with pytest.raises(RefusedError) as caught:
        client(sbatch=Done(1, "", said)).submit("#!", {})
    assert caught.value.refusal.reason is Refused.QOS


ESTIMATE = "2026-11-21T08:14:22 using 2 processors on nodes a in main"


def test_an_estimate_is_in_a_line() -> None:
    said = f"sbatch: Job 21 to start at {ESTIMATE}\n"
    assert client(sbatch=Done(0, "", said)).test("#!", {}) == f"would start at {ESTIMATE}"


def test_messages_of_sbatch_are_shown_for_an_accepted_job() -> None:
    heard: list[str] = []
    said = "sbatch: Your project has 12 GPU hours left.\nsbatch: warning: can't run 4 processes\n"
    asked = SlurmClient({}, Answers(sbatch=Done(0, "12\n", said)), notice=heard.append)
    asked.submit("#!", {})
    lines = ["Your project has 12 GPU hours left.", "warning: can't run 4 processes"]
    assert heard == lines
    more = f"{said}sbatch: Job 9 to start at {ESTIMATE}\n"
    tested = SlurmClient({}, Answers(sbatch=Done(0, "", more)), notice=heard.append).test("#!", {})
    assert heard == lines * 2
    assert tested == f"would start at {ESTIMATE}"


def test_a_dependency_that_cannot_come_true_ends_the_job_unless_the_script_says_otherwise() -> None:
    script = "#!/bin/bash\n#SBATCH --dependency=afterok:7\n"
    for text, more in (
        (script, ["--kill-on-invalid-dep=yes"]),
        (f"{script}#SBATCH --kill-on-invalid-dep=no\n", []),
        ("#!/bin/bash\n", []),
    ):
        answers = Answers(sbatch=Done(0, "12\n", ""))
        job = SlurmClient({}, answers).submit(text, {})
        argv = ["sbatch", "--parsable", *more, "/dev/stdin", job.token]
        assert answers.calls == [(argv, text)]


# ---------------------------------------------------------------- questions


def test_questions_have_times_as_numbers_whatever_the_user_has_set() -> None:
    answers = Answers(squeue=RUNS)
    environ = {
        "SLURM_TIME_FORMAT": "relative", "SQUEUE_STATES": "PENDING", "SLURM_CLUSTERS": "other",
        "SQUEUE_FORMAT2": "name", "SACCT_FORMAT": "state", "PATH": "/bin", "SLURM_CONF": "/etc/c",
    }  # fmt: skip
    SlurmClient(environ, answers).jobs(JOB)
    assert answers.environ == {"SLURM_TIME_FORMAT": "%s", "PATH": "/bin", "SLURM_CONF": "/etc/c"}


@pytest.mark.parametrize("call", ["jobs", "starts", "cancel"])
def test_a_job_of_another_cluster_is_looked_for_there_alone(call: str) -> None:
    answers = Answers(squeue=RUNS, sacct=accounted({}), scancel=NOTHING)
    getattr(SlurmClient({}, answers), call)(JobId("12", "tiger", SUBMITTED, token=TOKEN))
    assert answers.calls
    assert all("--clusters=tiger" in argv for argv, _ in answers.calls)


def test_json_is_asked_where_squeue_obeys_the_number_and_only_there() -> None:
    record = {
        "job_id": 12, "job_state": ["RUNNING"], "submit_time": {"set": True, "number": SUBMITTED},
        "command": f"/dev/stdin {TOKEN}",
    }  # fmt: skip
    answers = Answers("slurm 23.11.4\n", squeue=Done(0, json.dumps({"jobs": [record]}), ""))
    assert SlurmClient({}, answers).jobs(JOB)[0].submitted == SUBMITTED
    assert "--json" in answers.calls[0][0]
    answers = Answers("slurm-wlm 22.05.8\n", squeue=RUNS)
    assert SlurmClient({}, answers).jobs(JOB)[0].submitted == SUBMITTED
    assert "--json" not in answers.calls[0][0]


def test_without_the_json_plugin_columns_are_asked_and_that_is_remembered() -> None:
    def squeue(argv: Sequence[str]) -> Done:
        said = "squeue: fatal: Unable to find plugin: serializer/json\n"
        return Done(1, "", said) if "--json" in argv else RUNS

    answers = Answers("slurm 24.11.1\n", squeue=squeue)
    slurm = SlurmClient({}, answers)
    assert [slurm.jobs(JOB)[0].state for _ in range(2)] == ["RUNNING", "RUNNING"]
    assert len(answers.calls) == 3


FAILURES = [
    ("squeue: error: Munge encode failed: Failed to connect to \"/run/munge/munge.socket.2\": "
     "Connection refused\nslurm_load_jobs error: Protocol authentication error", QueryFailure.AUTH),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
     QueryFailure.NO_CONTACT),
    ("slurm_load_jobs error: Resource temporarily unavailable", QueryFailure.BUSY),
    ("slurm_load_jobs error: Slurm backup controller in standby mode", QueryFailure.STANDBY),
    ("squeue: error: RPC rate limit exceeded 30 times. Retrying", QueryFailure.RATE_LIMIT),
    ("slurm_load_jobs error: Socket timed out on send/recv operation", QueryFailure.TIMEOUT),
    ("squeue: error: 'tiger' can't be reached now, or it is an invalid entry for --cluster.",
     QueryFailure.CLUSTER_NOT_FOUND),
    ("squeue: fatal: Could not establish a configuration source", QueryFailure.NO_SLURM),
    ("slurm_load_jobs error: The moon is full", QueryFailure.OTHER),
    ("", QueryFailure.OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("said", "code"), FAILURES)
@pytest.mark.parametrize("status", [1, -9, 127])
def test_a_failure_of_squeue_says_nothing_of_the_job(
    said: str, code: QueryFailure, status: int
) -> None:
    with pytest.raises(QueryError) as caught:
        client(squeue=Done(status, "", said), sacct=accounted()).jobs(JOB)
    assert caught.value.code is code


def test_an_invalid_job_id_beside_another_failure_says_nothing_of_the_job() -> None:
    said = "squeue: error: Munge decode failed\n" + INVALID.err
    with pytest.raises(QueryError):
        client(squeue=Done(1, "", said), sacct=accounted()).jobs(JOB)


def test_an_answer_of_squeue_that_is_cut_anywhere_is_no_answer() -> None:
    for length in range(0, len(RUNS.out), 97):
        with pytest.raises(QueryError) as caught:
            client(squeue=Done(0, RUNS.out[:length], "")).jobs(JOB)
        assert caught.value.code is QueryFailure.CUT_ANSWER, length


def test_a_command_that_cannot_be_started_says_nothing_of_the_job() -> None:
    with pytest.raises(QueryError):
        run_command(["/etc/passwd"], "", {})


# ---------------------------------------------------------------- what SLURM has forgotten


def test_a_forgotten_job_is_looked_up_in_the_accounting() -> None:
    (info,) = client(squeue=INVALID, sacct=accounted({"ExitCode": "3:0"})).jobs(JOB)
    assert (info.state, info.code, info.nodes) == ("COMPLETED", 3, "node[1-2]")


def test_of_several_starts_the_last_one_decides_the_end_of_a_job() -> None:
    again = {"Submit": str(SUBMITTED + 50), "State": "FAILED"}
    sacct = accounted({"State": "REQUEUED"}, again)
    (info,) = client(squeue=INVALID, sacct=sacct).jobs(JOB)
    assert (info.state, info.restarts) == ("FAILED", 1)


@pytest.mark.parametrize("sacct", [DISABLED, ToolMissingError("sacct is not here")])
def test_a_site_without_accounting_knows_nothing_of_a_forgotten_job(sacct: Answer) -> None:
    assert client(squeue=INVALID, sacct=sacct).jobs(JOB) == ()


def test_an_accounting_that_fails_says_nothing_of_the_job() -> None:
    said = "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: Connection refused"  # noqa: E501
    with pytest.raises(QueryError) as caught:
        client(squeue=INVALID, sacct=Done(1, "", said)).jobs(JOB)
    assert caught.value.code is QueryFailure.ACCOUNTING


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "REQUEUED", "WONDERING"])
def test_a_forgotten_job_without_a_recorded_end_is_not_called_over(state: str) -> None:
    """Such is a controller that lost its state, and a federation whose controllers are down."""
    with pytest.raises(QueryError) as caught:
        client(squeue=INVALID, sacct=accounted({"State": state})).jobs(JOB)
    assert caught.value.code is QueryFailure.NO_END


ONE_START = start("@")


def test_an_answer_of_the_accounting_that_is_cut_anywhere_is_no_answer() -> None:
    for length in range(1, len(ONE_START)):
        cut = ONE_START[:length]

        def sacct(argv: Sequence[str], cut: str = cut) -> Done:
            option = next(word for word in argv if word.startswith("--delimiter="))
            return Done(0, cut.replace("@", option.partition("=")[2]), "")

        with pytest.raises(QueryError):
            client(squeue=INVALID, sacct=sacct).jobs(JOB)


# ---------------------------------------------------------------- other jobs of the number


def test_another_job_of_the_number_is_not_shown_and_the_own_one_is_looked_up() -> None:
    other = row(command="/dev/stdin dslaunch-ffffffffffffffff", submittime=str(SUBMITTED + 9))
    (info,) = client(squeue=Done(0, other, ""), sacct=accounted({})).jobs(JOB)
    assert (info.state, info.submitted) == ("COMPLETED", SUBMITTED)


def test_another_job_of_the_number_is_not_canceled() -> None:
    other = Done(0, row(command="/home/me/job.sh", submittime=str(SUBMITTED + 9)), "")
    answers = Answers(squeue=other, sacct=accounted({"State": "CANCELLED"}), scancel=NOTHING)
    with pytest.raises(DslaunchError, match="not in the queue"):
        SlurmClient({}, answers).cancel(JOB)
    assert "scancel" not in answers.programs


def test_a_job_that_is_over_is_not_canceled() -> None:
    answers = Answers(squeue=Done(0, row(state="COMPLETED"), ""), scancel=NOTHING)
    with pytest.raises(DslaunchError, match="not in the queue"):
        SlurmClient({}, answers).cancel(JOB)
    assert "scancel" not in answers.programs


NO_TOKEN = JobId("12", submitted=SUBMITTED)
"""Such as a job of an earlier version."""


def test_a_job_that_may_be_ours_or_not_is_not_canceled() -> None:
    requeued = Done(0, row(command="", restartcnt="1", submittime=str(SUBMITTED + 9)), "")
    answers = Answers(squeue=requeued, sacct=DISABLED, scancel=NOTHING)
    with pytest.raises(QueryError) as caught:
        SlurmClient({}, answers).cancel(NO_TOKEN)
    assert caught.value.code is QueryFailure.UNPROVEN
    assert "scancel" not in answers.programs


def test_an_unobserved_requeue_is_proven_by_the_accounting() -> None:
    requeued = Done(0, row(command="", restartcnt="1", submittime=str(SUBMITTED + 9)), "")
    sacct = accounted({"State": "REQUEUED", "SubmitLine": ""})
    (info,) = client(squeue=requeued, sacct=sacct).jobs(NO_TOKEN)
    assert info.restarts == 1


def test_a_job_of_another_cannot_be_cancelled() -> None:
    denied = Done(1, "", "scancel: error: Kill job error on job id 12: Access denied\n")
    with pytest.raises(DslaunchError, match="Kill job error"):
        client(squeue=RUNS, scancel=denied).cancel(JOB)


# ---------------------------------------------------------------- else


def test_a_missing_command_is_reported() -> None:
    with pytest.raises(ToolMissingError, match="sbatch-of-nowhere"):
        run_command(["sbatch-of-nowhere"], "", {})


def test_what_slurm_says_of_nodes_is_known_by_their_names() -> None:
    said = "NodeName=a1 Arch=x State=IDLE+DRAIN X=1\nNodeName=a2 Arch=x State=DOWN* Y=2\n"
    nodes = client(scontrol=Done(0, said, "")).nodes("a[1-2]")
    assert {name: node.states for name, node in nodes.items()} == {
        "a1": {"IDLE", "DRAIN"},
        "a2": {"DOWN", "NOT_RESPONDING"},
    }
