"""What sbatch writes to standard error becomes notices, reasons and options. Texts recorded from
SLURM 22.05; others as its source has them, up to 26.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.slurm.refusal import (
    EXPLANATIONS,
    MAX_LINE_LENGTH,
    MAX_LINES,
    Refused,
    parse_messages,
    parse_refusal,
)

FAILED = "sbatch: error: Batch job submission failed: "
CONFIGURATION = f"{FAILED}Requested node configuration is not available\n"


@pytest.mark.parametrize(
    ("said", "reason", "option"),
    [
        (f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition name "
         "specified\n", Refused.PARTITION, "partition"),
        (f"{FAILED}Invalid account or account/partition combination specified\n", Refused.ACCOUNT,
         "account"),
        (f"{FAILED}Invalid qos specification\n", Refused.QOS, "qos"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}Job violates accounting/QOS policy "
         "(job submit limit, user's size and/or time limits)\n", Refused.POLICY, "qos"),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)\n",
         Refused.TIME, "time"),
        (f"{FAILED}Time limit specification required, but not provided\n", Refused.NO_TIME, "time"),
        (CONFIGURATION, Refused.CONFIGURATION, "gres"),
        (f"sbatch: error: Memory specification can not be satisfied\n{CONFIGURATION}",
         Refused.MEMORY, "mem"),
        (f"sbatch: error: CPU count per node can not be satisfied\n{CONFIGURATION}", Refused.CPUS,
         "cpus-per-task"),
        ("allocation failure: Requested node configuration is not available\n",
         Refused.CONFIGURATION, "nodes"),
        (f"{FAILED}Node count specification invalid\n", Refused.NODE_COUNT, "nodes"),
        (f"{FAILED}Invalid generic resource (gres) specification\n", Refused.GRES, "gres"),
        (f"{FAILED}Invalid feature specification\n", Refused.FEATURE, "constraint"),
        (f"{FAILED}Invalid node name specified\n", Refused.NODE_NAME, "nodelist"),
        (f"{FAILED}Requested reservation is invalid\n", Refused.RESERVATION, "reservation"),
        (f"{FAILED}Job dependency problem\n", Refused.DEPENDENCY, "dependency"),
        (f"{FAILED}Invalid job array specification\n", Refused.ARRAY, "array"),
        (f"{FAILED}Invalid license specification\n", Refused.LICENSES, "licenses"),
        ("sbatch: unrecognized option '--nope'\nTry \"sbatch --help\" for more information\n",
         Refused.UNKNOWN_OPTION, "nope"),
        ("sbatch: error: Invalid --mem specification\n", Refused.OPTION_VALUE, "mem"),
        ("sbatch: error: Invalid directive found in batch script: --hold-on\n",
         Refused.UNKNOWN_OPTION, "hold-on"),
        ("sbatch: fatal: --exclusive and --oversubscribe options are mutually exclusive\n",
         Refused.OPTIONS, "oversubscribe"),
        ("sbatch: fatal: --gpus-per-node and --gres=gpu are mutually exclusive.\n",
         Refused.OPTIONS, "gpus-per-node"),
        ("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n",
         Refused.OPTIONS, "mem-per-cpu"),
    ],
)  # fmt: skip
def test_a_refusal_is_a_reason_with_the_options_to_blame(
    said: str, reason: Refused, option: str
) -> None:
    refusal = parse_refusal(said)
    assert refusal.reason is reason
    assert option in refusal.options


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
         Refused.CONTROLLER),
        (f"{FAILED}Socket timed out on send/recv operation\n", Refused.CONTROLLER),
        (f"{FAILED}Unable to contact slurm controller (connect failure)\n", Refused.CONTROLLER),
        (f"sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\"\n"
         f"{FAILED}Protocol authentication error\n", Refused.AUTHENTICATION),
        ("sbatch: error: Could not establish a configuration source\n", Refused.NO_SLURM),
    ],
)  # fmt: skip
def test_a_controller_that_is_away_is_nothing_wrong_with_the_job(
    said: str, reason: Refused
) -> None:
    refusal = parse_refusal(said)
    assert (refusal.reason, refusal.options) == (reason, ())


def test_messages_of_the_site_precede_those_of_slurm_and_decide_nothing() -> None:
    of_the_site = ("Invalid qos specification? No hours.", "See https://site.example/hours")
    lines = "".join(f"sbatch: error: {line}\n" for line in of_the_site)
    said = f"{lines}{FAILED}Unspecified error\n"
    refusal = parse_refusal(said)
    assert refusal.reason is Refused.UNKNOWN
    assert refusal.messages == (*of_the_site, "Unspecified error")
    assert refusal.explanation is None


def test_the_cause_precedes_the_messages_of_the_site() -> None:
    said = f"sbatch: error: See https://site.example\n{FAILED}Invalid partition name specified\n"
    refusal = parse_refusal(said)
    assert refusal.headline == EXPLANATIONS[Refused.PARTITION].meaning
    assert refusal.messages == ("Invalid partition name specified", "See https://site.example")


def test_the_last_line_of_an_sbatch_that_failed_itself_comes_first() -> None:
    refusal = parse_refusal("sbatch: something\nsbatch: error: Unknown trouble\n")
    assert refusal.headline == "Unknown trouble"


def test_a_refusal_without_a_message_is_unknown() -> None:
    refusal = parse_refusal("")
    assert (refusal.reason, refusal.messages) == (Refused.UNKNOWN, ())


def test_every_reason_but_the_unknown_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Refused) - {Refused.UNKNOWN}


@given(st.text() | st.text("sbatch: erof\n-", max_size=200))
def test_any_text_is_a_refusal_of_bounded_size(said: str) -> None:
    refusal = parse_refusal(said)
    assert len(refusal.messages) <= MAX_LINES + 1
    assert all(len(message) <= MAX_LINE_LENGTH for message in refusal.messages)


def test_an_estimate_is_no_notice() -> None:
    said = parse_messages(
        "sbatch: Use --partition=short for tests\n"
        "sbatch: Job 21 to start at 2026-11-21T08:14:22 using 2 processors on nodes a in main\n"
        "sbatch:   Preempts: 7,8\n"
    )
    assert said.notices == ("Use --partition=short for tests",)
    assert [line.split(" ")[0] for line in said.estimate] == ["Job", "Preempts:"]
